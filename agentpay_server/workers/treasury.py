"""When the treasury's SOL is looked at: once a minute, in real time, so that the log warns in time."""

from typing import Final

from agentpay_server.chain.base import ChainUnavailableError
from agentpay_server.clock import SECOND_US, Clock, real_now_us
from agentpay_server.services.treasury import Treasury

LOOK_EVERY_US: Final = 60 * SECOND_US


class TreasuryWorker:
    """Has the treasury looked at.

    Args:
        treasury: what is looked at.
        clock: tells when.
    """

    def __init__(self, treasury: Treasury, *, clock: Clock) -> None:
        self._treasury = treasury
        self._clock = clock
        self._next_look_us = 0

    async def next_due_us(self) -> int | None:
        """Return when to look next; on a manual clock, which cannot bring that nearer, None until then."""
        wait_us = max(self._next_look_us - real_now_us(), 0)
        return None if wait_us and self._clock.is_manual else self._clock.now_us() + wait_us

    async def run_due(self) -> bool:
        """Look, if it is time. A chain that does not answer is asked again at the next look."""
        if real_now_us() < self._next_look_us:
            return False
        self._next_look_us = real_now_us() + LOOK_EVERY_US
        try:
            await self._treasury.look()
        except ChainUnavailableError:
            return False
        return True
