"""When transactions in flight are looked for that nobody drives: at the start, then now and again.

What this process accepts it drives at once; the worker is for what a process that died, or a driver that
failed, has left behind. A look is due in real time, as leases are.
"""

import asyncio
from typing import Any, Final

from agentpay_server.clock import SECOND_US, Clock, real_now_us
from agentpay_server.money.settlement import Settlement
from agentpay_server.tasks import all_ended

LOOK_EVERY_US: Final = 10 * SECOND_US
"""Often enough to renew a lease twice before it runs out."""

_MANUAL_WAIT_SECONDS: Final = 5.0
"""How long an advance of the clock waits for a chain that does not answer; the drivers go on all the same."""


class SettlementWorker:
    """Has transactions taken up that nobody drives."""

    def __init__(self, settlement: Settlement, *, clock: Clock) -> None:
        self._settlement = settlement
        self._clock = clock
        self._next_look_us = 0
        # On a manual clock: drivers whose end an advance of the clock waits for.
        self._awaited: set[asyncio.Task[Any]] = set()

    async def resume(self) -> None:
        """Take up all that an earlier process has left under way, without waiting for its end."""
        while drivers := await self._taken_up():
            if self._clock.is_manual:
                self._awaited.update(drivers)

    async def next_due_us(self) -> int | None:
        """Return when to look next; on a manual clock now, if there is anything to find, else never."""
        if self._clock.is_manual:
            return (
                self._clock.now_us() if self._awaited or await self._settlement.is_any_abandoned() else None
            )
        return self._clock.now_us() + max(self._next_look_us - real_now_us(), 0)

    async def run_due(self) -> bool:
        """Take up what is left, as much of it as one batch holds; on a manual clock, wait for its end."""
        drivers = await self._taken_up()
        if self._clock.is_manual:
            drivers = [*drivers, *self._awaited]
            self._awaited.clear()
            await all_ended(drivers, within_seconds=_MANUAL_WAIT_SECONDS)
        elif not drivers:
            self._next_look_us = real_now_us() + LOOK_EVERY_US
        return bool(drivers)

    async def _taken_up(self) -> "list[asyncio.Task[Any]]":
        return await self._settlement.recover()
