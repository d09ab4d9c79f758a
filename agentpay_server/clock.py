"""Time as a parameter: what the service calls now, in integer microseconds since 1970, UTC.

Every rule that depends on time takes it from a `Clock`, so that a test can stand still, step over 24 hours in
a moment, and see the same thing twice. Waits on the network are not the clock's business: they are real.
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
"""The clock of the machine that a server runs on, in microseconds since 1970, UTC.

Tasks inherit the context of the task that started them, so a value set around the start of a server holds for
that server alone. The simulator runs several servers in one process this way, each on a clock of its own.
"""


class Clock(Protocol):
    """Tells the time."""

    @property
    def is_manual(self) -> bool:
        """Whether it stands still until it is moved."""
        ...

    def now_us(self) -> int:
        """Return microseconds since 1970, UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    @property
    def is_manual(self) -> bool:
        """It is not."""
        return False

    def now_us(self) -> int:
        """Return microseconds since 1970, UTC."""
        return MACHINE_NOW_US.get()()


class ManualClock:
    """A clock that stands still until it is moved, and never goes back.

    Args:
        start: the time that it shows at first, with a UTC offset; cut to milliseconds.
    """

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError("a clock starts at a time with a UTC offset, such as datetime(…, tzinfo=UTC)")
        self._now_us = to_us(start) // 1_000 * 1_000

    @property
    def is_manual(self) -> bool:
        """It is."""
        return True

    def now_us(self) -> int:
        """Return microseconds since 1970, UTC."""
        return self._now_us

    def move_to(self, now_us: int) -> None:
        """Show `now_us` from now on; an earlier time than is shown changes nothing."""
        self._now_us = max(self._now_us, now_us)

    def set_to(self, now_us: int) -> None:
        """Show `now_us`, whatever was shown before: where a server that starts again left off."""
        self._now_us = now_us

    def capture(self) -> Callable[[], None]:
        """Return what sets it back to the time that it shows now."""
        now_us = self._now_us
        return lambda: self.set_to(now_us)


def manual_clock(start: datetime | None = None) -> ManualClock:
    """Return a clock that stands still, at `start` or at the time of the call."""
    return ManualClock(datetime.now(UTC) if start is None else start)


def real_now_us() -> int:
    """Return real time, for leases: they must run out even where the server's clock stands still."""
    return MACHINE_NOW_US.get()()


def to_us(moment: datetime) -> int:
    """Return microseconds since 1970 of a moment that has a UTC offset, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(moment_us: int) -> datetime:
    """Return the moment that lies `moment_us` microseconds after 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=moment_us)


def end_of_millisecond_us(moment: datetime) -> int:
    """Return the last microsecond that is shown as `moment`: what is shown as that time is not after it."""
    return to_us(moment) // 1_000 * 1_000 + 999


LATEST_US: Final = to_us(datetime.max.replace(tzinfo=UTC))
"""The last moment that a timestamp can show."""
