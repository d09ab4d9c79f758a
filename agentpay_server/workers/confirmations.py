"""When settled transactions are looked at that may yet vanish: every few seconds, in real time."""

from typing import Final

from agentpay_server.clock import SECOND_US, Clock, real_now_us
from agentpay_server.services.confirmations import Confirmations

LOOK_EVERY_US: Final = 4 * SECOND_US
"""A few times while a cluster takes to finalize; bytes that have vanished may land again for a minute."""


class ConfirmationWorker:
    """Has settled transactions watched until they are irreversible.

    Args:
        confirmations: watches them.
        clock: tells when.
    """

    def __init__(self, confirmations: Confirmations, *, clock: Clock) -> None:
        self._confirmations = confirmations
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
            await self._confirmations.look()
        finally:
            self._next_look_us = real_now_us() + LOOK_EVERY_US
        return True
