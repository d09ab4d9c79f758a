"""The schedule for checking posted transactions on chain: every few seconds, in real time.

A settled transaction may still disappear, and an expired one may still land.
"""

from typing import Final, Protocol

from agentpay_server.platform.clock import Clock
from agentpay_server.platform.scheduler import Every

LOOK_EVERY_SECONDS: Final = 4.0
"""Several times while a cluster finalizes. Bytes that disappeared can land again for a minute."""


class Watch(Protocol):
    """A watch over transactions."""

    async def poll(self) -> None:
        """Check all watched transactions once."""
        ...


class _WatchSchedule:
    """Runs a watch periodically."""

    def __init__(self, watch: Watch, *, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock
        self._every = Every(LOOK_EVERY_SECONDS)

    async def next_due_us(self) -> int | None:
        """Return when to run next; None on a manual clock before then, since advancing it does not help."""
        return self._every.due_us(self._clock)

    async def run_due(self) -> bool:
        """Run the watch if it is due."""
        if not self._every.is_due:
            return False
        try:
            await self._watch.poll()
        finally:
            self._every.restart()
        return True


class ReorgWatchSchedule(_WatchSchedule):
    """Runs the watch over settled transactions until they are irreversible."""


class LateLandingSchedule(_WatchSchedule):
    """Runs the watch over expired transactions until history rules out that they landed."""
