"""Sends a stored transaction and determines its outcome, only by asking the chain.

The rules below assume that the chain may lose requests and replies, lag, or go away:

1. Only bytes that a commit has stored are sent, and the same bytes are resent for as long as they may land.
2. A missing status proves that a transaction can never land only if three conditions hold. It was read after
the
   block height had passed the transaction's last valid one. The node knows all blocks that could contain the
   transaction: nodes forget after some days, and miss what happens while they are down. And 150 blocks can
   have passed since it was signed, by this server's own clock, because heights are claims of nodes. The other
   proof is a final rejection by the chain.
3. An error of the chain proves nothing. The loop asks again.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Protocol

from attrs import frozen

from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    Chain,
    ChainUnavailableError,
    DoubtfulNodeError,
    Failure,
    SignatureStatus,
    SignedTransaction,
)
from agentpay_server.crash_points import Operation, Step, fault_point
from agentpay_server.logs import log

FIRST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 2.0

_MOST_AGES: Final = 100_000

logger: logging.Logger = logging.getLogger(__name__)


class Expired(Enum):
    """The transaction did not land and never can."""

    EXPIRED = "expired"


@frozen
class Landed:
    """The transaction is final on chain and was successful.

    Attributes:
        is_irreversible: whether it can no longer vanish with the block that it is in.
        chain_signature: its name on chain, where it was found by other means.
    """

    is_irreversible: bool
    chain_signature: str | None = None


Outcome = Landed | Expired | Failure


class Find(Protocol):
    """Asks the chain what became of a transaction; None when it is not there (yet)."""

    async def __call__(self, *, is_for_proof: bool) -> SignatureStatus | None:
        """Ask; `is_for_proof`: whether None is to prove that it is in no block up to the height read last."""
        ...


def may_vanish(end: Outcome) -> bool:
    """Return whether an end may yet be undone."""
    return isinstance(end, Landed) and not end.is_irreversible


class Ages:
    """For how long this process has known transactions, by a monotonic clock.

    Each was signed before that, so its real age is at least this.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, signature: str) -> None:
        """Start the age of a transaction, unless it is known."""
        if signature not in self._since and len(self._since) >= _MOST_AGES:
            # If it is still of interest, its age starts again.
            del self._since[next(iter(self._since))]
        self._since.setdefault(signature, asyncio.get_running_loop().time())

    def seconds(self, signature: str) -> float:
        """Return how long a transaction has been known; an unknown one is known from now on."""
        self.note(signature)
        return asyncio.get_running_loop().time() - self._since[signature]

    def forget(self, signature: str) -> None:
        """Forget a transaction."""
        self._since.pop(signature, None)


class Broadcaster:
    """Sends transactions and determines their outcomes.

    Args:
        chain: the chain they are sent to.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.ages: Ages = Ages()

    async def outcome(
        self,
        signed: SignedTransaction,
        sent: Callable[[], Awaitable[None]] | None = None,
        *,
        operation: Operation,
        is_new: bool,
        patience_seconds: float = math.inf,
        irreversibly: bool = False,
    ) -> Outcome:
        """Send a stored transaction, again if necessary, until its outcome is known, and return that.

        Args:
            signed: the transaction.
            sent: called once if it was handed over and is not final at the next look.
            operation: its purpose.
            is_new: whether it was certainly never sent.
            patience_seconds: how long to keep asking.
            irreversibly: whether to wait until the outcome cannot be undone.

        Raises:
            ChainUnavailableError: the outcome was not known within `patience_seconds`; it may still land.
        """
        self.ages.note(signed.signature)
        deadline = asyncio.get_running_loop().time() + patience_seconds
        pause = max(FIRST_PAUSE_SECONDS, self._chain.landing_seconds / 2)
        is_sent = False
        must_send = is_new
        while True:
            try:
                if must_send:
                    await self._send(signed, operation)
                    is_sent = True
                end, must_send = await self._look(signed, operation)
                if end is not None and not (irreversibly and may_vanish(end)):
                    if not isinstance(end, Expired):
                        self.ages.forget(signed.signature)
                    return end
            except ChainUnavailableError:
                # A reply or a request was lost: the next look shows which.
                must_send = False
            if is_sent and sent is not None:
                await sent()
                sent = None
            if asyncio.get_running_loop().time() + pause > deadline:
                raise ChainUnavailableError("the outcome of a transaction was not known in time")
            await self._chain.wait_for_notice(signed.signature, pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def first_look(
        self, signed: SignedTransaction, operation: Operation, deadline: float
    ) -> tuple[bool, Outcome | None]:
        """Send a new transaction; return whether it was handed over, and its outcome if already known."""
        is_sent, end = False, None
        try:
            async with asyncio.timeout_at(deadline):
                await self._send(signed, operation)
                is_sent = True
                end, _ = await self._look(signed, operation)
        except (ChainUnavailableError, TimeoutError):
            # The driver of the transaction asks again.
            return is_sent, None
        return is_sent, end

    async def _send(self, signed: SignedTransaction, operation: Operation) -> None:
        """Send a transaction, then wait the usual time that it needs to land."""
        fault_point(operation, Step.SIGNED)
        await self._chain.send(signed.raw)
        fault_point(operation, Step.SENT)
        if self._chain.landing_seconds:
            await self._chain.wait_for_notice(signed.signature, self._chain.landing_seconds)

    async def _look(self, signed: SignedTransaction, operation: Operation) -> tuple[Outcome | None, bool]:
        """Return the outcome if it is known, and otherwise whether to resend the bytes."""
        end, must_send = await self.look(signed)
        if end is not None:
            fault_point(operation, Step.EXPIRED if isinstance(end, Expired) else Step.LANDED)
        return end, must_send

    async def look(self, signed: SignedTransaction, find: Find | None = None) -> tuple[Outcome | None, bool]:
        """Look once at a transaction that may have been sent; decide nothing, and send nothing.

        Args:
            signed: the transaction.
            find: asks the chain for it; by its signature if None.

        Returns:
            The outcome if it is known; and whether to resend the bytes.

        Raises:
            ChainUnavailableError: the chain did not respond.
        """
        try:
            return await self._seen(signed, find or self._by_signature(signed.signature))
        except DoubtfulNodeError:
            # Nothing is proved, and nothing forbids resending the bytes.
            return None, True

    def _by_signature(self, signature: str) -> Find:
        async def find(*, is_for_proof: bool) -> SignatureStatus | None:  # noqa: ARG001
            return await self._chain.signature_status(signature)

        return find

    async def _seen(self, signed: SignedTransaction, find: Find) -> tuple[Outcome | None, bool]:
        chain = self._chain
        status = await find(is_for_proof=False)
        if status is None:
            if not await self._may_have_expired(signed):
                return None, True
            # Read once more, now that the height is known: it may have landed in the last block it could.
            status = await find(is_for_proof=True)
        if status is None:
            first_block = max(signed.last_valid_block_height - BLOCKHASH_LIFE_BLOCKS, 0)
            if await chain.knows_blocks(first_block, signed.last_valid_block_height):
                return Expired.EXPIRED, False
            # Only a node with a longer history can know.
            log(logger, logging.WARNING, "transaction.forgotten", signature=signed.signature)
            return None, False
        if status.is_refused:
            return Expired.EXPIRED, False
        if not status.is_final:
            return None, False
        landed = Landed(status.is_irreversible, status.chain_signature)
        return status.failure or landed, False

    async def _may_have_expired(self, signed: SignedTransaction) -> bool:
        """Return whether a transaction can no longer land, by heights and by time."""
        # In this order: the pace is derived from heights.
        has_passed = await self._chain.block_height() > signed.last_valid_block_height
        age_seconds = self.ages.seconds(signed.signature)
        return has_passed and age_seconds >= self._chain.blockhash_life_seconds
