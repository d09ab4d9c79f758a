"""Time as a parameter: the service's current time, in integer microseconds since 1970, UTC.

Every rule that depends on time takes it from a `Clock`, so that tests can pause and advance time, and are
repeatable. Network timeouts use real time.
"""

import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

SECOND_US: Final = 1_000_000
HOUR_US: Final = 3_600 * SECOND_US
DAY_US: Final = 24 * HOUR_US

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _system_now_us() -> int:
    return time.time_ns() // 1_000


MACHINE_NOW_US: Final[ContextVar[Callable[[], int]]] = ContextVar("MACHINE_NOW_US", default=_system_now_us)
"""The machine's clock, in microseconds since 1970, UTC.

Tasks inherit their starter's context, so a value set around a server's start applies to that server only. The
simulator uses this to run several servers in one process, each with its own clock.
"""


class Clock(Protocol):
    """A source of the time."""

    @property
    def is_manual(self) -> bool:
        """Whether it is paused between advances."""
        ...

    def now_us(self) -> int:
        """Return microseconds since 1970, UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    @property
    def is_manual(self) -> bool:
        """See `Clock`."""
        return False

    def now_us(self) -> int:
        """See `Clock`."""
        return MACHINE_NOW_US.get()()


class ManualClock:
    """A clock that is paused until it is advanced, and never goes back.

    Args:
        start: the initial time, with a UTC offset; truncated to milliseconds.
    """

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError("a clock starts at a time with a UTC offset, such as datetime(…, tzinfo=UTC)")
        self._now_us = to_us(start) // 1_000 * 1_000

    @property
    def is_manual(self) -> bool:
        """See `Clock`."""
        return True

    def now_us(self) -> int:
        """See `Clock`."""
        return self._now_us

    def move_to(self, now_us: int) -> None:
        """Set the time to `now_us`, unless that is earlier than the current time."""
        self._now_us = max(self._now_us, now_us)

    def set_to(self, now_us: int) -> None:
        """Set the time to `now_us`, even if it is earlier, to continue after a restart."""
        self._now_us = now_us

    def capture(self) -> Callable[[], None]:
        """Return a function that restores the current time."""
        now_us = self._now_us
        return lambda: self.set_to(now_us)


def manual_clock(start: datetime | None = None) -> ManualClock:
    """Return a paused clock at `start`, by default the current time."""
    return ManualClock(datetime.now(UTC) if start is None else start)


def real_now_us() -> int:
    """Return real time, for leases, which must expire even if the server's clock is paused."""
    return MACHINE_NOW_US.get()()


def to_us(moment: datetime) -> int:
    """Convert a time with a UTC offset to microseconds since 1970, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(moment_us: int) -> datetime:
    """Convert microseconds since 1970 to a time in UTC."""
    return _EPOCH + timedelta(microseconds=moment_us)


def end_of_millisecond_us(moment: datetime) -> int:
    """Return the last microsecond that is displayed as `moment`."""
    return to_us(moment) // 1_000 * 1_000 + 999


LATEST_US: Final = to_us(datetime.max.replace(tzinfo=UTC))
"""The last time that a timestamp can represent."""
