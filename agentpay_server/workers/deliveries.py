"""When deliveries are attempted: what is due, as many at once as there is room for.

On a running clock attempts run side by side, so many in all and so many to one endpoint, and nobody waits for
a slow receiver. On a manual clock they run one after the other, in the order in which they fell due.
"""

import asyncio
import logging
from typing import Final

from agentpay_server.clock import Clock
from agentpay_server.logs import log
from agentpay_server.services.deliveries import Deliveries
from agentpay_server.services.tasks import Tasks
from agentpay_server.services.wakeup import Wakeup
from agentpay_server.store.deliveries import DueDelivery

ATTEMPTS_AT_ONCE: Final = 256

logger: logging.Logger = logging.getLogger(__name__)


class DeliveryWorker:
    """Runs the attempts that are due."""

    def __init__(self, deliveries: Deliveries, *, clock: Clock, tasks: Tasks, wakeup: Wakeup) -> None:
        self._deliveries = deliveries
        self._clock = clock
        self._tasks = tasks
        self._wakeup = wakeup
        self._under_way: set[asyncio.Task[None]] = set()

    async def next_due_us(self) -> int | None:
        """Return when the next attempt is due; None when there is none, or no room for one."""
        if len(self._under_way) >= ATTEMPTS_AT_ONCE:
            return None
        return await self._deliveries.next_due_us()

    async def run_due(self) -> bool:
        """Begin what is due, as far as there is room; on a manual clock, end it too."""
        if self._clock.is_manual:
            return await self._run_in_order()
        claimed = await self._deliveries.claim(ATTEMPTS_AT_ONCE - len(self._under_way))
        for delivery in claimed:
            task = self._tasks.start(self._attempt(delivery))
            self._under_way.add(task)
            task.add_done_callback(self._ended)
        return bool(claimed)

    async def _run_in_order(self) -> bool:
        is_done = False
        while claimed := await self._deliveries.claim(1):
            await self._attempt(claimed[0])
            is_done = True
        return is_done

    async def _attempt(self, delivery: DueDelivery) -> None:
        try:
            await self._deliveries.attempt(delivery)
        except Exception as error:  # noqa: BLE001 - whatever it is, other deliveries go on
            # Its lease runs out, and it is attempted again.
            log(logger, logging.ERROR, "delivery.failed", exception=error, delivery_id=delivery.delivery_id)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._wakeup.set()
