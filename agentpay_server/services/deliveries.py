"""Delivering events: claimed, signed, posted, and booked with what follows (interface W5 to W12).

A delivery is claimed by a lease that is committed before it is posted, and booked after. Whoever dies in
between leaves a lease that runs out; the same attempt is then made again, so that an event is received at
least once and always under the same identifier.
"""

import asyncio
import logging
import time
from typing import Final

from agentpay.contract import codec, identifiers
from agentpay.contract.deliveries import (
    REPLAY_EVENT,
    Delivery,
    DeliveryAttempt,
    ListDeliveries,
    ListEvents,
    RecordedEvent,
    ReplayEvent,
)
from agentpay.contract.errors import FieldFault
from agentpay.contract.pages import PageBody
from agentpay.webhooks import WebhookSecrets
from agentpay_server.clock import from_us, real_now_us
from agentpay_server.domain.cursors import List
from agentpay_server.domain.deliveries import LEASE_US, after_attempt
from agentpay_server.domain.principals import Principal
from agentpay_server.domain.problems import invalid, not_found
from agentpay_server.logs import log
from agentpay_server.services import audit
from agentpay_server.services.context import Context
from agentpay_server.services.outbox import new_delivery
from agentpay_server.services.posting import Answer, HttpPoster, no_answer, signed_headers
from agentpay_server.services.vault import VaultError
from agentpay_server.services.webhooks import SealedSecret, sealed_secrets
from agentpay_server.store import deliveries as store
from agentpay_server.store import events as event_store
from agentpay_server.store import webhooks as webhook_store
from agentpay_server.store.connection import Connection
from agentpay_server.store.deliveries import AttemptRecord, DeliveryRecord, DueDelivery

UNSIGNED: Final = "not posted: the webhook's secret does not open with this server's encryption key"
"""What is booked for an attempt that could not be signed."""

logger: logging.Logger = logging.getLogger(__name__)


class Deliveries:
    """Makes attempts, lists what became of them, and replays events."""

    def __init__(self, context: Context, poster: HttpPoster) -> None:
        self._context = context
        self._poster = poster

    async def next_due_us(self) -> int | None:
        """Return when the next attempt is due that nobody is making; None when there is none."""
        return await self._context.database.read(store.next_due_us, real_now_us())

    async def claim(self, count: int) -> list[DueDelivery]:
        """Lease up to `count` deliveries that are due now.

        On a running clock endpoints and operators take turns; on a manual one the order is that of the due
        times, whosever they are.
        """
        return await self._context.database.run(self._claim, count)

    async def attempt(self, delivery: DueDelivery) -> None:
        """Make one attempt at a claimed delivery, and book it with what follows."""
        at_us, attempt = self._context.clock.now_us(), delivery.attempts + 1
        answer = await self._answer(delivery, attempt, at_us)
        record = AttemptRecord(
            delivery.delivery_id, attempt, at_us, answer.status_code, answer.error, answer.duration_ms
        )
        step = after_attempt(attempt, answer.status_code, self._context.clock.now_us())
        await self._context.database.run(store.finish_attempt, record, step)
        log(
            logger,
            logging.INFO,
            "delivery.attempted",
            delivery_id=delivery.delivery_id,
            event_id=delivery.event_id,
            webhook_id=delivery.webhook_id,
            attempt=attempt,
            status=answer.status_code,
            delivery_status=step.status.value,
            duration_ms=answer.duration_ms,
        )

    async def _answer(self, delivery: DueDelivery, attempt: int, at_us: int) -> Answer:
        """Post a delivery and return the result. Only a cancellation of this task is raised.

        An attempt that is not booked is repeated at the end of its lease, without limit. So every exception,
        of any library, is booked as a failed attempt, and the delivery ends where its operator can see it.
        """
        started = time.monotonic()
        try:
            body = delivery.body.encode("utf-8")
            headers = self._headers(delivery, body, attempt, at_us)
            return await self._poster.post(delivery.url, headers, body, operator_id=delivery.operator_id)
        except VaultError:
            # Sealed under another key, or damaged. It can be replayed after the key is restored.
            return Answer(status_code=None, error=UNSIGNED, duration_ms=0)
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
            return Answer(status_code=None, error=no_answer(failure), duration_ms=duration_ms)

    async def free_all(self) -> None:
        """Void all leases, where no other process can hold any: whoever held them is gone."""
        await self._context.database.run(store.free_all)

    async def list_deliveries(self, principal: Principal, query: ListDeliveries) -> PageBody[Delivery]:
        """Return a page of deliveries with every attempt, newest first.

        Raises:
            Problem: `invalid_request` for a cursor of another list.
        """
        filters = {
            name: str(value)
            for name in ("status", "event_id", "webhook_id")
            if (value := getattr(query, name)) is not None
        }
        listing = List("deliveries", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            _with_attempts, principal.operator_id, before, query.limit + 1, filters
        )
        return listing.page(
            rows, query.limit, seq=lambda row: row[0].seq, item=lambda row: _delivery(row[0], row[1])
        )

    async def list_events(self, principal: Principal, query: ListEvents) -> PageBody[RecordedEvent]:
        """Return a page of the operator's events, newest first.

        Raises:
            Problem: `invalid_request` for a cursor of another list.
        """
        listing = List("events", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            event_store.page,
            principal.operator_id,
            before,
            query.limit + 1,
            type_=query.type,
            account_id=query.account_id,
        )
        return listing.page(rows, query.limit, seq=lambda row: row.seq, item=lambda row: _event(row.body))

    async def newest_events(self, count: int) -> list[RecordedEvent]:
        """Return the newest events of all operators, newest last: what is shown in process alone."""
        rows = await self._context.database.read(event_store.newest, count)
        return [_event(row.body) for row in reversed(rows)]

    async def newest_deliveries(self, count: int) -> list[Delivery]:
        """Return the newest deliveries for all operators, newest last: as `newest_events`."""
        rows = await self._context.database.read(_newest_with_attempts, count)
        return [_delivery(row, attempts) for row, attempts in reversed(rows)]

    async def replay(self, principal: Principal, event_id: str, request: ReplayEvent) -> PageBody[Delivery]:
        """Start new deliveries of an event: the same bytes, the same identifier.

        Raises:
            Problem: `not_found` of the event; `invalid_request` for an unknown webhook.
        """
        rows = await self._context.database.run(self._replay, principal, event_id, request)
        self._context.wakeup.set()
        return PageBody(data=tuple(_delivery(row, []) for row in rows), cursor="", has_more=False)

    def _claim(self, connection: Connection, count: int) -> list[DueDelivery]:
        now_us, clock = real_now_us(), self._context.clock
        found = store.due(connection, clock.now_us(), now_us, count, is_fair=not clock.is_manual)
        for delivery in found:
            store.lease(connection, delivery.delivery_id, now_us + LEASE_US)
        return found

    def _headers(self, delivery: DueDelivery, body: bytes, attempt: int, now_us: int) -> dict[str, str]:
        secrets = sealed_secrets(
            delivery.webhook_id, delivery.secret, delivery.next_secret, delivery.next_secret_us, now_us
        )

        def opened(secret: SealedSecret) -> WebhookSecrets:
            return WebhookSecrets(secret.opened(self._context.vault))

        return signed_headers(
            body,
            event_id=delivery.event_id,
            attempt=attempt,
            secret=opened(secrets.current),
            next_secret=None if secrets.next is None else opened(secrets.next),
        )

    def _replay(
        self, connection: Connection, principal: Principal, event_id: str, request: ReplayEvent
    ) -> list[DeliveryRecord]:
        event = None
        if identifiers.is_identifier(event_id, identifiers.EVENT):
            event = event_store.event(connection, event_id)
        if event is None or event.operator_id != principal.operator_id:
            raise not_found("event", event_id)
        if request.webhook_id is None:
            webhooks = [
                webhook.webhook_id
                for webhook in webhook_store.of_operator(connection, principal.operator_id)
                if webhook.subscription.hears(event.type, event.account_id)
            ]
        else:
            webhooks = [_named_webhook(connection, principal, request.webhook_id)]
        now_us = self._context.clock.now_us()
        rows = [
            new_delivery(
                delivery_id=self._context.identifiers.new(identifiers.DELIVERY),
                operator_id=principal.operator_id,
                event_id=event.event_id,
                event_type=event.type,
                webhook_id=webhook_id,
                now_us=now_us,
            )
            for webhook_id in webhooks
        ]
        if rows:
            store.insert_deliveries(connection, rows)
        audit.record(
            connection,
            principal,
            action=REPLAY_EVENT.name,
            subject=event_id,
            now_us=now_us,
            after={"webhook_ids": webhooks},
        )
        return [DeliveryRecord(seq=0, **row) for row in rows]  # type: ignore[arg-type]


def _named_webhook(connection: Connection, principal: Principal, webhook_id: str) -> str:
    record = None
    if identifiers.is_identifier(webhook_id, identifiers.WEBHOOK):
        record = webhook_store.webhook(connection, webhook_id)
    if record is None or record.operator_id != principal.operator_id:
        raise invalid(FieldFault(field="webhook_id", message="is not one of your webhooks"))
    return webhook_id


def _with_attempts(
    connection: Connection, operator_id: str, before: int, count: int, filters: dict[str, str]
) -> list[tuple[DeliveryRecord, list[AttemptRecord]]]:
    return _and_attempts(connection, store.page(connection, operator_id, before, count, filters))


def _newest_with_attempts(
    connection: Connection, count: int
) -> list[tuple[DeliveryRecord, list[AttemptRecord]]]:
    return _and_attempts(connection, store.newest(connection, count))


def _and_attempts(
    connection: Connection, rows: list[DeliveryRecord]
) -> list[tuple[DeliveryRecord, list[AttemptRecord]]]:
    return [(row, store.attempts(connection, row.delivery_id) if row.attempts else []) for row in rows]


def _delivery(row: DeliveryRecord, attempts: list[AttemptRecord]) -> Delivery:
    return Delivery(
        delivery_id=row.delivery_id,
        event_id=row.event_id,
        event_type=row.event_type,
        webhook_id=row.webhook_id,
        status=row.status,
        attempts=tuple(
            DeliveryAttempt(
                at=from_us(attempt.at_us),
                status_code=attempt.status_code,
                error=attempt.error,
                duration_ms=attempt.duration_ms,
            )
            for attempt in attempts
        ),
        next_attempt_at=None if row.due_us is None else from_us(row.due_us),
    )


def _event(body: str) -> RecordedEvent:
    return codec.structure(codec.parse_json(body.encode()), RecordedEvent)
