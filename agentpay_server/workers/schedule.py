"""The schedule: runs due work when the clock says so.

On a running clock a loop waits for the next due time, or for word that it has changed. On a manual clock
nothing runs by itself: `advance` moves from one due time to the next and runs what is due at each (decisions,
"What stands beside /v1").
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from agentpay.contract.errors import ErrorCode
from agentpay_server.clock import SECOND_US, Clock, ManualClock
from agentpay_server.domain.problems import Problem

_LONGEST_WAIT_SECONDS: Final = 60.0
_PAUSE_AFTER_ERROR_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)


class Worker(Protocol):
    """Work that falls due at stored times."""

    async def next_due_us(self) -> int | None:
        """Return when work is due next; None when there is none."""

    async def run_due(self) -> None:
        """Do what is due now; what cannot be done is given a later due time."""


class Schedule:
    """Runs the due work of all workers.

    Args:
        clock: tells what is due.
        workers: in the order in which they run when several are due at one moment.
        wakeup: set by whoever changes a due time.
    """

    def __init__(self, clock: Clock, workers: Sequence[Worker], wakeup: asyncio.Event) -> None:
        self._clock = clock
        self._workers = workers
        self._wakeup = wakeup
        self._advancing = asyncio.Lock()

    async def run(self) -> None:
        """Run due work for as long as the server lives, on a running clock."""
        while True:
            self._wakeup.clear()
            try:
                due_us = await self._next_due_us()
                if due_us is not None and due_us <= self._clock.now_us():
                    await self._run_due()
                    continue
                await self._wait_until(due_us)
            except Exception:
                logger.exception("due work failed; it is tried again")
                await asyncio.sleep(_PAUSE_AFTER_ERROR_SECONDS)

    async def advance(self, duration_us: int) -> None:
        """Move a manual clock, run what falls due on the way in order, and return when all of it has run.

        Args:
            duration_us: how far to move, in microseconds; 0 runs what is due now.

        Raises:
            Problem: `clock_not_manual`.
        """
        clock = self._clock
        if not isinstance(clock, ManualClock):
            raise Problem(
                ErrorCode.CLOCK_NOT_MANUAL,
                "The clock runs by itself; start the server with a manual clock to move it.",
            )
        async with self._advancing:
            target_us = clock.now_us() + duration_us
            while (due_us := await self._next_due_us()) is not None and due_us <= target_us:
                clock.move_to(due_us)
                await self._run_due()
            clock.move_to(target_us)

    async def _next_due_us(self) -> int | None:
        dues = [due for worker in self._workers if (due := await worker.next_due_us()) is not None]
        return min(dues, default=None)

    async def _run_due(self) -> None:
        for worker in self._workers:
            await worker.run_due()

    async def _wait_until(self, due_us: int | None) -> None:
        seconds = _LONGEST_WAIT_SECONDS
        if due_us is not None:
            seconds = min((due_us - self._clock.now_us()) / SECOND_US, seconds)
        try:
            await asyncio.wait_for(self._wakeup.wait(), max(seconds, 0))
        except TimeoutError:
            return
