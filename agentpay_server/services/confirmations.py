"""Watching what is settled until it cannot be undone, on chains where settled is not yet irreversible (D35).

Should a settled transaction vanish with its block, the same bytes are sent again, for as long as they may
land, but never to a chain that expects them to fail: what they depend on may have vanished too and be on its
way again, and a failure on chain would be for good. What was booked stays booked: whoever was told that it is
settled is not told otherwise. That it can never land again would take a cluster that undoes confirmed blocks
for a minute: then people have to look.

Several servers over one database may watch the same transaction; the same bytes twice are one transaction.
"""

import asyncio
import logging
from typing import Final

from agentpay_server.chain.base import ChainUnavailableError
from agentpay_server.logs import log
from agentpay_server.services.context import Context
from agentpay_server.services.settlement import Landed, Settlement
from agentpay_server.store import confirmed as store
from agentpay_server.store.confirmed import Watched

_AT_ONCE: Final = 256

logger: logging.Logger = logging.getLogger(__name__)


class Confirmations:
    """Watches settled transactions."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._database = context.database
        self._chain = context.chain
        self._settlement = settlement

    async def look(self) -> None:
        """Look at every one of them once: forget what is irreversible, send again what has vanished."""
        after = ""
        while page := await self._database.read(store.watched_after, after, _AT_ONCE):
            is_over = await asyncio.gather(*(self._is_over(watched) for watched in page))
            over = [watched.signed.signature for watched, ended in zip(page, is_over, strict=True) if ended]
            if over:
                await self._database.run(store.forget, over)
            after = page[-1].signed.signature

    async def _is_over(self, watched: Watched) -> bool:
        """Return whether nothing can become of a transaction any more; see to it that it lands if it can."""
        try:
            end, must_send = await self._settlement.look(watched.signed)
            if must_send:
                self._report(logging.WARNING, "transaction.vanished", watched)
                await self._chain.send(watched.signed.raw, even_if_failing=False)
        except ChainUnavailableError:
            return False
        if end is None:
            return False
        if isinstance(end, Landed):
            return end.is_irreversible
        self._report(logging.ERROR, "transaction.undone", watched)
        return True

    @staticmethod
    def _report(level: int, event: str, watched: Watched) -> None:
        log(logger, level, event, tx_signature=watched.signed.signature, subject=watched.subject)
