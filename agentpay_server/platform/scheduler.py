"""The scheduler: runs due work by the server's clock; and the pace of polls and retries.

On a running clock, each kind of work has a loop that waits for its next due time, or for a notification that
it changed. On a manual clock only what is due by real time runs automatically: `advance` goes from one due
time to the next and runs the due work (interface SB5).
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from agentpay.contract.errors import ErrorCode
from agentpay_server.platform.clock import SECOND_US, Clock, ManualClock
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import log
from agentpay_server.platform.tasks import Wakeup


def now_seconds() -> float:
    """Return the event loop's time."""
    return asyncio.get_running_loop().time()


class Every:
    """When a poll is due: at once, and then every so many seconds of the event loop's time.

    A wrong reading of the machine's clock, for a moment, neither delays nor repeats it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at: float | None = None

    @property
    def is_due(self) -> bool:
        return self.wait_us == 0

    @property
    def wait_us(self) -> int:
        """The microseconds until it is due."""
        if self._at is None:
            return 0
        return max(math.ceil((self._at - now_seconds()) * SECOND_US), 0)

    def due_us(self, clock: Clock) -> int | None:
        """Return when it is due by a clock; None on a manual one before then: advancing it has no effect."""
        wait_us = self.wait_us
        return None if wait_us and clock.is_manual else clock.now_us() + wait_us

    def restart(self, seconds: float | None = None) -> None:
        """Begin the next interval, or one of another length."""
        self._at = now_seconds() + (self._seconds if seconds is None else seconds)

    def hasten(self, seconds: float) -> None:
        """Make it due within so many seconds."""
        if self.wait_us > seconds * SECOND_US:
            self.restart(seconds)


class Backoff:
    """The pauses between retries: each is twice as long as the one before, up to the longest.

    With `at_once`, the first retry comes without a pause.
    """

    def __init__(self, first_seconds: float, longest_seconds: float, *, at_once: bool = False) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self.seconds: float = 0.0 if at_once else first_seconds

    def lengthen(self) -> None:
        """Set `seconds` to the next pause."""
        self.seconds = min(max(self.seconds * 2, self._first_seconds), self._longest_seconds)

    def restart(self) -> None:
        """Begin with the first pause again."""
        self.seconds = self._first_seconds


_LONGEST_WAIT_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 1.0

logger: logging.Logger = logging.getLogger(__name__)


class Scheduled(Protocol):
    """Work that is due at stored times."""

    async def next_due_us(self) -> int | None:
        """Return when the next work is due, in microseconds; None if there is none."""
        ...

    async def run_due(self) -> bool:
        """Run as much of the due work as there is room for; return whether anything was done.

        Work that cannot be done is deferred.
        """
        ...


class AtOnce(Scheduled, Protocol):
    """Work that is due by real time on a manual clock too."""

    def is_waiting_outside(self) -> bool:
        """Return whether it waits for an external receiver, which may call the server."""
        ...

    async def settle(self) -> None:
        """Wait for the work in progress, before the clock is advanced.

        Raises:
            Problem: `clock_moving`, if it takes long.
        """
        ...


class AddedWork:
    """Work that is added after the server's start, such as that of a test's sellers."""

    def __init__(self) -> None:
        self._scheduled: list[Scheduled] = []

    def add(self, work: Scheduled) -> None:
        self._scheduled.append(work)

    def remove(self, work: Scheduled) -> None:
        if work in self._scheduled:
            self._scheduled.remove(work)

    async def next_due_us(self) -> int | None:
        dues = [due for work in self._scheduled if (due := await work.next_due_us()) is not None]
        return min(dues, default=None)

    async def run_due(self) -> bool:
        return any([await work.run_due() for work in self._scheduled])


class Scheduler:
    """Runs all work that is due.

    `scheduled` are the kinds of work, in their order if several are due at the same time. `note_time` stores
    the time that a manual clock is about to reach, so that a restart cannot set it back. On a running clock,
    work that `may_run` refuses waits until it is accepted. On a manual one, `at_once` does not wait for it.
    """

    def __init__(
        self,
        clock: Clock,
        scheduled: Sequence[Scheduled],
        wakeup: Wakeup,
        note_time: Callable[[int], Awaitable[None]],
        *,
        at_once: AtOnce | None = None,
        may_run: Callable[[Scheduled], bool] = lambda _: True,
    ) -> None:
        self._at_once = at_once
        self._clock = clock
        self._note_time = note_time
        self._may_run = may_run
        self._scheduled = scheduled
        self._wakeup = wakeup
        self._advancing = asyncio.Lock()
        self._next_checks: dict[Scheduled, float] = {}

    async def run(self) -> None:
        """Run due work, each kind independently; on a manual clock only what is due by real time."""
        work: Sequence[Scheduled] = self._scheduled
        if self._clock.is_manual:
            work = [] if self._at_once is None else [self._at_once]
        await asyncio.gather(*(self._serve(each, self._wakeup.listener()) for each in work))

    def lag_seconds(self) -> float:
        """Return for how long the latest kind of work has failed to check for due work.

        Waiting, for example for a slow receiver, is no lag.
        """
        now = asyncio.get_running_loop().time()
        return max((now - check_at for check_at in self._next_checks.values() if check_at < now), default=0.0)

    async def advance(self, duration_us: int) -> None:
        """Advance a manual clock, and return once everything that falls due has run, in order.

        Raises `clock_moving` while another advance or a first attempt waits for an event receiver, because
        the caller may be that receiver, and would wait for itself.
        """
        clock = self._clock
        if not isinstance(clock, ManualClock):
            raise Problem(
                ErrorCode.CLOCK_NOT_MANUAL,
                "The clock is not manual.",
            )
        if self._advancing.locked() and self._at_once is not None and self._at_once.is_waiting_outside():
            raise Problem(
                ErrorCode.CLOCK_MOVING,
                "Another advance is in progress and waits for a webhook receiver.",
            )
        async with self._advancing:
            if self._at_once is not None:
                await self._at_once.settle()
            target_us = clock.now_us() + duration_us
            while (due_us := await self._next_due_us()) is not None and due_us <= target_us:
                await self._move(clock, due_us)
                done = [await work.run_due() for work in self._scheduled]
                if not any(done):
                    # Another server runs the due work.
                    await asyncio.sleep(_PAUSE_SECONDS)
            await self._move(clock, target_us)

    async def _move(self, clock: ManualClock, now_us: int) -> None:
        if now_us > clock.now_us():
            await self._note_time(now_us)
            clock.move_to(now_us)

    async def _next_due_us(self) -> int | None:
        dues = [due for work in self._scheduled if (due := await work.next_due_us()) is not None]
        return min(dues, default=None)

    async def _serve(self, work: Scheduled, changed: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        self._next_checks[work] = loop.time()
        while True:
            changed.clear()
            try:
                seconds = await self._turn(work)
            except Exception as error:  # noqa: BLE001 - whatever it is, other work continues
                log(logger, logging.ERROR, "work.failed", exception=error, worker=type(work).__name__)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._next_checks[work] = loop.time() + seconds
            if seconds:
                await _wait(changed, seconds)
                self._next_checks[work] = loop.time()

    async def _turn(self, work: Scheduled) -> float:
        """Return the seconds until the next check."""
        if not self._may_run(work):
            return _PAUSE_SECONDS
        due_us = await work.next_due_us()
        if due_us is None:
            return _LONGEST_WAIT_SECONDS
        if due_us <= self._clock.now_us():
            return 0.0 if await work.run_due() else _PAUSE_SECONDS
        return min((due_us - self._clock.now_us()) / SECOND_US, _LONGEST_WAIT_SECONDS)


async def _wait(changed: asyncio.Event, seconds: float) -> None:
    # Not `asyncio.wait_for`, which up to Python 3.11 can lose a cancellation at the end of its wait.
    try:
        async with asyncio.timeout(max(seconds, 0)):
            await changed.wait()
    except TimeoutError:
        return
