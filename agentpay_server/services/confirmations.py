"""Watching what is settled until it cannot be undone, on chains where settled is not yet irreversible.

See interface T12.

Should a settled transaction vanish with its block, the same bytes are sent again, for as long as they may
land, but never to a chain that expects them to fail: what they depend on may have vanished too and be on its
way again, and a failure on chain would be for good. Until it is final again, what it takes from its account
is reserved, since it is back in the balance meanwhile. What was booked stays booked: whoever was told that it
is settled is not told otherwise. That it can never land again would take a cluster that undoes confirmed
blocks for a minute: then people have to look.

Several servers over one database may watch the same transaction; the same bytes twice are one transaction.
"""

import asyncio
import logging
from typing import Final

from agentpay_server.chain.protocol import ChainUnavailableError
from agentpay_server.context import Context
from agentpay_server.database.connection import Connection
from agentpay_server.logs import log
from agentpay_server.services.settlement import Landed, Settlement
from agentpay_server.store import accounts, sessions, transfers
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
                if not watched.reserved:
                    await self._database.run(_reserve, watched)
                await self._chain.send(watched.signed.raw, even_if_failing=False)
        except ChainUnavailableError:
            return False
        if end is None:
            return False
        if watched.reserved:
            await self._database.run(_release, watched)
        if isinstance(end, Landed):
            return end.is_irreversible
        self._report(logging.ERROR, "transaction.undone", watched)
        return True

    @staticmethod
    def _report(level: int, event: str, watched: Watched) -> None:
        log(logger, level, event, tx_signature=watched.signed.signature, subject=watched.subject)


def _reserve(connection: Connection, watched: Watched) -> None:
    """Count what a transaction takes from its account as in flight, until it has landed again."""
    found = _taken(connection, watched)
    if found is not None:
        account_id, amount = found
        if store.set_reserved(connection, watched, amount):
            accounts.reserve_again(connection, account_id, amount)


def _release(connection: Connection, watched: Watched) -> None:
    """Count it as in flight no longer: it has landed again, or provably never will."""
    found = _taken(connection, watched)
    if found is not None and store.clear_reserved(connection, watched):
        accounts.release(connection, found[0], watched.reserved)


def _taken(connection: Connection, watched: Watched) -> tuple[str, int] | None:
    """Return from whose balance a transaction takes how much; None where it takes nothing."""
    transfer = transfers.transfer(connection, watched.subject)
    if transfer is not None:
        return transfer.account_id, transfer.amount
    session = sessions.session(connection, watched.subject)
    # A settlement takes it from the escrow.
    if session is not None and session.tx_signature == watched.signed.signature:
        return session.account_id, session.cap
    return None
