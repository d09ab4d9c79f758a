"""The pace of polls, which are due in real time, and of retries."""

import asyncio
import math

from agentpay_server.platform.clock import SECOND_US, Clock


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
