"""Sends events: claims deliveries, signs and posts them, and stores the results (interface W5 to W11).

A delivery is leased, in a committed transaction, before it is posted; the result is stored afterwards. If the
process dies in between, the lease expires and the attempt is repeated. So every event is sent at least once,
always with the same identifier.

On a running clock attempts run concurrently, with limits in total, per operator and per endpoint: a slow
receiver delays only its own. On a manual clock they run one after another, in the order in which they fell
due: retries when the clock is advanced, first attempts at once (`FirstAttempts`).
"""

import asyncio
import logging
import time
from typing import Final

from agentpay.contract.errors import ErrorCode
from agentpay.webhooks import WebhookSecrets, signed_headers
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AttemptRecord
from agentpay_server.ledger import deliveries as store
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.deliveries import LEASE_US, DueDelivery, after_attempt
from agentpay_server.platform.clock import real_now_us
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import log
from agentpay_server.platform.vault import VaultError
from agentpay_server.webhooks.http import HttpPoster, PostResult, no_response
from agentpay_server.webhooks.service import sealed_secrets

ATTEMPTS_AT_ONCE: Final = 256

_SETTLE_SECONDS: Final = 5.0
"""How long an advance of the clock waits for an attempt; less than an attempt may take."""

UNSIGNED: Final = "not posted: the webhook's secret cannot be decrypted with this server's encryption key"

logger: logging.Logger = logging.getLogger(__name__)


class WebhookSender:
    def __init__(self, context: Context, poster: HttpPoster) -> None:
        self._context = context
        self._poster = poster
        self._attempts: set[asyncio.Task[None]] = set()
        # Held, on a manual clock, during each attempt.
        self._turn = asyncio.Lock()

    async def next_due_us(self) -> int | None:
        """Return None if no unleased attempt is due, or the limit is reached."""
        if len(self._attempts) >= ATTEMPTS_AT_ONCE:
            return None
        if self._context.clock.is_manual:
            # An advance is over only when the attempt that is in progress is.
            async with self._turn:
                pass
        return await self._context.database.read(store.next_due_us, real_now_us())

    async def run_due(self) -> bool:
        """Start due attempts up to the limit; on a manual clock, also wait for their end."""
        if self._context.clock.is_manual:
            return await self._run_in_order()
        claimed = await self.claim(ATTEMPTS_AT_ONCE - len(self._attempts))
        for delivery in claimed:
            task = self._context.tasks.start(self._attempt(delivery))
            self._attempts.add(task)
            task.add_done_callback(self._ended)
        return bool(claimed)

    async def claim(self, count: int) -> list[DueDelivery]:
        return await self._context.database.run(self._claim, count)

    async def attempt(self, delivery: DueDelivery) -> None:
        """Store the result of one attempt at a claimed delivery."""
        at_us, attempt = self._context.clock.now_us(), delivery.attempts + 1
        result = await self._post(delivery, attempt, at_us)
        record = AttemptRecord(
            delivery.delivery_id,
            attempt,
            at_us,
            result.status_code,
            result.error,
            result.duration_ms,
            result.excerpt,
        )
        step = after_attempt(attempt, result.status_code, self._context.clock.now_us())
        is_stored = await self._context.database.run(store.finish_attempt, record, step)
        log(
            logger,
            logging.INFO,
            "delivery.attempted",
            delivery_id=delivery.delivery_id,
            event_id=delivery.event_id,
            webhook_id=delivery.webhook_id,
            attempt=attempt,
            status=result.status_code,
            # None: another server's attempt was stored, or the webhook was deleted meanwhile.
            delivery_status=step.status.value if is_stored else None,
            duration_ms=result.duration_ms,
        )

    async def _run_in_order(self) -> bool:
        is_done = False
        while await self._run_one(is_first=False):
            is_done = True
        return is_done

    async def _run_one(self, *, is_first: bool) -> bool:
        """Make one attempt that is due; with `is_first`, one that is due by real time."""
        async with self._turn:
            claimed = await self._context.database.run(self._claim, 1, is_first=is_first)
            if claimed:
                # A task, so that snapshots wait for it, and no cancelled caller aborts it.
                await asyncio.wait({self._context.tasks.start(self._attempt(claimed[0]))})
        return bool(claimed)

    async def next_first_us(self) -> int | None:
        """Return a past time if a first attempt is due by real time."""
        now_us = self._context.clock.now_us()
        due = await self._context.database.read(
            store.first_attempts, now_us, real_now_us(), 1, held=self._poster.held
        )
        return now_us if due else None

    async def run_first(self) -> bool:
        return await self._run_one(is_first=True)

    async def settle(self) -> None:
        """Wait for the attempt in progress.

        Raises:
            Problem: `clock_moving` after some seconds: the caller may be its receiver.
        """
        try:
            async with asyncio.timeout(_SETTLE_SECONDS), self._turn:
                pass
        except TimeoutError:
            raise Problem(
                ErrorCode.CLOCK_MOVING,
                "A delivery is in progress, and its webhook receiver has not responded.",
            ) from None

    async def _attempt(self, delivery: DueDelivery) -> None:
        try:
            await self.attempt(delivery)
        except Exception as error:  # noqa: BLE001 - other deliveries continue
            # The lease expires, and the attempt is repeated.
            log(logger, logging.ERROR, "delivery.failed", exception=error, delivery_id=delivery.delivery_id)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._attempts.discard(task)
        self._context.wakeup.set()

    async def _post(self, delivery: DueDelivery, attempt: int, at_us: int) -> PostResult:
        """Only a cancellation of this task is raised.

        An attempt without a stored result is repeated whenever its lease expires, without limit. So every
        exception is stored as a failed attempt, which the operator can see.
        """
        started = time.monotonic()
        try:
            body = delivery.body.encode("utf-8")
            headers = self._headers(delivery, body, attempt, at_us)
            return await self._poster.post(delivery.url, headers, body, operator_id=delivery.operator_id)
        except VaultError:
            # Sealed under another key, or damaged. Operators can replay it once the key is restored.
            return PostResult(status_code=None, error=UNSIGNED, duration_ms=0)
        except (Exception, asyncio.CancelledError) as failure:
            task = asyncio.current_task()
            if isinstance(failure, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            log(
                logger,
                logging.ERROR,
                "delivery.failed",
                exception=failure,
                delivery_id=delivery.delivery_id,
            )
            duration_ms = int((time.monotonic() - started) * 1000)
            return PostResult(status_code=None, error=no_response(failure), duration_ms=duration_ms)

    def _claim(self, connection: Connection, count: int, *, is_first: bool = False) -> list[DueDelivery]:
        now_us, clock = real_now_us(), self._context.clock
        if not self._context.clock_check.agrees(now_us):
            # For other servers the lease would have expired already.
            return []
        if is_first:
            found = store.first_attempts(connection, clock.now_us(), now_us, count, held=self._poster.held)
        else:
            found = store.due(connection, clock.now_us(), now_us, count, is_fair=not clock.is_manual)
        for delivery in found:
            store.lease(connection, delivery.delivery_id, now_us + LEASE_US)
        return found

    def _headers(self, delivery: DueDelivery, body: bytes, attempt: int, now_us: int) -> dict[str, str]:
        sealed = sealed_secrets(
            delivery.webhook_id, delivery.secret, delivery.next_secret, delivery.next_secret_us, now_us
        )
        secret, *following = (WebhookSecrets(self._context.vault.open(*each)) for each in sealed)
        return signed_headers(
            body,
            event_id=delivery.event_id,
            attempt=attempt,
            secret=secret,
            next_secret=following[0] if following else None,
        )


class FirstAttempts:
    """First attempts on a manual clock, which do not wait for it: a real receiver gets an event at once.

    Those to receivers within the process wait, unless the server has a port.
    """

    def __init__(self, sender: WebhookSender, poster: HttpPoster) -> None:
        self._sender = sender
        self._poster = poster

    async def next_due_us(self) -> int | None:
        return await self._sender.next_first_us()

    async def run_due(self) -> bool:
        return await self._sender.run_first()

    def is_waiting_outside(self) -> bool:
        return self._poster.is_posting()

    async def settle(self) -> None:
        await self._sender.settle()
