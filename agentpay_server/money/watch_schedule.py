"""When what is booked is looked at again on chain: every few seconds, in real time.

What is settled may yet vanish; what is believed expired may yet land.
"""

from typing import Final, Protocol

from agentpay_server.clock import SECOND_US, Clock, real_now_us

LOOK_EVERY_US: Final = 4 * SECOND_US
"""A few times while a cluster takes to finalize; bytes that have vanished may land again for a minute."""


class Watch(Protocol):
    """Looks at all that is watched."""

    async def look(self) -> None:
        """Look at all of it once."""
        ...


class _WatchWorker:
    """Has transactions looked at for as long as there is anything to find out about them.

    Args:
        watch: looks at them.
        clock: tells when.
    """

    def __init__(self, watch: Watch, *, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock
        self._next_look_us = 0

    async def next_due_us(self) -> int | None:
        """Return when to look next; on a manual clock, which cannot bring that nearer, None until then."""
        wait_us = max(self._next_look_us - real_now_us(), 0)
        return None if wait_us and self._clock.is_manual else self._clock.now_us() + wait_us

    async def run_due(self) -> bool:
        """Look at all of them, if it is time."""
        if real_now_us() < self._next_look_us:
            return False
        try:
            await self._watch.look()
        finally:
            self._next_look_us = real_now_us() + LOOK_EVERY_US
        return True


class ConfirmationWorker(_WatchWorker):
    """Has settled transactions watched until they are irreversible."""


class LateLandingWorker(_WatchWorker):
    """Has expired transactions watched until the history of the chain rules out that they have landed."""
