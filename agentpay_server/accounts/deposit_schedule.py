"""The schedule of scans for deposits.

A chain within the process reports all deposits, so only reported accounts are scanned. A remote cluster is
also scanned every few seconds, in real time.
"""

from typing import Final

from agentpay_server.accounts.deposits import Deposits
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.platform.clock import SECOND_US, Clock
from agentpay_server.platform.pace import Every

RETRY_US: Final = 5 * SECOND_US
"""Pause after the chain did not respond."""


class DepositSchedule:
    """Posts deposits on schedule. `poll_every_seconds` is None if the chain reports all deposits."""

    def __init__(self, deposits: Deposits, *, clock: Clock, poll_every_seconds: float | None = None) -> None:
        self._deposits = deposits
        self._clock = clock
        self._every = None if poll_every_seconds is None else Every(poll_every_seconds)
        self._retry_us = 0

    async def next_due_us(self) -> int | None:
        """Return when to scan next: now if there may be a deposit, else at the next interval."""
        now_us = self._clock.now_us()
        if self._deposits.is_any_due:
            return max(now_us, self._not_before_us())
        due_us = None if self._every is None else self._every.due_us(self._clock)
        return None if due_us is None else max(due_us, self._not_before_us())

    async def run_due(self) -> bool:
        """Scan accounts that may have a deposit, or all of them if the interval is over."""
        if self._not_before_us() > self._clock.now_us():
            return False
        is_time = self._every is not None and self._every.is_due
        if not is_time and not self._deposits.is_any_due:
            return False
        try:
            if is_time:
                await self._deposits.poll_everywhere()
            await self._deposits.poll_reported()
        except ChainUnreachableError:
            self._retry_us = self._clock.now_us() + RETRY_US
        else:
            if self._every is not None:
                self._every.restart()
        return True

    def _not_before_us(self) -> int:
        # The clock may have been ahead for a moment when the chain did not respond.
        self._retry_us = min(self._retry_us, self._clock.now_us() + RETRY_US)
        return self._retry_us
