"""Events, webhooks, deliveries and their attempts."""

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table, Text

from agentpay_server.database.tables.base import metadata, seq

events: Final = Table(
    "events",
    metadata,
    seq(),
    Column("event_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("account_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    # The serialized envelope. Every delivery attempt sends exactly these bytes.
    Column("body", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    # The transfer or payment that it reports, or the session; NULL without one.
    Column("transfer_id", Text),
    Column("session_id", Text),
    Index("ix_events_operator", "operator_id", "seq"),
    Index("ix_events_account", "operator_id", "account_id", "seq"),
    Index("ix_events_time", "operator_id", "created_us", "seq"),
)

Index(
    "ix_events_transfer",
    events.c.operator_id,
    events.c.transfer_id,
    events.c.seq,
    sqlite_where=events.c.transfer_id.is_not(None),
    postgresql_where=events.c.transfer_id.is_not(None),
)
Index(
    "ix_events_session",
    events.c.operator_id,
    events.c.session_id,
    events.c.seq,
    sqlite_where=events.c.session_id.is_not(None),
    postgresql_where=events.c.session_id.is_not(None),
)

webhooks: Final = Table(
    "webhooks",
    metadata,
    seq(),
    Column("webhook_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("url", Text, nullable=False),
    # JSON arrays of strings.
    Column("events", Text, nullable=False),
    Column("account_ids", Text, nullable=False),
    Column("low_balance_threshold", BigInteger),
    # Sealed for table, column and webhook. During a rotation's overlap, also the next secret and when it
    # becomes the current one.
    Column("secret", LargeBinary, nullable=False),
    Column("next_secret", LargeBinary),
    Column("next_secret_us", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    Column("deleted_us", BigInteger),
)

Index(
    "ix_webhooks_operator",
    webhooks.c.operator_id,
    webhooks.c.seq,
    sqlite_where=webhooks.c.deleted_us.is_(None),
    postgresql_where=webhooks.c.deleted_us.is_(None),
)

deliveries: Final = Table(
    "deliveries",
    metadata,
    seq(),
    Column("delivery_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("webhook_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    # The number of finished attempts.
    Column("attempts", Integer, nullable=False),
    # When the next attempt is due, by the server's clock; NULL if none is.
    Column("due_us", BigInteger),
    # Until when, in real time, the running attempt is leased.
    Column("leased_until_us", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Index("ix_deliveries_operator", "operator_id", "seq"),
    Index("ix_deliveries_time", "operator_id", "created_us", "seq"),
    Index("ix_deliveries_event", "operator_id", "event_id", "seq"),
    Index("ix_deliveries_webhook", "webhook_id", "operator_id", "seq"),
)

Index(
    "ix_deliveries_due",
    deliveries.c.due_us,
    deliveries.c.seq,
    sqlite_where=deliveries.c.due_us.is_not(None),
    postgresql_where=deliveries.c.due_us.is_not(None),
)

Index(
    "ix_deliveries_webhook_due",
    deliveries.c.webhook_id,
    deliveries.c.due_us,
    deliveries.c.seq,
    sqlite_where=deliveries.c.due_us.is_not(None),
    postgresql_where=deliveries.c.due_us.is_not(None),
)

Index(
    "ix_deliveries_undelivered",
    deliveries.c.operator_id,
    deliveries.c.seq,
    sqlite_where=deliveries.c.status == "undelivered",
    postgresql_where=deliveries.c.status == "undelivered",
)

delivery_attempts: Final = Table(
    "delivery_attempts",
    metadata,
    Column("delivery_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("status_code", Integer),
    Column("error", Text),
    Column("duration_ms", Integer, nullable=False),
    # The start of the response's body, as text.
    Column("response_excerpt", Text),
    sqlite_with_rowid=False,
)
