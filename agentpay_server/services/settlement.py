"""Bringing signed transactions to their end: landed, failed or expired, and never a guess in between.

The rules, each for a reason (the chain may lose requests, lose replies, lag or go away):

1. Only bytes that a commit has stored are sent, and the same bytes again for as long as they may land.
2. A status that is missing counts as proof that a transaction can never land only if it was read after the
   block height had passed the transaction's last valid one, from a chain that knows all blocks that could
   hold it: nodes forget after some days, and miss what happens while they are down. And no sooner than 150
   blocks can have passed since it was signed, by this server's own clock: heights are claims of nodes. A
   chain that says it has refused the transaction for good is proof too.
3. An error of the chain decides nothing. The loop asks again.

Whoever needs the end waits for it; how long is the waiter's choice, and giving up on waiting stops nothing.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from attrs import frozen

from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    ChainUnavailableError,
    DoubtfulNodeError,
    Failure,
    SignedTransaction,
)
from agentpay_server.context import Context
from agentpay_server.crash_points import Operation, Step, fault_point
from agentpay_server.logs import log

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

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
    """

    is_irreversible: bool


Outcome = Landed | Expired | Failure


class Steps(Protocol, Generic[T_co]):
    """What becomes of a thing that a signed transaction settles, at each end that the transaction can have.

    Every step is one unit of work and safe to repeat: two drivers of one subject, here or in two processes,
    do no harm.
    """

    @property
    def operation(self) -> Operation:
        """What the transaction is for, for fault points."""
        ...

    async def sent(self) -> None:
        """The transaction was handed over, and is not final yet."""
        ...

    async def landed(self, signed: SignedTransaction, end: Landed) -> T_co:
        """Book that it is done."""
        ...

    async def failed(self, signed: SignedTransaction, failure: Failure) -> T_co:
        """Book that it moved nothing."""
        ...

    async def expired(self, signed: SignedTransaction) -> "SignedTransaction | Ended[T_co]":
        """Store a newly signed transaction and return it, or book that there will be none.

        Raises:
            ChainUnavailableError: neither was done; the transaction is to be looked at again.
        """
        ...


@frozen
class Ended(Generic[T_co]):
    """A subject that has come to its end without another transaction."""

    result: T_co


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


async def _none_earlier(_: str) -> None:
    """Look at nothing, where what has expired has provably expired."""


class Settlement:
    """Drives subjects to their end, one driver each in this process."""

    def __init__(self, context: Context) -> None:
        self._chain = context.chain
        self._tasks = context.tasks
        self._drivers: dict[str, asyncio.Task[Any]] = {}
        self._under_way: set[str] = set()
        self._ages = Ages()
        self._look_at_earlier: Callable[[str], Awaitable[None]] = _none_earlier

    def watch_earlier(self, look: Callable[[str], Awaitable[None]]) -> None:
        """Have the expired transactions of a subject looked at before its newest one ends without landing.

        Args:
            look: given a subject, books those of its earlier transactions that have landed after all. What is
                booked for the newest one then changes nothing that a landing has changed.
        """
        self._look_at_earlier = look

    def stop_driving(self, subject: str) -> None:
        """Leave a subject alone that has come to its end in another way; who waits for it reads it again."""
        driver = self._drivers.pop(subject, None)
        if driver is not None:
            driver.cancel()

    @property
    def driven(self) -> Collection[str]:
        """The subjects that are driven here."""
        return self._drivers.keys()

    def is_under_way(self, signature: str) -> bool:
        """Return whether a transaction is that of a subject that is brought to its end here.

        All that it moves, on both sides, is then booked by the subject's steps.
        """
        return signature in self._under_way

    async def settle(
        self, subject: str, signed: SignedTransaction, steps: Steps[T], *, is_new: bool, deadline: float
    ) -> T | None:
        """Bring `subject` to its end and return the result, or None when that takes longer; it goes on then.

        Args:
            subject: identifier of what the transaction is for.
            signed: its newest transaction, as it is stored.
            steps: what to book at each end.
            is_new: whether the transaction was stored just now, by this call's caller: it is sent at once,
                without asking first whether it is there already.
            deadline: until when to wait, in the event loop's time.
        """
        self._ages.note(signed.signature)
        if is_new and subject not in self._drivers:
            self._under_way.add(signed.signature)
            # Most often one look is enough, and nobody has to be started for the rest.
            try:
                is_sent, end = await self._first_look(signed, steps.operation, deadline)
                if isinstance(end, Landed | Failure):
                    result = await self._booked(subject, signed, steps, end)
                    self._under_way.discard(signed.signature)
                    self._ages.forget(signed.signature)
                    return result
                if is_sent:
                    await steps.sent()
            except ChainUnavailableError:
                # What became of an earlier transaction of the subject is not known now: it is driven on.
                pass
            except Exception as error:  # noqa: BLE001 - it is stored and may be on its way: it is driven on
                log(logger, logging.ERROR, "driver.repeats", exception=error, signature=signed.signature)
        driver = self.drive(subject, signed, steps)
        remaining_seconds = max(deadline - asyncio.get_running_loop().time(), 0)
        # A server that stops lets nobody wait: the subject is taken up at the next start.
        waiting = (driver, self._tasks.closing)
        await asyncio.wait(waiting, timeout=remaining_seconds, return_when=asyncio.FIRST_COMPLETED)
        return driver.result() if driver.done() and not driver.cancelled() else None

    def drive(self, subject: str, signed: SignedTransaction, steps: Steps[T]) -> "asyncio.Task[T]":
        """Return the task that brings `subject` to its end, started if nobody drives it yet.

        Args:
            subject: identifier of what the transaction is for.
            signed: its newest transaction, as it is stored; it may have been sent before.
            steps: what to book at each end.
        """
        running = self._drivers.get(subject)
        # One that is done is there for a turn of the loop yet, and may have driven the subject's step before.
        if running is None or running.done():
            running = self._tasks.start(self._to_its_end(subject, signed, steps))
            self._drivers[subject] = running
            running.add_done_callback(lambda driver: self._ended(subject, driver))
        # A subject has one kind of steps, whoever asks first.
        return cast("asyncio.Task[T]", running)

    def _ended(self, subject: str, driver: "asyncio.Task[Any]") -> None:
        if self._drivers.get(subject) is driver:
            del self._drivers[subject]
        if not driver.cancelled() and (error := driver.exception()) is not None:
            # What it drove is stored, and is taken up again.
            log(logger, logging.ERROR, "driver.failed", exception=error, subject=subject)

    async def _to_its_end(self, subject: str, signed: SignedTransaction, steps: Steps[T]) -> T:
        """Drive a stored transaction, and those that are signed in its place, until there is an end."""
        pause, is_new = 0.0, False
        while True:
            self._under_way.add(signed.signature)
            try:
                following = await self._once(subject, signed, steps, is_new=is_new)
            except Exception as error:  # noqa: BLE001 - whatever it is, it decides nothing about the money
                log(logger, logging.ERROR, "driver.repeats", exception=error, signature=signed.signature)
            else:
                self._under_way.discard(signed.signature)
                if isinstance(following, Ended):
                    self._ages.forget(signed.signature)
                    return following.result
                is_new = following.signature != signed.signature
                if is_new:
                    self._ages.forget(signed.signature)
                signed = following
            # Once in a while a transaction expires. One after the other means that the chain takes none.
            await asyncio.sleep(pause)
            pause = min(max(pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)

    async def _once(
        self, subject: str, signed: SignedTransaction, steps: Steps[T], *, is_new: bool
    ) -> SignedTransaction | Ended[T]:
        """Bring one transaction to its end, and return what follows: itself, to look at it again."""
        outcome = await self.outcome(signed, steps.sent, operation=steps.operation, is_new=is_new)
        try:
            if isinstance(outcome, Expired):
                await self._look_at_earlier(subject)
                return await steps.expired(signed)
            return Ended(await self._booked(subject, signed, steps, outcome))
        except ChainUnavailableError:
            # What was proved is proved again, before another is signed or anything is given back.
            return signed

    async def _booked(
        self, subject: str, signed: SignedTransaction, steps: Steps[T], end: Landed | Failure
    ) -> T:
        """Book an end, and return what the steps return for it."""
        if isinstance(end, Landed):
            result = await steps.landed(signed, end)
        else:
            # It may have failed because an earlier one has landed.
            await self._look_at_earlier(subject)
            result = await steps.failed(signed, end)
        fault_point(steps.operation, Step.BOOKED)
        return result

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
        self._ages.note(signed.signature)
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
                if end is not None and not (irreversibly and end == Landed(is_irreversible=False)):
                    if not isinstance(end, Expired):
                        self._ages.forget(signed.signature)
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

    async def _first_look(
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

    async def look(self, signed: SignedTransaction) -> tuple[Outcome | None, bool]:
        """Look once at a transaction that may have been sent; decide nothing, and send nothing.

        Returns:
            The end, if it is known; and whether the bytes should be sent again.

        Raises:
            ChainUnavailableError: nothing is known.
        """
        try:
            return await self._seen(signed)
        except DoubtfulNodeError:
            # Nothing is proved, and nothing keeps the bytes from being sent again.
            return None, True

    async def _seen(self, signed: SignedTransaction) -> tuple[Outcome | None, bool]:
        chain = self._chain
        status = await chain.signature_status(signed.signature)
        if status is None:
            if not await self._may_have_expired(signed):
                return None, True
            # Read once more, now that the height is known: it may have landed in the last block it could.
            status = await chain.signature_status(signed.signature)
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
        return status.failure or Landed(is_irreversible=status.is_irreversible), False

    async def _may_have_expired(self, signed: SignedTransaction) -> bool:
        """Return whether heights say that a transaction can land no more, and time allows it."""
        # In this order: the pace is learned from heights.
        has_passed = await self._chain.block_height() > signed.last_valid_block_height
        age_seconds = self._ages.seconds(signed.signature)
        return has_passed and age_seconds >= self._chain.blockhash_life_seconds
