"""The schedule of the recovery of transactions in flight: at the start, then periodically.

A process drives the transactions that it accepts. Recovery takes those of a process that died or a driver
that failed. It is due in real time, as leases are.
"""

import asyncio
from typing import Any, Final

from agentpay_server.engine.settlement import Settlement
from agentpay_server.platform.clock import Clock
from agentpay_server.platform.scheduler import Every
from agentpay_server.platform.tasks import all_ended

LOOK_EVERY_SECONDS: Final = 10.0
"""Often enough to renew a lease twice before it expires."""

_MANUAL_WAIT_SECONDS: Final = 5.0
"""How long an advance of the clock waits for an unresponsive chain; the drivers continue."""


class RecoverySchedule:
    """Resumes transactions without a driver."""

    def __init__(self, settlement: Settlement, *, clock: Clock) -> None:
        self._settlement = settlement
        self._clock = clock
        self._every = Every(LOOK_EVERY_SECONDS)
        # Drivers that the next advance of a manual clock waits for.
        self._awaited: set[asyncio.Task[Any]] = set()

    async def resume(self) -> None:
        """Resume all transactions of an earlier process, without waiting for their outcome."""
        while drivers := await self._recover():
            if self._clock.is_manual:
                self._awaited.update(drivers)

    async def next_due_us(self) -> int | None:
        """Return when to recover next. On a manual clock: now if there is work, otherwise never."""
        if self._clock.is_manual:
            return (
                self._clock.now_us() if self._awaited or await self._settlement.is_any_abandoned() else None
            )
        return self._every.due_us(self._clock)

    async def run_due(self) -> bool:
        """Resume one batch of transactions; on a manual clock, wait for their outcome."""
        drivers = await self._recover()
        if self._clock.is_manual:
            drivers = [*drivers, *self._awaited]
            self._awaited.clear()
            await all_ended(drivers, within_seconds=_MANUAL_WAIT_SECONDS)
        elif not drivers:
            self._every.restart()
        return bool(drivers)

    async def _recover(self) -> "list[asyncio.Task[Any]]":
        return await self._settlement.recover()
