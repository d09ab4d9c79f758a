"""The schedule for checking booked transactions on chain: every few seconds, in real time.

A settled transaction may still disappear, and an expired one may still land.
"""

from typing import Final, Protocol

from agentpay_server.clock import SECOND_US, Clock, real_now_us

LOOK_EVERY_US: Final = 4 * SECOND_US
"""Several times while a cluster finalizes. Bytes that disappeared can land again for a minute."""


class Watch(Protocol):
    """A watch over transactions."""

    async def look(self) -> None:
        """Check all watched transactions once."""
        ...


class _WatchSchedule:
    """Runs a watch periodically."""

    def __init__(self, watch: Watch, *, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock
        self._next_look_us = 0

    async def next_due_us(self) -> int | None:
        """Return when to run next; None on a manual clock before then, since advancing it does not help."""
        wait_us = max(self._next_look_us - real_now_us(), 0)
        return None if wait_us and self._clock.is_manual else self._clock.now_us() + wait_us

    async def run_due(self) -> bool:
        """Run the watch if it is due."""
        if real_now_us() < self._next_look_us:
            return False
        try:
            await self._watch.look()
        finally:
            self._next_look_us = real_now_us() + LOOK_EVERY_US
        return True


class ReorgWatchSchedule(_WatchSchedule):
    """Runs the watch over settled transactions until they are irreversible."""


class LateLandingSchedule(_WatchSchedule):
    """Runs the watch over expired transactions until history rules out that they landed."""
