"""Sending a stored transaction, and finding out what became of it, by asking the chain alone.

The rules, each for a reason (the chain may lose requests, lose replies, lag or go away):

1. Only bytes that a commit has stored are sent, and the same bytes again for as long as they may land.
2. A status that is missing counts as proof that a transaction can never land only if it was read after the
   block height had passed the transaction's last valid one, from a chain that knows all blocks that could
   hold it: nodes forget after some days, and miss what happens while they are down. And no sooner than 150
   blocks can have passed since it was signed, by this server's own clock: heights are claims of nodes. A
   chain that says it has refused the transaction for good is proof too.
3. An error of the chain decides nothing. The loop asks again.
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
    """The transaction is final on chain, and did what it says.

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
    """Since when this process has known transactions, by a clock that nobody sets.

    Each was signed before that: whatever it is too young for, it may be too young for by that clock alone.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, signature: str) -> None:
        """Know a transaction from now on, unless it is known."""
        if signature not in self._since and len(self._since) >= _MOST_AGES:
            # It grows old anew, should it still be of interest.
            del self._since[next(iter(self._since))]
        self._since.setdefault(signature, asyncio.get_running_loop().time())

    def seconds(self, signature: str) -> float:
        """Return how long a transaction has been known; from now on if it was not."""
        self.note(signature)
        return asyncio.get_running_loop().time() - self._since[signature]

    def forget(self, signature: str) -> None:
        """Know a transaction no more."""
        self._since.pop(signature, None)


class Broadcaster:
    """Sends transactions and tells their ends.

    Args:
        chain: where they land.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.ages = Ages()

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
        """Send a stored transaction until its end is known, and return that end.

        Args:
            signed: the transaction.
            sent: called once when it was handed over and is not final at the next look.
            operation: what it is for.
            is_new: whether it certainly was never sent.
            patience_seconds: how long to go on asking.
            irreversibly: whether an end that may yet be undone is none.

        Raises:
            ChainUnavailableError: the end was not known within `patience_seconds`; it may still land.
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
                # A reply was lost, or a request: the next look tells.
                must_send = False
            if is_sent and sent is not None:
                await sent()
                sent = None
            if asyncio.get_running_loop().time() + pause > deadline:
                raise ChainUnavailableError("the end of a transaction was not known in time")
            await self._chain.wait_for_notice(signed.signature, pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def first_look(
        self, signed: SignedTransaction, operation: Operation, deadline: float
    ) -> tuple[bool, Outcome | None]:
        """Send a new transaction, and return whether it was handed over, and its end if that is known."""
        is_sent, end = False, None
        try:
            async with asyncio.timeout_at(deadline):
                await self._send(signed, operation)
                is_sent = True
                end, _ = await self._look(signed, operation)
        except (ChainUnavailableError, TimeoutError):
            # Whoever drives it asks again.
            return is_sent, None
        return is_sent, end

    async def _send(self, signed: SignedTransaction, operation: Operation) -> None:
        """Hand a transaction over, and leave it the time that it needs to land."""
        fault_point(operation, Step.SIGNED)
        await self._chain.send(signed.raw)
        fault_point(operation, Step.SENT)
        if self._chain.landing_seconds:
            await self._chain.wait_for_notice(signed.signature, self._chain.landing_seconds)

    async def _look(self, signed: SignedTransaction, operation: Operation) -> tuple[Outcome | None, bool]:
        """Return the end, if it is known, and else whether the bytes should be sent again."""
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
            The end, if it is known; and whether the bytes should be sent again.

        Raises:
            ChainUnavailableError: nothing is known.
        """
        try:
            return await self._seen(signed, find or self._by_signature(signed.signature))
        except DoubtfulNodeError:
            # Nothing is proved, and nothing keeps the bytes from being sent again.
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
            # Nobody but a node with a longer memory can tell.
            log(logger, logging.WARNING, "transaction.forgotten", signature=signed.signature)
            return None, False
        if status.is_refused:
            return Expired.EXPIRED, False
        if not status.is_final:
            return None, False
        landed = Landed(status.is_irreversible, status.chain_signature)
        return status.failure or landed, False

    async def _may_have_expired(self, signed: SignedTransaction) -> bool:
        """Return whether heights say that a transaction can land no more, and time allows it."""
        # In this order: the pace is learned from heights.
        has_passed = await self._chain.block_height() > signed.last_valid_block_height
        age_seconds = self.ages.seconds(signed.signature)
        return has_passed and age_seconds >= self._chain.blockhash_life_seconds
