"""Sends a stored transaction and determines its outcome from the chain only.

The chain may lose requests and replies, lag, or be unreachable. Therefore:

1. Only committed bytes are sent, and the same bytes are resent for as long as they may land.
2. Success and failure are proved by the transaction itself (`Chain.signature_status`). A status without that
   evidence is no outcome: the loop asks again, and resends the bytes.
3. A missing status proves that a transaction can never land only under five conditions. First, the status
   was read after the block height had passed the transaction's last valid one. Second, that height fits the
   block of the transaction's blockhash, because a node may have reported a wrong one. Third, the node knows
   all blocks that could contain the transaction; nodes prune old blocks, and miss blocks while they are down.
   Fourth, 150 blocks can have passed since the signature by this server's own clock, because nodes may report
   wrong heights. Fifth, neither the node's transactions nor the history of the account that it debits contain
   it. The only other proof is a final rejection by the chain.
4. An error of the chain proves nothing: the loop asks again.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import Final, Protocol

from attrs import frozen

from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    Absence,
    Chain,
    ChainFailure,
    ChainUnreachableError,
    DoubtfulNodeError,
    SignatureStatus,
    SignedTransaction,
    UnprovenError,
)
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.failpoints import Step, failpoint
from agentpay_server.platform.logs import log
from agentpay_server.platform.scheduler import Backoff

FIRST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 2.0

_MAX_AGES: Final = 100_000

logger: logging.Logger = logging.getLogger(__name__)


class Expired(Enum):
    """The transaction did not land and never can."""

    EXPIRED = "expired"


@frozen
class Landed:
    """The transaction is final on chain and succeeded.

    Attributes:
        is_irreversible: whether its block can no longer be reorganized away.
        chain_signature: its signature on chain, if that differs from the signature it was stored under.
    """

    is_irreversible: bool
    chain_signature: str | None = None


Outcome = Landed | Expired | ChainFailure


class Find(Protocol):
    """Looks a transaction up on chain; None if it is not there (yet)."""

    async def __call__(self, *, proof_height: int | None) -> SignatureStatus | None:
        """Look it up; with `proof_height`, None proves that no block up to this height holds it."""
        ...


async def by_signature(
    chain: Chain, tx: SignedTransaction | StoredTransaction, *, proof_height: int | None
) -> SignatureStatus | None:
    """Look up a transaction that this service sends."""
    sought = None if proof_height is None else absence(tx.debits, tx.last_valid_block_height, proof_height)
    return await chain.signature_status(tx.signature, absence=sought)


def absence(debits: str | None, last_valid_height: int, proof_height: int) -> Absence:
    """Return what proves that no block up to a height holds a transaction."""
    first_height = first_landing_height(last_valid_height)
    return Absence(token_account=debits, first_height=first_height, last_height=proof_height)


def first_landing_height(last_valid_height: int) -> int:
    """Return a height below which no block can contain a transaction.

    The last valid height may be as wrong as `Chain.landing_heights` tolerates.
    """
    return max(last_valid_height - 3 * BLOCKHASH_LIFE_BLOCKS, 0)


def may_vanish(end: Outcome) -> bool:
    """Return whether a reorganization can still undo an outcome."""
    return isinstance(end, Landed) and not end.is_irreversible


class Ages:
    """How long this process has known each transaction, by a monotonic clock: a lower bound of its age."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, signature: str) -> None:
        """Start the age of a transaction, unless it is known."""
        if signature not in self._since and len(self._since) >= _MAX_AGES:
            # Forget the oldest. If it is asked for again, its age starts at zero, which is safe.
            del self._since[next(iter(self._since))]
        self._since.setdefault(signature, asyncio.get_running_loop().time())

    def seconds(self, signature: str) -> float:
        """Return how long a transaction has been known; the age of an unknown one starts now."""
        self.note(signature)
        return asyncio.get_running_loop().time() - self._since[signature]

    def forget(self, signature: str) -> None:
        """Forget a transaction."""
        self._since.pop(signature, None)


class Broadcaster:
    """Sends transactions and determines their outcomes."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.ages: Ages = Ages()

    async def outcome(
        self,
        signed: SignedTransaction,
        sent: Callable[[], Awaitable[None]] | None = None,
        *,
        operation: str,
        is_new: bool,
        patience_seconds: float = math.inf,
        irreversibly: bool = False,
    ) -> Outcome:
        """Send a stored transaction, repeatedly if necessary, and return its outcome.

        Args:
            signed: the transaction.
            sent: called once, if the transaction was sent and is not final at the next check.
            operation: its purpose, for failpoints.
            is_new: whether it was certainly never sent.
            patience_seconds: how long to wait.
            irreversibly: whether to wait until the outcome is irreversible.

        Raises:
            ChainUnreachableError: `patience_seconds` have passed; the transaction may still land.
        """
        self.ages.note(signed.signature)
        deadline = asyncio.get_running_loop().time() + patience_seconds
        first_seconds = max(FIRST_PAUSE_SECONDS, self._chain.landing_seconds / 4)
        backoff = Backoff(first_seconds, LONGEST_PAUSE_SECONDS)
        is_sent = is_unproven = False
        must_send = is_new
        while True:
            try:
                if must_send:
                    await self._send(signed, operation)
                    is_sent = True
                end, must_send = await self._poll(signed, operation)
                is_unproven = False
                if end is not None and not (irreversibly and may_vanish(end)):
                    if not isinstance(end, Expired):
                        self.ages.forget(signed.signature)
                    return end
            except UnprovenError:
                # Nodes often return a transaction a moment after its status. Later, the status may be false.
                must_send, is_unproven = is_unproven, True
            except ChainUnreachableError:
                # Either the request or the reply was lost: the next check shows which.
                must_send = False
            if is_sent and sent is not None:
                await sent()
                sent = None
            if asyncio.get_running_loop().time() + backoff.seconds > deadline:
                raise ChainUnreachableError("the outcome of a transaction was not known in time")
            await self._chain.wait_for_notice(signed.signature, backoff.seconds)
            backoff.lengthen()

    async def first_poll(
        self, signed: SignedTransaction, operation: str, deadline: float
    ) -> tuple[bool, Outcome | None]:
        """Send a new transaction; return whether that succeeded, and the outcome if it is already known."""
        is_sent, end = False, None
        try:
            async with asyncio.timeout_at(deadline):
                await self._send(signed, operation)
                is_sent = True
                end, _ = await self._poll(signed, operation)
        except (ChainUnreachableError, TimeoutError):
            # The transaction's driver asks again.
            return is_sent, None
        return is_sent, end

    async def _send(self, signed: SignedTransaction, operation: str) -> None:
        """Send a transaction, then wait the usual time until it lands."""
        failpoint(operation, Step.SIGNED)
        await self._chain.send(signed.raw)
        failpoint(operation, Step.SENT)
        if self._chain.landing_seconds:
            await self._chain.wait_for_notice(signed.signature, self._chain.landing_seconds)

    async def _poll(self, signed: SignedTransaction, operation: str) -> tuple[Outcome | None, bool]:
        end, must_send = await self.poll(signed)
        if end is not None:
            failpoint(operation, Step.EXPIRED if isinstance(end, Expired) else Step.LANDED)
        return end, must_send

    async def poll(self, signed: SignedTransaction, find: Find | None = None) -> tuple[Outcome | None, bool]:
        """Check once a transaction that may have been sent, without sending it.

        Returns its outcome if known, and whether to resend the bytes. `find` looks it up; None looks it up by
        its signature.

        Raises:
            ChainUnreachableError: the chain did not respond.
        """
        try:
            return await self._seen(signed, find or partial(by_signature, self._chain, signed))
        except DoubtfulNodeError:
            # The node proves nothing, and resending the bytes is harmless.
            return None, True

    async def _seen(self, signed: SignedTransaction, find: Find) -> tuple[Outcome | None, bool]:
        chain = self._chain
        status = await find(proof_height=None)
        if status is None:
            if not await self._may_have_expired(signed):
                return None, True
            heights = await chain.landing_heights(signed.blockhash, signed.last_valid_block_height)
            if heights is not None:
                # Check again after reading the height: it may have landed in its last valid block.
                status = await find(proof_height=heights[1])
                if status is None and await chain.knows_blocks(*heights):
                    return Expired.EXPIRED, False
            if status is None:
                # Only a node with a longer history can tell.
                log(logger, logging.WARNING, "transaction.forgotten", tx_signature=signed.signature)
                return None, False
        if status.is_refused:
            return Expired.EXPIRED, False
        if not status.is_final:
            return None, False
        landed = Landed(status.is_irreversible, status.chain_signature)
        return status.failure or landed, False

    async def _may_have_expired(self, signed: SignedTransaction) -> bool:
        # Read the height first: the lifetime in seconds is derived from heights.
        has_passed = await self._chain.block_height() > signed.last_valid_block_height
        age_seconds = self.ages.seconds(signed.signature)
        return has_passed and age_seconds >= self._chain.blockhash_life_seconds
