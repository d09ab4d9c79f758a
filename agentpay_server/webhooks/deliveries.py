"""Lists and replays events and their deliveries (interface W12). `sender.py` makes the attempts."""

from collections.abc import Mapping
from typing import Final, cast

from agentpay.contract import choices, codec, identifiers
from agentpay.contract.deliveries import (
    REPLAY_DELIVERIES,
    REPLAY_EVENT,
    Delivery,
    DeliveryAttempt,
    ListDeliveries,
    ListEvents,
    ReplayDeliveries,
    ReplayedDeliveries,
    ReplayEvent,
)
from agentpay.contract.errors import FieldError
from agentpay.contract.events import Event
from agentpay.contract.fields import format_timestamp
from agentpay.contract.pages import PageBody
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List
from agentpay_server.database.tables import AttemptRecord, DeliveryRecord
from agentpay_server.ledger import audit
from agentpay_server.ledger import deliveries as store
from agentpay_server.ledger import events as event_store
from agentpay_server.ledger import webhooks as webhook_store
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.delivery_rules import DeliveryStatus
from agentpay_server.ledger.outbox import new_delivery
from agentpay_server.platform.clock import from_us, to_us
from agentpay_server.platform.errors import invalid, not_found
from agentpay_server.platform.principals import Principal

REPLAYED_AT_ONCE: Final = 1000
"""Maximum number of deliveries that one request replays: each is a row in one transaction."""


class Deliveries:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def list_deliveries(self, principal: Principal, query: ListDeliveries) -> PageBody[Delivery]:
        """With every attempt, newest first."""
        filters = _filters(query, "status", "event_id", "webhook_id", "transfer_id")
        listing = List("deliveries", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            _with_attempts, principal.operator_id, before, query.limit + 1, filters
        )
        return listing.page(
            rows, query.limit, seq=lambda row: row[0].seq, item=lambda row: _delivery(row[0], row[1])
        )

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
        )
        return listing.page(rows, query.limit, seq=lambda row: row.seq, item=lambda row: _event(row.body))

    async def newest_events(self, count: int) -> list[Event]:
        """All operators', newest last. For in-process use only."""
        rows = await self._context.database.read(event_store.newest, count)
        return [_event(row.body) for row in reversed(rows)]

    async def newest_deliveries(self, count: int) -> list[Delivery]:
        """All operators', newest last. For in-process use only."""
        rows = await self._context.database.read(_newest_with_attempts, count)
        return [_delivery(row, attempts) for row, attempts in reversed(rows)]

    async def replay(self, principal: Principal, event_id: str, request: ReplayEvent) -> PageBody[Delivery]:
        """Create deliveries of an event, with the same body and identifier."""
        rows = await self._context.database.run(self._replay, principal, event_id, request)
        self._context.wakeup.set()
        return PageBody(data=tuple(_delivery(row, []) for row in rows), cursor="", has_more=False)

    async def replay_since(self, principal: Principal, request: ReplayDeliveries) -> ReplayedDeliveries:
        """Replay the events since a time whose newest delivery has a given status."""
        replayed = await self._context.database.run(self._replay_since, principal, request)
        self._context.wakeup.set()
        return replayed

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
            store.DELIVERIES.insert(connection, *(self._again(row, now_us) for row in chosen))
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
        return ReplayedDeliveries(replayed=len(chosen), has_more=len(found) > len(chosen))

    def _again(self, row: DeliveryRecord, now_us: int) -> DeliveryRecord:
        return new_delivery(
            delivery_id=self._context.identifiers.new(identifiers.DELIVERY),
            operator_id=row.operator_id,
            event_id=row.event_id,
            event_type=row.event_type,
            webhook_id=row.webhook_id,
            now_us=now_us,
        )

    def _replay(
        self, connection: Connection, principal: Principal, event_id: str, request: ReplayEvent
    ) -> list[DeliveryRecord]:
        event = None
        if identifiers.is_identifier(event_id, identifiers.EVENT):
            event = event_store.EVENTS.get(connection, event_id)
        if event is None or event.operator_id != principal.operator_id:
            raise not_found("event", event_id)
        if request.webhook_id is None:
            webhooks = [
                webhook.webhook_id
                for webhook in webhook_store.of_operator(connection, principal.operator_id)
                if webhook_store.subscription_of(webhook).wants(event.type, event.account_id)
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
            store.DELIVERIES.insert(connection, *rows)
        audit.record(
            connection,
            principal,
            action=REPLAY_EVENT.name,
            subject=event_id,
            now_us=now_us,
            after={"webhook_ids": webhooks},
        )
        return rows


def _filters(query: ListEvents | ListDeliveries, *names: str) -> dict[str, object]:
    values: dict[str, object] = {name: getattr(query, name) for name in names}
    return values | {
        f"{name}_us": None if moment is None else to_us(moment)
        for name, moment in (("since", query.since), ("until", query.until))
    }


def _named_webhook(connection: Connection, principal: Principal, webhook_id: str) -> str:
    record = None
    if identifiers.is_identifier(webhook_id, identifiers.WEBHOOK):
        record = webhook_store.WEBHOOKS.get(connection, webhook_id, webhook_store.IS_LIVE)
    if record is None or record.operator_id != principal.operator_id:
        raise invalid(FieldError(field="webhook_id", message="is not one of your webhooks"))
    return webhook_id


def _with_attempts(
    connection: Connection, operator_id: str, before: int, count: int, filters: Mapping[str, object]
) -> list[tuple[DeliveryRecord, list[AttemptRecord]]]:
    return _and_attempts(connection, store.PAGES(connection, operator_id, before, count, **filters))


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
    )


def _event(body: str) -> Event:
    return codec.structure(codec.parse_json(body.encode()), Event)
