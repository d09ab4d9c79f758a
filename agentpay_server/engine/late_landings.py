"""Watches expired and rejected transactions until it is ruled out that they landed.

An expiry is derived from block heights that nodes report, and a rejection from their responses about the
transaction. If those were wrong despite all checks, a transaction may land after it was replaced or after its
amount was released. It is then posted and counted toward the limit, the account is blocked, and an operator
must review it.

Several servers over one database may watch the same transaction; only one of them posts it.
"""

import asyncio
import logging
from typing import Final

from attrs import define, evolve

from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS, ChainUnreachableError, SignatureStatus
from agentpay_server.engine.broadcast import Ages
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import transactions as store
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import State, StoredTransaction
from agentpay_server.platform.logs import log
from agentpay_server.platform.scheduler import Backoff

_PAGE_SIZE: Final = 256
_LIFETIMES: Final = 2
"""Minimum time to watch a transaction, in blockhash lifetimes, both by blocks and by time."""

_FIRST_PAUSE_SECONDS: Final = 30.0
_LONGEST_PAUSE_SECONDS: Final = 3_600.0

logger: logging.Logger = logging.getLogger(__name__)


@define
class _Search:
    """When to retry a history query that the node could not serve."""

    at: float
    backoff: Backoff


class LateLandings:
    """Watches expired and rejected transactions."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context = context
        self._chain = context.chain
        self._database = context.database
        self._settlement = settlement
        self._ages = Ages()
        self._searches: dict[str, _Search] = {}

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
        handler = self._settlement.handler(expired.kind)
        return handler.must_be_irreversible and not status.is_irreversible

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
        handler = self._settlement.handler(expired.kind)
        return await handler.find(self._chain, expired, proof_height=proof_height)

    def _is_time(self, expired: StoredTransaction) -> bool:
        search = self._searches.get(expired.signature)
        return search is None or asyncio.get_running_loop().time() >= search.at

    def _postpone(self, expired: StoredTransaction) -> None:
        """Delay the next history query: this node lacks the history, and each attempt takes many calls."""
        now = asyncio.get_running_loop().time()
        search = self._searches.get(expired.signature)
        if search is None:
            backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
            search = self._searches[expired.signature] = _Search(now, backoff)
        else:
            search.backoff.lengthen()
        search.at = now + search.backoff.seconds

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
            kind=expired.kind.value,
            tx_signature=expired.signature,
            replacement_tx_signature=landed[0],
        )

    def _forget(self, expired: StoredTransaction) -> None:
        self._ages.forget(expired.signature)
        self._searches.pop(expired.signature, None)
