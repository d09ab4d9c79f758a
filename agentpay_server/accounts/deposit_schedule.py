"""The schedule of scans for deposits.

A chain within the process reports all deposits, so only reported accounts are scanned. A remote cluster is
also scanned every few seconds, in real time.
"""

from typing import Final

from agentpay_server.accounts.deposits import Deposits
from agentpay_server.chain.protocol import ChainUnavailableError
from agentpay_server.clock import SECOND_US, Clock, real_now_us

RETRY_US: Final = 5 * SECOND_US
"""Pause after the chain did not respond."""


class DepositSchedule:
    """Books deposits on schedule. `look_every_us` is None if the chain reports all deposits."""

    def __init__(self, deposits: Deposits, *, clock: Clock, look_every_us: int | None = None) -> None:
        self._deposits = deposits
        self._clock = clock
        self._look_every_us = look_every_us
        self._next_look_us = 0
        self._retry_us = 0

    async def next_due_us(self) -> int | None:
        """Return when to scan next: now if there may be a deposit, else at the next interval."""
        now_us = self._clock.now_us()
        if self._deposits.is_any_due:
            return max(now_us, self._retry_us)
        if self._look_every_us is None:
            return None
        wait_us = max(self._next_look_us - real_now_us(), 0)
        # Advancing a manual clock does not make the next scan due.
        return None if wait_us and self._clock.is_manual else max(now_us + wait_us, self._retry_us)

    async def run_due(self) -> bool:
        """Scan accounts that may have a deposit, or all of them if the interval is over."""
        if self._retry_us > self._clock.now_us():
            return False
        is_time = self._look_every_us is not None and real_now_us() >= self._next_look_us
        if not is_time and not self._deposits.is_any_due:
            return False
        try:
            if is_time:
                await self._deposits.look_everywhere()
            await self._deposits.look_at_reported()
        except ChainUnavailableError:
            self._retry_us = self._clock.now_us() + RETRY_US
        else:
            self._next_look_us = real_now_us() + (self._look_every_us or 0)
        return True
