"""Lists and replays events and their deliveries (interface W12). `sender.py` makes the attempts."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from agentpay.contract import choices, codec, identifiers
from agentpay.contract.errors import FieldError
from agentpay.contract.events import Event
from agentpay.contract.ext.deliveries import (
    REPLAY_DELIVERIES,
    REPLAY_EVENT,
    TEST_EVENT,
    TEST_WEBHOOK,
    Delivery,
    DeliveryAttempt,
    DeliveryStatusFilter,
    ListDeliveries,
    ListEvents,
    ReplayDeliveries,
    ReplayedDeliveries,
    ReplayEvent,
)
from agentpay.contract.fields import format_timestamp
from agentpay.contract.pages import PageBody
from agentpay_server.database import pages
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List
from agentpay_server.database.tables import AttemptRecord, DeliveryRecord, EventRecord
from agentpay_server.ledger import audit, finding
from agentpay_server.ledger import deliveries as store
from agentpay_server.ledger import outbox as event_store
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.deliveries import DeliveryStatus
from agentpay_server.ledger.outbox import new_delivery
from agentpay_server.platform.clock import from_us, to_us
from agentpay_server.platform.errors import invalid, not_found
from agentpay_server.platform.principals import Principal
from agentpay_server.webhooks.service import own_webhook

REPLAYED_AT_ONCE: Final = 1000
"""Maximum number of deliveries that one request replays: each is a row in one transaction."""


_Delivered = tuple[DeliveryRecord, list[AttemptRecord], int | None, bool]
"""A delivery, its attempts, when a replay delivered what it could not, and whether it waits for the clock."""


class Deliveries:
    """`is_held` returns whether first attempts to a URL wait for a manual clock, as retries do."""

    def __init__(self, context: Context, is_held: Callable[[str], bool]) -> None:
        self._context = context
        self._is_held = is_held

    async def list_deliveries(self, principal: Principal, query: ListDeliveries) -> PageBody[Delivery]:
        """With every attempt, newest first."""
        filters = _filters(query, "event_id", "webhook_id", "transfer_id")
        pages = store.PAGES_NEEDING_ATTENTION
        if query.needs_attention is None:
            pages, filters = store.PAGES, filters | {"status": query.status}
        elif query.status not in (None, DeliveryStatusFilter.UNDELIVERED):
            return PageBody(data=(), cursor="", has_more=False)
        listing = List("deliveries", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            self._with_attempts, partial(pages, **filters), principal.operator_id, before, query.limit + 1
        )
        return listing.page(rows, query.limit, seq=lambda row: row[0].seq, item=_delivery)

    async def list_events(self, principal: Principal, query: ListEvents) -> PageBody[Event]:
        """Newest first."""
        listing = List("events", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            event_store.PAGES,
            principal.operator_id,
            before,
            query.limit + 1,
            **_filters(query, "type", "account_id", "transfer_id", "session_id"),
            **({} if query.q is None else finding.values(query.q)),
        )
        return listing.page(rows, query.limit, seq=lambda row: row.seq, item=lambda row: _event(row.body))

    async def newest_events(self, count: int) -> list[Event]:
        """All operators', newest last. For in-process use only."""
        rows = await self._context.database.read(event_store.newest, count)
        return [_event(row.body) for row in reversed(rows)]

    async def newest_deliveries(self, count: int) -> list[Delivery]:
        """All operators', newest last. For in-process use only."""
        rows = await self._context.database.read(self._newest_with_attempts, count)
        return [_delivery(row) for row in reversed(rows)]

    async def replay(self, principal: Principal, event_id: str, request: ReplayEvent) -> PageBody[Delivery]:
        """Create deliveries of an event, with the same body and identifier."""
        rows = await self._context.database.run(self._replay, principal, event_id, request)
        self._context.wakeup.set()
        return PageBody(data=tuple(_delivery(row) for row in rows), cursor="", has_more=False)

    async def replay_since(self, principal: Principal, request: ReplayDeliveries) -> ReplayedDeliveries:
        """Replay the events since a time whose newest delivery has a given status."""
        replayed = await self._context.database.run(self._replay_since, principal, request)
        self._context.wakeup.set()
        return replayed

    async def test(self, principal: Principal, webhook_id: str) -> Delivery:
        """Record a test event, and deliver it to one webhook.

        Raises:
            Problem: `not_found`.
        """
        row = await self._context.database.run(self._test, principal, webhook_id)
        self._context.wakeup.set()
        return _delivery(row)

    def _test(self, connection: Connection, principal: Principal, webhook_id: str) -> _Delivered:
        own_webhook(connection, principal, webhook_id)
        now_us, event_id = self._context.clock.now_us(), self._context.identifiers.new(identifiers.EVENT)
        envelope = {
            "id": event_id,
            "type": TEST_EVENT,
            "created_at": format_timestamp(from_us(now_us)),
            "data": {"webhook_id": webhook_id},
        }
        event_store.EVENTS.insert(
            connection,
            EventRecord(
                seq=0,
                event_id=event_id,
                operator_id=principal.operator_id,
                # Of no account, so that no account's history shows it.
                account_id="",
                type=TEST_EVENT,
                body=codec.print_json(envelope).decode("ascii"),
                created_us=now_us,
                transfer_id=None,
                session_id=None,
            ),
        )
        row = self._new(principal.operator_id, event_id, TEST_EVENT, webhook_id, now_us)
        store.DELIVERIES.insert(connection, row)
        audit.record(
            connection,
            principal,
            action=TEST_WEBHOOK.name,
            subject=webhook_id,
            now_us=now_us,
            after={"event_id": event_id},
        )
        return self._seen(connection, row)

    def _replay_since(
        self, connection: Connection, principal: Principal, request: ReplayDeliveries
    ) -> ReplayedDeliveries:
        webhook_id = request.webhook_id
        if webhook_id is not None:
            webhook_id = _named_webhook(connection, principal, webhook_id)
        found = store.replayable(
            connection,
            principal.operator_id,
            DeliveryStatus(request.status),
            to_us(request.since),
            count=REPLAYED_AT_ONCE + 1,
            webhook_id=webhook_id,
        )
        now_us, chosen = self._context.clock.now_us(), found[:REPLAYED_AT_ONCE]
        if chosen:
            again = (
                self._new(row.operator_id, row.event_id, row.event_type, row.webhook_id, now_us)
                for row in chosen
            )
            store.DELIVERIES.insert(connection, *again)
        audit.record(
            connection,
            principal,
            action=REPLAY_DELIVERIES.name,
            subject=webhook_id or "deliveries",
            now_us=now_us,
            after={
                "since": format_timestamp(request.since),
                "status": request.status,
                "replayed": len(chosen),
            },
        )
        return ReplayedDeliveries(
            replayed=len(chosen),
            earliest_at=from_us(min(row.created_us for row in chosen)) if chosen else None,
            has_more=len(found) > len(chosen),
        )

    def _new(
        self, operator_id: str, event_id: str, event_type: str, webhook_id: str, now_us: int
    ) -> DeliveryRecord:
        return new_delivery(
            delivery_id=self._context.identifiers.new(identifiers.DELIVERY),
            operator_id=operator_id,
            event_id=event_id,
            event_type=event_type,
            webhook_id=webhook_id,
            now_us=now_us,
        )

    def _replay(
        self, connection: Connection, principal: Principal, event_id: str, request: ReplayEvent
    ) -> list[_Delivered]:
        event = None
        if identifiers.is_identifier(event_id, identifiers.EVENT):
            event = event_store.EVENTS.get(connection, event_id)
        if event is None or event.operator_id != principal.operator_id:
            raise not_found("event", event_id)
        if request.webhook_id is None:
            webhooks = [
                webhook.webhook_id
                for webhook in event_store.webhooks_of_operator(connection, principal.operator_id)
                if event_store.subscription_of(webhook).wants(event.type, event.account_id)
            ]
        else:
            webhooks = [_named_webhook(connection, principal, request.webhook_id)]
        now_us = self._context.clock.now_us()
        rows = [
            self._new(principal.operator_id, event.event_id, event.type, webhook_id, now_us)
            for webhook_id in webhooks
        ]
        if rows:
            store.DELIVERIES.insert(connection, *rows)
        audit.record(
            connection,
            principal,
            action=REPLAY_EVENT.name,
            subject=event_id,
            now_us=now_us,
            after={"webhook_ids": webhooks},
        )
        return [self._seen(connection, row) for row in rows]

    def _with_attempts(
        self,
        connection: Connection,
        pages: Callable[[Connection, str, int, int], list[DeliveryRecord]],
        operator_id: str,
        before: int,
        count: int,
    ) -> list[_Delivered]:
        return [self._seen(connection, row) for row in pages(connection, operator_id, before, count)]

    def _newest_with_attempts(self, connection: Connection, count: int) -> list[_Delivered]:
        return [self._seen(connection, row) for row in store.newest(connection, count)]

    def _seen(self, connection: Connection, row: DeliveryRecord) -> _Delivered:
        waits = self._context.clock.is_manual and row.due_us is not None
        if waits and not row.attempts:
            webhook = event_store.WEBHOOKS.get(connection, row.webhook_id)
            waits = webhook is not None and self._is_held(webhook.url)
        return (
            row,
            store.attempts(connection, row.delivery_id) if row.attempts else [],
            store.redelivered_us(connection, row) if row.status == DeliveryStatus.UNDELIVERED else None,
            waits,
        )


def _filters(query: ListEvents | ListDeliveries, *names: str) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(query, name) for name in names}
    return values | pages.period(query.since, query.until)


def _named_webhook(connection: Connection, principal: Principal, webhook_id: str) -> str:
    record = None
    if identifiers.is_identifier(webhook_id, identifiers.WEBHOOK):
        record = event_store.WEBHOOKS.get(connection, webhook_id, event_store.IS_LIVE_WEBHOOK)
    if record is None or record.operator_id != principal.operator_id:
        raise invalid(FieldError(field="webhook_id", message="is not one of your webhooks"))
    return webhook_id


def _delivery(found: _Delivered) -> Delivery:
    row, attempts, redelivered_us, waits = found
    return Delivery(
        delivery_id=row.delivery_id,
        event_id=row.event_id,
        event_type=row.event_type,
        webhook_id=row.webhook_id,
        status=cast("choices.DeliveryStatus", row.status),
        attempts=tuple(
            DeliveryAttempt(
                at=from_us(attempt.at_us),
                status_code=attempt.status_code,
                error=attempt.error,
                duration_ms=attempt.duration_ms,
                response_excerpt=attempt.response_excerpt,
            )
            for attempt in attempts
        ),
        next_attempt_at=None if row.due_us is None else from_us(row.due_us),
        redelivered_at=None if redelivered_us is None else from_us(redelivered_us),
        waits_for="clock" if waits else None,
    )


def _event(body: str) -> Event:
    return codec.structure(codec.parse_json(body.encode()), Event)
