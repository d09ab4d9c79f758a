"""Watches posted transactions on chain: a settled one may still disappear, and an expired one may still land.

Settled transactions are watched until they are irreversible (interface T12). If a reorganization removes one,
the same bytes are resent for as long as they may land. They are not sent while the chain expects them to
fail: a failure on chain would be final, and the transactions they depend on may be about to land again. Until
the transaction lands again, its amount, which is back in the balance, is reserved. The posting stays, so
clients that saw it settled get no contradicting event. Only a cluster that undoes confirmed blocks for a
minute can make the transaction impossible; operators must then intervene.

Expired and rejected transactions are watched until it is ruled out that they landed. An expiry is derived
from block heights that nodes report, and a rejection from their responses about the transaction. If those
were wrong despite all checks, a transaction may land after it was replaced or after its amount was released.
It is then posted and counted toward the limit, the account is blocked, and an operator must review it.

Several servers over one database may watch the same transaction: resending the same bytes is harmless, and
only one of them posts a late landing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from attrs import evolve

from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS, ChainUnreachableError, SignatureStatus
from agentpay_server.database.connection import Connection
from agentpay_server.engine.broadcast import Ages, Landed
from agentpay_server.engine.settlement import Settlement
from agentpay_server.feature import Core, Feature, Phase
from agentpay_server.ledger import transactions as store
from agentpay_server.ledger.apply import Posting, post
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import State, StoredTransaction
from agentpay_server.platform.clock import Clock
from agentpay_server.platform.logs import log
from agentpay_server.platform.scheduler import Backoff, Every

LOOK_EVERY_SECONDS: Final = 4.0
"""Several times while a cluster finalizes. Bytes that disappeared can land again for a minute."""

_PAGE_SIZE: Final = 256
_LIFETIMES: Final = 2
"""Minimum time to watch a transaction, in blockhash lifetimes, both by blocks and by time."""

_FIRST_PAUSE_SECONDS: Final = 30.0
_LONGEST_PAUSE_SECONDS: Final = 3_600.0

logger: logging.Logger = logging.getLogger(__name__)


class LateLandings:
    """Watches expired and rejected transactions."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context = context
        self._chain = context.chain
        self._database = context.database
        self._settlement = settlement
        self._movements = settlement.outcomes.movements
        self._ages = Ages()
        # When to retry a history query that the node could not serve.
        self._searches: dict[str, tuple[float, Backoff]] = {}

    async def poll(self) -> None:
        """Check all watched transactions once."""
        after = ""
        while page := await self._database.read(store.watched_after, after, _PAGE_SIZE):
            await asyncio.gather(*(self._poll_one(expired) for expired in page))
            after = page[-1].subject_id

    async def poll_one(self, subject_id: str) -> None:
        """Check a subject's watched transactions before its newest one is posted as lost or failed.

        Raises:
            ChainUnreachableError: the state of one of them is currently unknown.
        """
        watched = await self._database.read(store.watched_of, subject_id)
        if watched:
            # Reject nodes that lag behind the finalized block: the failure happened before it.
            await self._chain.block_height()
        for expired in watched:
            status = await self._found(expired)
            if status is not None and status.is_final and status.failure is None:
                await self._post(evolve(expired, chain_signature=status.chain_signature))

    async def _poll_one(self, expired: StoredTransaction) -> None:
        try:
            status = await self._found(expired)
            if status is None:
                if await self._is_ruled_out(expired):
                    await self._rule_out(expired)
                return
        except ChainUnreachableError:
            return
        if status.failure is not None:
            # It failed on chain: it moved nothing, and never will. What was believed once is asked again
            # until its bytes can never land.
            if expired.state is not State.REJECTED or await self._is_past(expired):
                await self._rule_out(expired)
        elif status.is_final and not self._may_vanish(expired, status):
            await self._post(evolve(expired, chain_signature=status.chain_signature))
            # Do not resend its replacement.
            self._settlement.stop_driving(expired.kind, expired.subject_id)

    def _may_vanish(self, expired: StoredTransaction, status: SignatureStatus) -> bool:
        return self._movements[expired.kind].must_be_irreversible and not status.is_irreversible

    async def _is_ruled_out(self, expired: StoredTransaction) -> bool:
        """Return whether history shows that a transaction never landed, long after it could have."""
        if not self._is_time(expired) or not await self._is_past(expired):
            return False
        last = expired.last_valid_block_height
        height = await self._chain.block_height()
        if await self._found(expired, proof_height=height) is not None:
            return False
        first = max(last - BLOCKHASH_LIFE_BLOCKS, 0)
        if await self._chain.knows_blocks(first, last + BLOCKHASH_LIFE_BLOCKS):
            return True
        self._postpone(expired)
        return False

    async def _is_past(self, expired: StoredTransaction) -> bool:
        """Return whether a transaction could last land long ago, both by blocks and by time."""
        life_seconds = self._chain.blockhash_life_seconds
        if self._ages.seconds(expired.signature) < _LIFETIMES * life_seconds:
            return False
        last = expired.last_valid_block_height
        return await self._chain.block_height() > last + _LIFETIMES * BLOCKHASH_LIFE_BLOCKS

    async def _found(
        self, expired: StoredTransaction, *, proof_height: int | None = None
    ) -> SignatureStatus | None:
        return await self._movements[expired.kind].find(self._chain, expired, proof_height=proof_height)

    def _is_time(self, expired: StoredTransaction) -> bool:
        search = self._searches.get(expired.signature)
        return search is None or asyncio.get_running_loop().time() >= search[0]

    def _postpone(self, expired: StoredTransaction) -> None:
        """Delay the next history query: this node lacks the history, and each attempt takes many calls."""
        if expired.signature in self._searches:
            _, backoff = self._searches[expired.signature]
            backoff.lengthen()
        else:
            backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        again_at = asyncio.get_running_loop().time() + backoff.seconds
        self._searches[expired.signature] = again_at, backoff

    async def _rule_out(self, expired: StoredTransaction) -> None:
        now_us = self._context.clock.now_us()
        state = State.FAILED if expired.state is State.REJECTED else State.RULED_OUT
        # If another server was faster, its decision stands, and nothing follows from this one.
        await self._database.run(store.end_watched, expired, state, now_us)
        self._forget(expired)

    async def _post(self, expired: StoredTransaction) -> None:
        landed = await self._database.run(self._settlement.outcomes.land_late, expired)
        self._forget(expired)
        if landed is None:
            return
        self._context.wakeup.set()
        log(
            logger,
            logging.ERROR,
            "transaction.landed_after_expiry",
            account_id=expired.account_id,
            subject=expired.subject_id,
            kind=expired.kind,
            tx_signature=expired.signature,
            replacement_tx_signature=landed[0],
        )

    def _forget(self, expired: StoredTransaction) -> None:
        self._ages.forget(expired.signature)
        self._searches.pop(expired.signature, None)


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


class WatchSchedule:
    """Checks all watched transactions periodically."""

    def __init__(self, poll: Callable[[], Awaitable[None]], *, clock: Clock) -> None:
        self._poll = poll
        self._clock = clock
        self._every = Every(LOOK_EVERY_SECONDS)

    async def next_due_us(self) -> int | None:
        """Return when to run next; None on a manual clock before then, since advancing it does not help."""
        return self._every.due_us(self._clock)

    async def run_due(self) -> bool:
        """Run the watch if it is due."""
        if not self._every.is_due:
            return False
        try:
            await self._poll()
        finally:
            self._every.restart()
        return True


class Watches:
    """Those of a server on a cluster. The embedded chain neither undoes a transaction nor lands one late."""

    def __init__(self, core: Core) -> None:
        self._context = core.context
        self._late_landings = LateLandings(core.context, core.settlement)
        self._confirmations = Confirmations(core.context, core.settlement)

    def work(self) -> Iterable[tuple[Phase, WatchSchedule]]:
        """Return the watch over settled transactions, and the one over expired ones."""
        watches = (self._confirmations, self._late_landings) if self._context.is_cluster else ()
        return [(Phase.LATER, WatchSchedule(each.poll, clock=self._context.clock)) for each in watches]

    async def before_loss(self, subject_id: str) -> None:
        """Post a subject's expired transactions that have landed after all."""
        if self._context.is_cluster:
            await self._late_landings.poll_one(subject_id)


FEATURE: Final[Feature[Watches]] = Feature(
    name="guards", build=Watches, work=Watches.work, before_loss=lambda s: s.before_loss
)
