"""Compares this server's clock with the database's.

Servers that share a database must agree on the time: the daily limit is a window of time, and a spend that
a wrong clock dates into the future moves that window past the earlier spends. So a server whose clock differs
by more than `MOST_DIFFERENCE_US` decides, signs and posts nothing until the clocks agree again.

The database's clock is read every `CHECK_EVERY_US`. In between it is extrapolated with the machine's
monotonic clock, so a clock that is set to another time is noticed at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay_server.database.runner import DatabaseUnavailableError
from agentpay_server.platform.clock import SECOND_US, Clock
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem
from agentpay_server.platform.logs import log

CHECK_EVERY_US: Final = 10 * SECOND_US
WARN_DIFFERENCE_US: Final = 2 * SECOND_US
MOST_DIFFERENCE_US: Final = 10 * SECOND_US

_RETRY_US: Final = SECOND_US
_EXACT_SECONDS: Final = 1.0
"""A reading that took longer does not replace an exact one: it can hide a difference of its own duration."""

logger: logging.Logger = logging.getLogger(__name__)


@frozen
class _Reading:
    """The database's time, read between two times of the event loop."""

    database_us: int
    before: float
    after: float

    @property
    def is_exact(self) -> bool:
        return self.after - self.before <= _EXACT_SECONDS

    def difference_us(self, now_us: int, now: float) -> int:
        """Return by how much `now_us` is certainly ahead of the database's clock; negative if behind."""
        earliest_us = self.database_us + int((now - self.after) * SECOND_US)
        latest_us = self.database_us + int((now - self.before) * SECOND_US)
        return max(now_us - latest_us, 0) + min(now_us - earliest_us, 0)


class ClockCheck:
    """Knows whether this server's clock agrees with the database's.

    Args:
        clock: the server's clock.
        database_now: reads the database's clock, in microseconds since 1970, UTC. None if there is nothing to
            compare: the database has no clock of its own, or the server's clock is manual.
    """

    def __init__(self, clock: Clock, database_now: Callable[[], Awaitable[int]] | None = None) -> None:
        self._clock = clock
        self._database_now = None if clock.is_manual else database_now
        self._reading: _Reading | None = None
        self._next_check = 0.0
        self._was_beyond_us = 0

    def agrees(self, now_us: int | None = None) -> bool:
        """Return whether a time of the server's clock, by default the current one, may be relied on."""
        return abs(self.difference_us(now_us)) <= MOST_DIFFERENCE_US

    def require(self, now_us: int | None = None) -> None:
        """Refuse what relies on a time of the server's clock, by default the current one.

        Raises:
            Problem: `service_unavailable`: the clocks differ. Nothing was done.
        """
        if not self.agrees(now_us):
            raise clocks_differ()

    def difference_us(self, now_us: int | None = None) -> int:
        """Return by how much the server's clock is ahead of the database's; negative if it is behind."""
        if self._reading is None:
            return 0
        now_us = self._clock.now_us() if now_us is None else now_us
        return self._reading.difference_us(now_us, asyncio.get_running_loop().time())

    async def check(self) -> None:
        """Read the database's clock, and log a difference when it begins, grows or ends.

        Raises:
            DatabaseUnavailableError: the database did not respond.
        """
        if self._database_now is None:
            return
        loop = asyncio.get_running_loop()
        before = loop.time()
        reading = _Reading(await self._database_now(), before, loop.time())
        if self._reading is None or reading.is_exact or not self._reading.is_exact:
            self._reading = reading
        self._report()

    async def next_due_us(self) -> int | None:
        """Return when to read the database's clock next; None if there is nothing to compare."""
        if self._database_now is None:
            return None
        wait_seconds = max(self._next_check - asyncio.get_running_loop().time(), 0)
        return self._clock.now_us() + int(wait_seconds * SECOND_US)

    async def run_due(self) -> bool:
        """Read the database's clock if it is time. If the database does not respond, the next run retries."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._next_check:
            return False
        # Retry soon, so that a server whose clock was corrected resumes its work.
        self._next_check = loop.time() + _RETRY_US / SECOND_US
        try:
            await self.check()
        except DatabaseUnavailableError:
            return False
        if self.agrees():
            self._next_check = loop.time() + CHECK_EVERY_US / SECOND_US
        return True

    def _report(self) -> None:
        difference_us = self.difference_us()
        beyond_us = max(
            (limit for limit in (WARN_DIFFERENCE_US, MOST_DIFFERENCE_US) if abs(difference_us) > limit),
            default=0,
        )
        if beyond_us == self._was_beyond_us:
            return
        self._was_beyond_us = beyond_us
        if beyond_us:
            is_refusing = beyond_us == MOST_DIFFERENCE_US
            log(
                logger,
                logging.ERROR if is_refusing else logging.WARNING,
                "clock.differs",
                ahead_seconds=round(difference_us / SECOND_US, 3),
                signing_stopped=is_refusing,
            )
        else:
            log(logger, logging.INFO, "clock.agrees", ahead_seconds=round(difference_us / SECOND_US, 3))


def clocks_differ() -> Problem:
    """The clocks of this server and its database differ by more than 10 s. Nothing was done."""
    return Problem(
        ErrorCode.SERVICE_UNAVAILABLE,
        f"This server's clock differs from its database's by more than {MOST_DIFFERENCE_US // SECOND_US} s, "
        "so it signs nothing, and nothing was done. Synchronize the clocks of both machines; a retry under "
        "the same idempotency_key is safe.",
        says_what_to_do=True,
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )
