"""When deposits are looked for: where the chain has told of some, and now and again where it does not tell.

A chain within the process tells of all that comes in, and then nobody looks in vain. One that is far away is
looked at every few seconds, in real time, as it goes on by itself.
"""

from typing import Final

from agentpay_server.accounts.deposits import Deposits
from agentpay_server.chain.protocol import ChainUnavailableError
from agentpay_server.clock import SECOND_US, Clock, real_now_us

RETRY_US: Final = 5 * SECOND_US
"""How long a chain that did not answer is left alone."""


class DepositWorker:
    """Has what came in booked.

    Args:
        deposits: books it.
        clock: tells when.
        look_every_us: how often every account is looked at; None where the chain tells of all that comes in.
    """

    def __init__(self, deposits: Deposits, *, clock: Clock, look_every_us: int | None = None) -> None:
        self._deposits = deposits
        self._clock = clock
        self._look_every_us = look_every_us
        self._next_look_us = 0
        self._retry_us = 0

    async def next_due_us(self) -> int | None:
        """Return when to look next: now if something may have come in, else when it is time again."""
        now_us = self._clock.now_us()
        if self._deposits.is_any_due:
            return max(now_us, self._retry_us)
        if self._look_every_us is None:
            return None
        wait_us = max(self._next_look_us - real_now_us(), 0)
        # A manual clock cannot bring the next look nearer.
        return None if wait_us and self._clock.is_manual else max(now_us + wait_us, self._retry_us)

    async def run_due(self) -> bool:
        """Look where something may have come in, or everywhere if it is time."""
        if self._retry_us > self._clock.now_us():
            return False
        is_time = self._look_every_us is not None and real_now_us() >= self._next_look_us
        if not is_time and not self._deposits.is_any_due:
            return False
        try:
            if is_time:
                await self._deposits.look_everywhere()
            await self._deposits.look_where_due()
        except ChainUnavailableError:
            self._retry_us = self._clock.now_us() + RETRY_US
        else:
            self._next_look_us = real_now_us() + (self._look_every_us or 0)
        return True
