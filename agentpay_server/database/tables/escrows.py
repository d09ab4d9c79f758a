"""Sessions and their charges."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    not_,
    text,
)

from agentpay_server.database.tables.base import metadata, seq

sessions: Final = Table(
    "sessions",
    metadata,
    seq(),
    Column("session_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("account_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("to", Text, nullable=False),
    Column("recipient_account_id", Text),
    Column("recipient_token_account", Text, nullable=False),
    Column("category", Text),
    Column("cap", BigInteger, nullable=False),
    # The sum of the charges, at most the cap. It is what the settlement pays.
    Column("running_total", BigInteger, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    # The idempotency key while this session holds it, and until when, as in `transfers`.
    Column("held_key", Text),
    Column("key_expires_us", BigInteger),
    Column("status", Text, nullable=False),
    # Why it failed; while it is closing, why its settlement failed.
    Column("error", Text),
    Column("message", Text),
    Column("escrow_token_account", Text, nullable=False, unique=True),
    Column("tx_signature", Text, nullable=False),
    Column("settlement_tx_signature", Text, unique=True),
    # Number of signed settlements. Each is a different transaction, even with the same amounts.
    Column("settlements", Integer, nullable=False),
    # How often its settlement was postponed: the retry interval grows each time. The column keeps its first
    # name, which servers of the previous version use.
    Column("put_offs", Integer, key="postponements", nullable=False),
    Column("opened_us", BigInteger),
    Column("settled_us", BigInteger),
    # While open: when it closes automatically; NULL without a limit. While closing: when its settlement is
    # signed (again); NULL once signed.
    Column("closes_us", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    # Whether it holds the operator's claim to its key (money/held_keys.py).
    Column("claimed_by_operator", Boolean, nullable=False),
    # The owner of the payee's token account, to recreate it if it is closed. NULL in older rows.
    Column("recipient_owner", Text),
    # Which time limit closed it (`ClosingReason`); NULL if a caller closed it, or if it is open.
    Column("closed_by", Text),
    # The obstacle to its settlement (`ClosingReason`); NULL without one.
    Column("stuck_reason", Text),
    # When a settlement that creates the payee's token account was signed; NULL if none was.
    Column("payee_created_us", BigInteger),
    UniqueConstraint("account_id", "held_key"),
    Index("ix_sessions_operator", "operator_id", "seq"),
    Index("ix_sessions_operator_status", "operator_id", "status", "seq"),
    Index("ix_sessions_account", "account_id", "seq"),
    Index("ix_sessions_account_status", "account_id", "status", "seq"),
    Index("ix_sessions_key", "operator_id", "idempotency_key", "seq"),
)

Index(
    "ux_sessions_claimed_key",
    sessions.c.operator_id,
    sessions.c.held_key,
    unique=True,
    # The same text as in the statements: SQLite needs that to use a partial index.
    sqlite_where=text("claimed_by_operator = 1"),
    postgresql_where=sessions.c.claimed_by_operator,
)

Index(
    "ix_sessions_agents_key",
    sessions.c.operator_id,
    sessions.c.held_key,
    sessions.c.key_expires_us,
    sqlite_where=not_(sessions.c.claimed_by_operator),
    postgresql_where=not_(sessions.c.claimed_by_operator),
)

Index(
    "ix_sessions_closes",
    sessions.c.closes_us,
    sqlite_where=sessions.c.closes_us.is_not(None),
    postgresql_where=sessions.c.closes_us.is_not(None),
)

Index(
    "ix_sessions_payee_created",
    sessions.c.account_id,
    sessions.c.payee_created_us,
    sqlite_where=sessions.c.payee_created_us.is_not(None),
    postgresql_where=sessions.c.payee_created_us.is_not(None),
)

session_charges: Final = Table(
    "session_charges",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("idempotency_key", Text, primary_key=True),
    Column("amount", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
