"""Transfers, their transactions, what they spend, and the history of accounts."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    not_,
    text,
)

from agentpay_server.store.tables.base import metadata, seq

transfers: Final = Table(
    "transfers",
    metadata,
    seq(),
    Column("transfer_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("account_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("to", Text, nullable=False),
    Column("recipient_account_id", Text),
    Column("recipient_token_account", Text),
    Column("amount", BigInteger, nullable=False),
    Column("memo", Text),
    Column("category", Text),
    Column("idempotency_key", Text, nullable=False),
    # The idempotency key again while this is the transfer that it stands for, else NULL; and until when
    # (NULL: not yet final).
    Column("held_key", Text),
    Column("key_expires_us", BigInteger),
    Column("status", Text, nullable=False),
    Column("error", Text),
    Column("message", Text),
    # The signed transaction: its name for good, its bytes and the last block height at which it can land for
    # as long as the transfer is submitted. They are stored before they are first sent.
    Column("tx_signature", Text),
    Column("tx_raw", LargeBinary),
    Column("tx_last_valid_block_height", BigInteger),
    # Whether `transfer.initiated` was written ahead of the end, because finality had to be awaited.
    Column("initiated", Boolean, nullable=False),
    Column("spent_us", BigInteger),
    Column("settled_us", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    # Until when an operator may approve it; NULL for a transfer that never needed approval.
    Column("approval_expires_us", BigInteger),
    # Until when, in real time, a submitted transfer belongs to the process that drives it.
    Column("leased_until_us", BigInteger, nullable=False),
    # Whether it carries the operator's claim to its key (store/held_keys.py).
    Column("claimed_by_operator", Boolean, nullable=False),
    UniqueConstraint("account_id", "held_key"),
    Index("ix_transfers_operator", "operator_id", "seq"),
    Index("ix_transfers_operator_status", "operator_id", "status", "seq"),
    Index("ix_transfers_account", "operator_id", "account_id", "seq"),
    Index("ix_transfers_account_status", "operator_id", "account_id", "status", "seq"),
    Index("ix_transfers_key", "operator_id", "idempotency_key", "seq"),
)

Index(
    "ux_transfers_claimed_key",
    transfers.c.operator_id,
    transfers.c.held_key,
    unique=True,
    # In the words of the statements: SQLite matches no others to a partial index.
    sqlite_where=text("claimed_by_operator = 1"),
    postgresql_where=transfers.c.claimed_by_operator,
)

Index(
    "ix_transfers_agents_key",
    transfers.c.operator_id,
    transfers.c.held_key,
    transfers.c.key_expires_us,
    sqlite_where=not_(transfers.c.claimed_by_operator),
    postgresql_where=not_(transfers.c.claimed_by_operator),
)

Index(
    "ix_transfers_submitted",
    transfers.c.account_id,
    transfers.c.seq,
    sqlite_where=transfers.c.status == "submitted",
    postgresql_where=transfers.c.status == "submitted",
)

Index(
    "ix_transfers_pending",
    transfers.c.operator_id,
    transfers.c.seq,
    sqlite_where=transfers.c.status == "pending_approval",
    postgresql_where=transfers.c.status == "pending_approval",
)

Index(
    "ix_transfers_pending_due",
    transfers.c.approval_expires_us,
    transfers.c.seq,
    sqlite_where=transfers.c.status == "pending_approval",
    postgresql_where=transfers.c.status == "pending_approval",
)

confirmed_transactions: Final = Table(
    "confirmed_transactions",
    metadata,
    # What counts as settled and may yet vanish with its block: it is watched, and sent again if it does.
    Column("signature", Text, primary_key=True),
    # What it was for: a transfer_id, a session_id or an account_id. Accounts may share a transaction.
    Column("subject", Text, primary_key=True),
    Column("raw", LargeBinary, nullable=False),
    Column("last_valid_block_height", BigInteger, nullable=False),
    # What is in flight again of the account that pays, since it has vanished; 0 while it has not.
    Column("reserved", BigInteger, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
)

Index(
    "ix_confirmed_transactions_reserved",
    confirmed_transactions.c.subject,
    confirmed_transactions.c.reserved,
    sqlite_where=text("reserved > 0"),
    postgresql_where=text("reserved > 0"),
)

expired_transactions: Final = Table(
    "expired_transactions",
    metadata,
    # What is believed never to land: watched until the history of the chain rules out that it has landed.
    Column("signature", Text, primary_key=True),
    # The transfer, the session or, of a policy record, the account that it was for.
    Column("subject_id", Text, nullable=False),
    Column("last_valid_block_height", BigInteger, nullable=False),
    Column("expired_us", BigInteger, nullable=False),
    # `transfer`, `session_open`, `session_settle` or `policy_record`, and the account that pays; NULL where
    # it expired before these were stored.
    Column("kind", Text),
    Column("account_id", Text),
    # Of a session's settlement, what it returns beyond the cap; of a policy record, the version that it
    # holds.
    Column("detail", BigInteger),
    # `watched`, then `landed` or `ruled_out`, and when it became so.
    Column("state", Text, nullable=False, server_default="ruled_out"),
    Column("ended_us", BigInteger),
    sqlite_with_rowid=False,
)

Index(
    "ix_expired_transactions_watched",
    expired_transactions.c.subject_id,
    expired_transactions.c.signature,
    sqlite_where=expired_transactions.c.state == "watched",
    postgresql_where=expired_transactions.c.state == "watched",
)

spends: Final = Table(
    "spends",
    metadata,
    Column("account_id", Text, primary_key=True),
    Column("spent_us", BigInteger, primary_key=True),
    Column("running_total", BigInteger, primary_key=True),
    # The key is the whole look-up: the rows themselves are kept in its order.
    sqlite_with_rowid=False,
)

releases: Final = Table(
    "releases",
    metadata,
    Column("account_id", Text, primary_key=True),
    # The time of the spend that never happened, not of its release.
    Column("spent_us", BigInteger, primary_key=True),
    Column("source_id", Text, primary_key=True),
    Column("amount", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

entries: Final = Table(
    "entries",
    metadata,
    seq(),
    Column("transaction_id", Text, nullable=False),
    Column("account_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("direction", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("counterparty", Text),
    Column("memo", Text),
    Column("category", Text),
    Column("tx_signature", Text),
    Column("transfer_id", Text),
    Column("session_id", Text),
    Column("rejection_reason", Text),
    Column("created_us", BigInteger, nullable=False),
    Index("ix_entries_account", "account_id", "seq"),
    Index("ix_entries_account_status", "account_id", "status", "seq"),
)

Index(
    # A deposit is booked once, however often it is noticed.
    "ux_entries_deposit",
    entries.c.account_id,
    entries.c.tx_signature,
    unique=True,
    sqlite_where=entries.c.type == "deposit",
    postgresql_where=entries.c.type == "deposit",
)
