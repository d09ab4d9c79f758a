"""Events, webhooks, deliveries and their attempts."""

from typing import Annotated, Final

from attrs import field, frozen
from sqlalchemy import Index

from agentpay_server.database.tables.base import KEY, SMALL, UNIQUE, Seq, index_where, row, table_of


@row(
    "events",
    Index("ix_events_operator", "operator_id", "seq"),
    Index("ix_events_account", "operator_id", "account_id", "seq"),
    Index("ix_events_type", "operator_id", "type", "seq"),
    Index("ix_events_time", "operator_id", "created_us", "seq"),
    index_where("transfer_id IS NOT NULL", "ix_events_transfer", "operator_id", "transfer_id", "seq"),
    index_where("session_id IS NOT NULL", "ix_events_session", "operator_id", "session_id", "seq"),
)
@frozen
class EventRecord:
    """An event."""

    seq: Seq
    event_id: Annotated[str, UNIQUE]
    operator_id: str
    account_id: str
    type: str
    # The serialized envelope. Every delivery attempt sends exactly these bytes.
    body: str
    created_us: int
    # The transfer or payment that it reports, or the session; NULL without one.
    transfer_id: str | None
    session_id: str | None


@row("webhooks", index_where("deleted_us IS NULL", "ix_webhooks_operator", "operator_id", "seq"))
@frozen
class WebhookRecord:
    """A registered webhook."""

    seq: Seq
    webhook_id: Annotated[str, UNIQUE]
    operator_id: str
    url: str
    # Since when it has this URL.
    url_since_us: int
    # JSON arrays of strings.
    events: str
    account_ids: str
    low_balance_threshold: int | None
    # Sealed for table, column and webhook. During a rotation's overlap, also the next secret and when it
    # becomes the current one.
    secret: bytes = field(repr=False)
    next_secret: bytes | None = field(repr=False)
    next_secret_us: int | None
    created_us: int
    deleted_us: int | None


@row(
    "deliveries",
    Index("ix_deliveries_operator", "operator_id", "seq"),
    Index("ix_deliveries_time", "operator_id", "created_us", "seq"),
    Index("ix_deliveries_event", "operator_id", "event_id", "seq"),
    Index("ix_deliveries_webhook", "webhook_id", "operator_id", "seq"),
    index_where("due_us IS NOT NULL", "ix_deliveries_due", "due_us", "seq"),
    index_where("due_us IS NOT NULL", "ix_deliveries_webhook_due", "webhook_id", "due_us", "seq"),
    index_where("status = 'undelivered'", "ix_deliveries_undelivered", "operator_id", "seq"),
)
@frozen
class DeliveryRecord:
    """The delivery of an event to a webhook."""

    seq: Seq
    delivery_id: Annotated[str, UNIQUE]
    operator_id: str
    event_id: str
    event_type: str
    webhook_id: str
    status: str
    # The number of finished attempts.
    attempts: Annotated[int, SMALL]
    # When the next attempt is due, by the server's clock; NULL if none is.
    due_us: int | None
    # Until when, in real time, the running attempt is leased.
    leased_until_us: int
    created_us: int


@row("delivery_attempts", sqlite_with_rowid=False)
@frozen
class AttemptRecord:
    """An attempt at a delivery."""

    delivery_id: Annotated[str, KEY]
    attempt: Annotated[int, KEY, SMALL]
    at_us: int
    status_code: Annotated[int | None, SMALL]
    error: str | None
    duration_ms: Annotated[int, SMALL]
    # The start of the response's body, as text.
    response_excerpt: str | None = None


events: Final = table_of(EventRecord)
webhooks: Final = table_of(WebhookRecord)
deliveries: Final = table_of(DeliveryRecord)
delivery_attempts: Final = table_of(AttemptRecord)
