"""Time as a parameter: integer microseconds since 1970, UTC.

Every rule that depends on time takes it from a `Clock`, so that tests can pause and advance it. Network
timeouts use real time.
"""

import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from agentpay_server.platform.capturing import Restore, captured

SECOND_US: Final = 1_000_000
HOUR_US: Final = 3_600 * SECOND_US
DAY_US: Final = 24 * HOUR_US

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _system_now_us() -> int:
    return time.time_ns() // 1_000


MACHINE_NOW_US: Final[ContextVar[Callable[[], int]]] = ContextVar("MACHINE_NOW_US", default=_system_now_us)
"""The machine's clock, in microseconds since 1970, UTC.

Tasks inherit their starter's context, so a value set around a server's start applies to that server only: the
simulator runs several servers in one process.
"""


class Clock(Protocol):
    @property
    def is_manual(self) -> bool:
        """Whether it is paused between advances."""
        ...

    def now_us(self) -> int: ...


class SystemClock:
    @property
    def is_manual(self) -> bool:
        return False

    def now_us(self) -> int:
        return MACHINE_NOW_US.get()()


class ManualClock:
    """Paused until it is advanced. `start` has a UTC offset; it is truncated to milliseconds."""

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError("a clock starts at a time with a UTC offset, such as datetime(…, tzinfo=UTC)")
        self._now_us = to_us(start) // 1_000 * 1_000

    @property
    def is_manual(self) -> bool:
        return True

    def now_us(self) -> int:
        return self._now_us

    def move_to(self, now_us: int) -> None:
        """Never go back."""
        self._now_us = max(self._now_us, now_us)

    def set_to(self, now_us: int) -> None:
        """Set the time, even if it is earlier, to continue after a restart."""
        self._now_us = now_us

    def capture(self) -> Restore:
        return captured(self, "_now_us")


def manual_clock(start: datetime | None = None) -> ManualClock:
    return ManualClock(datetime.now(UTC) if start is None else start)


def real_now_us() -> int:
    """For leases, which must expire even if the server's clock is paused."""
    return MACHINE_NOW_US.get()()


def to_us(moment: datetime) -> int:
    """Convert exactly; the time has a UTC offset."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(moment_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=moment_us)


def from_us_up(moment_us: int) -> datetime:
    """Convert, rounded up to the milliseconds of the wire format: who waits until then is never too early."""
    return from_us(-(-moment_us // 1_000) * 1_000)


def end_of_millisecond_us(moment: datetime) -> int:
    """Return the last microsecond that is displayed as `moment`."""
    return to_us(moment) // 1_000 * 1_000 + 999


LATEST_US: Final = to_us(datetime.max.replace(tzinfo=UTC))
"""The last time that a timestamp can represent."""
