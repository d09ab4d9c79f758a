"""The outbox: events and their deliveries, written in the same commit as the change that they report.

So a webhook receives every event that is committed after its registration, and none from before.
"""

import json
from collections.abc import Collection
from typing import Final

from attrs import frozen
from sqlalchemy import bindparam, select, union_all

from agentpay.contract import codec, identifiers
from agentpay.contract.choices import EventType
from agentpay.contract.events import BalanceLowThresholdData
from agentpay.contract.fields import format_timestamp
from agentpay.contract.usdc import from_micro
from agentpay_server.database import pages
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import DeliveryRecord, EventRecord, WebhookRecord, events, webhooks
from agentpay_server.ledger import accounts, deliveries
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.deliveries import DeliveryStatus
from agentpay_server.ledger.finding import OPERATOR, SESSION_IDS, TRANSFER_IDS, Q
from agentpay_server.platform.clock import from_us

# --- Registered webhooks, and what they subscribe to (interface W3, EV4)


@frozen(kw_only=True)
class Subscription:
    """The subscription of a webhook.

    Without `account_ids`, all accounts of the operator. `low_balance_micro` is in micro-USDC; None means
    never.
    """

    webhook_id: str
    events: Collection[str]
    account_ids: Collection[str]
    low_balance_micro: int | None

    def wants(self, event_type: str, account_id: str) -> bool:
        return event_type in self.events and (not self.account_ids or account_id in self.account_ids)

    def wants_drop(self, account_id: str, *, before_micro: int, after_micro: int) -> bool:
        """Only the crossing counts: while the balance stays below, no further event is sent."""
        threshold = self.low_balance_micro
        return (
            threshold is not None
            and after_micro < threshold <= before_micro
            and self.wants("balance.low_threshold", account_id)
        )


WEBHOOKS: Final = Rows(WebhookRecord, "webhook_id")
IS_LIVE_WEBHOOK: Final = webhooks.c.deleted_us.is_(None)
WEBHOOK_PAGES: Final = WEBHOOKS.pages("operator_id", IS_LIVE_WEBHOOK)
_OF_OPERATOR: Final = (
    select(webhooks)
    .where(webhooks.c.operator_id == bindparam("operator_id"), IS_LIVE_WEBHOOK)
    .order_by(webhooks.c.seq)
)


def subscription_of(webhook: WebhookRecord) -> Subscription:
    return Subscription(
        webhook_id=webhook.webhook_id,
        events=json.loads(webhook.events),
        account_ids=json.loads(webhook.account_ids),
        low_balance_micro=webhook.low_balance_threshold,
    )


def webhooks_of_operator(connection: Connection, operator_id: str) -> list[WebhookRecord]:
    """Oldest first."""
    return WEBHOOKS.all(connection, _OF_OPERATOR, operator_id=operator_id)


EVENTS: Final = Rows(EventRecord, "event_id")
_of_found = events.alias("of_found")
_IS_OF_FOUND: Final = events.c.seq.in_(
    union_all(
        select(events.c.seq).where(events.c.event_id == Q),
        *(
            select(_of_found.c.seq).where(
                _of_found.c.operator_id == OPERATOR, _of_found.c[identifier].in_(found)
            )
            for identifier, found in (("transfer_id", TRANSFER_IDS), ("session_id", SESSION_IDS))
        ),
    )
)
PAGES: Final = EVENTS.pages(
    "operator_id",
    equal=("type", "account_id", "transfer_id", "session_id"),
    filters={
        "since_us": pages.since(events),
        "until_us": pages.until(events),
        "q": (_IS_OF_FOUND,),
    },
    few="q",
)
# Always true: the condition makes the engines use the index on `seq`.
_NEWEST: Final = (
    select(events).where(events.c.seq > 0).order_by(events.c.seq.desc()).limit(bindparam("count"))
)
_AFTER: Final = (
    select(events).where(events.c.seq > bindparam("after")).order_by(events.c.seq).limit(bindparam("count"))
)
_BETWEEN: Final = (
    select(events)
    .where(
        events.c.operator_id == bindparam("operator_id"),
        events.c.seq > bindparam("after"),
        events.c.seq <= bindparam("until"),
    )
    .order_by(events.c.seq)
    .limit(bindparam("count"))
)


def newest(connection: Connection, count: int) -> list[EventRecord]:
    """All operators', newest first."""
    return EVENTS.all(connection, _NEWEST, count=count)


def last_seq(connection: Connection) -> int:
    """Of all operators; 0 if no event exists."""
    found = EVENTS.one(connection, _NEWEST, count=1)
    return 0 if found is None else found.seq


def after(connection: Connection, seq: int, count: int) -> list[EventRecord]:
    """Events of all operators above a sequence number, in order."""
    return EVENTS.all(connection, _AFTER, after=seq, count=count)


def between(
    connection: Connection, operator_id: str, after_seq: int, until_seq: int, count: int
) -> list[EventRecord]:
    """Events above one sequence number and up to another, in order."""
    return EVENTS.all(
        connection, _BETWEEN, operator_id=operator_id, after=after_seq, until=until_seq, count=count
    )


@frozen(kw_only=True)
class NewEvent:
    type: EventType
    data: object


class Outbox:
    """The events of one unit of work about one account, in order."""

    def __init__(
        self, connection: Connection, context: Context, *, operator_id: str, account_id: str, now_us: int
    ) -> None:
        self.connection = connection
        self._context = context
        self._ids = context.identifiers
        self._operator_id = operator_id
        self._account_id = account_id
        self._now_us = now_us
        self._created_at = format_timestamp(from_us(now_us))
        rows = webhooks_of_operator(connection, operator_id)
        self._subscriptions = [subscription_of(row) for row in rows]
        self._events: list[EventRecord] = []
        self._deliveries: list[DeliveryRecord] = []

    def add(self, event: NewEvent, only: Subscription | None = None) -> None:
        """For every webhook that is subscribed to its type and account, or for `only` one of these."""
        event_id, event_type = self._ids.new(identifiers.EVENT), event.type
        # The envelope of `contract.events.Event`, serialized without creating an instance.
        data = codec.unstructure(event.data)
        envelope = {"id": event_id, "type": event_type, "created_at": self._created_at, "data": data}
        self._events.append(
            EventRecord(
                seq=0,
                event_id=event_id,
                operator_id=self._operator_id,
                account_id=self._account_id,
                type=event_type,
                body=codec.print_json(envelope).decode("ascii"),
                created_us=self._now_us,
                transfer_id=data.get("transfer_id"),
                session_id=data.get("session_id"),
            )
        )
        for subscription in self._subscriptions if only is None else (only,):
            if subscription.wants(event_type, self._account_id):
                self._deliveries.append(
                    new_delivery(
                        delivery_id=self._ids.new(identifiers.DELIVERY),
                        operator_id=self._operator_id,
                        event_id=event_id,
                        event_type=event_type,
                        webhook_id=subscription.webhook_id,
                        now_us=self._now_us,
                    )
                )

    def wants_drop(self, *, before_micro: int, after_micro: int) -> bool:
        """Return whether the change crosses the low-balance threshold of any webhook."""
        return any(
            subscription.wants_drop(self._account_id, before_micro=before_micro, after_micro=after_micro)
            for subscription in self._subscriptions
        )

    def add_drop_of_balance(self, *, before_micro: int, after_micro: int) -> None:
        """Add a `balance.low_threshold` for each webhook whose threshold is crossed (interface EV4)."""
        for subscription in self._subscriptions:
            if not subscription.wants_drop(
                self._account_id, before_micro=before_micro, after_micro=after_micro
            ):
                continue
            account = accounts.ACCOUNTS.get(self.connection, self._account_id)
            assert account is not None  # noqa: S101 - accounts are never deleted
            low = NewEvent(
                type="balance.low_threshold",
                data=BalanceLowThresholdData(
                    account_id=self._account_id,
                    # A spend may be posted before the deposit that funds it: the balance may be negative.
                    balance_usdc=from_micro(max(after_micro, 0)),
                    usdc_token_account=account.usdc_token_account,
                ),
            )
            self.add(low, subscription)

    def write(self) -> None:
        if self._events:
            EVENTS.insert(self.connection, *self._events)
        if self._deliveries:
            self._context.wakeup.note()
            deliveries.DELIVERIES.insert(self.connection, *self._deliveries)


def new_delivery(
    *, delivery_id: str, operator_id: str, event_id: str, event_type: str, webhook_id: str, now_us: int
) -> DeliveryRecord:
    return DeliveryRecord(
        seq=0,
        delivery_id=delivery_id,
        operator_id=operator_id,
        event_id=event_id,
        event_type=event_type,
        webhook_id=webhook_id,
        status=DeliveryStatus.PENDING.value,
        attempts=0,
        due_us=now_us,
        leased_until_us=0,
        created_us=now_us,
    )
