"""Watches settled transactions until they are irreversible (interface T12).

If a reorganization removes a settled transaction, the same bytes are resent for as long as they may land.
They are not sent while the chain expects them to fail: a failure on chain would be final, and the
transactions they depend on may be about to land again. Until the transaction lands again, its amount, which
is back in the balance, is reserved. The posting stays, so clients that saw it settled get no contradicting
event. Only a cluster that undoes confirmed blocks for a minute can make the transaction impossible; operators
must then intervene.

Several servers over one database may watch the same transaction; resending the same bytes is harmless.
"""

import asyncio
import logging
from typing import Final

from attrs import evolve

from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.engine.broadcast import Landed
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import transactions as store
from agentpay_server.ledger.apply import Posting, post
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import State, StoredTransaction
from agentpay_server.platform.logs import log

_PAGE_SIZE: Final = 256

logger: logging.Logger = logging.getLogger(__name__)


class Confirmations:
    """Watches settled transactions."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._database = context.database
        self._clock = context.clock
        self._chain = context.chain
        self._settlement = settlement

    async def poll(self) -> None:
        """Check all watched transactions once: drop irreversible ones, resend vanished ones."""
        after = ""
        while page := await self._database.read(store.confirmed_after, after, _PAGE_SIZE):
            polled = await asyncio.gather(*(self._polled(tx) for tx in page))
            ended = [tx for tx in polled if tx.state is not State.CONFIRMED]
            if ended:
                await self._database.run(store.end_confirmed, ended)
            after = page[-1].signature

    async def _polled(self, tx: StoredTransaction) -> StoredTransaction:
        """Return a transaction with its current state; resend it if it disappeared and can still land."""
        try:
            end, must_send = await self._settlement.broadcaster.poll(tx.signed)
            if must_send:
                self._report(logging.WARNING, "transaction.vanished", tx)
                if not tx.vanished_hold:
                    await self._database.run(_hold, tx, self._clock.now_us())
                await self._chain.send(tx.signed.raw, even_if_failing=False)
        except ChainUnreachableError:
            return tx
        if end is None:
            return tx
        if tx.vanished_hold:
            await self._database.run(_release, tx, self._clock.now_us())
        if not isinstance(end, Landed):
            self._report(logging.ERROR, "transaction.undone", tx)
            return evolve(tx, state=State.UNDONE)
        return evolve(tx, state=State.FINALIZED) if end.is_irreversible else tx

    @staticmethod
    def _report(level: int, event: str, tx: StoredTransaction) -> None:
        log(logger, level, event, tx_signature=tx.signature, subject=tx.subject_id)


def _hold(connection: Connection, tx: StoredTransaction, now_us: int) -> None:
    if tx.hold and store.set_vanished_hold(connection, tx, tx.hold):
        post(connection, Posting(account_id=tx.account_id, hold=tx.hold), now_us)


def _release(connection: Connection, tx: StoredTransaction, now_us: int) -> None:
    if store.set_vanished_hold(connection, tx, 0):
        post(connection, Posting(account_id=tx.account_id, release=tx.vanished_hold), now_us)
