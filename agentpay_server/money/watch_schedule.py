"""The schedule for checking booked transactions on chain: every few seconds, in real time.

A settled transaction may still disappear, and an expired one may still land.
"""

from typing import Final, Protocol

from agentpay_server.clock import SECOND_US, Clock, real_now_us

LOOK_EVERY_US: Final = 4 * SECOND_US
"""Several times while a cluster finalizes. Bytes that disappeared can land again for a minute."""


class Watch(Protocol):
    async def look(self) -> None: ...


class _WatchSchedule:
    def __init__(self, watch: Watch, *, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock
        self._next_look_us = 0

    async def next_due_us(self) -> int | None:
        """On a manual clock None before the next check is due, since advancing it does not help."""
        wait_us = max(self._next_look_us - real_now_us(), 0)
        return None if wait_us and self._clock.is_manual else self._clock.now_us() + wait_us

    async def run_due(self) -> bool:
        if real_now_us() < self._next_look_us:
            return False
        try:
            await self._watch.look()
        finally:
            self._next_look_us = real_now_us() + LOOK_EVERY_US
        return True


class ReorgWatchSchedule(_WatchSchedule):
    """Watches settled transactions until they are irreversible."""


class LateLandingSchedule(_WatchSchedule):
    """Watches expired transactions until history rules out that they landed."""
