"""Transfers, all signed transactions, and the history of accounts."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    not_,
    text,
)

from agentpay_server.database.tables.base import metadata, seq

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
    # The idempotency key while this transfer holds it, otherwise NULL; and until when, NULL before it is
    # final.
    Column("held_key", Text),
    Column("key_expires_us", BigInteger),
    Column("status", Text, nullable=False),
    Column("error", Text),
    Column("message", Text),
    # The signature of its newest transaction, in `chain_transactions`.
    Column("tx_signature", Text),
    Column("settled_us", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    # Until when an operator may approve it; NULL for a transfer that never needed approval.
    Column("approval_expires_us", BigInteger),
    # Whether it holds the operator's claim to its key (money/held_keys.py).
    Column("claimed_by_operator", Boolean, nullable=False),
    # A digest of the challenge's terms, for a payment behind HTTP 402; NULL for other transfers.
    Column("payment_digest", Text),
    # What recipients other than `to` get of a payment, as JSON: [[owner, micro-USDC], …]; NULL without any.
    Column("splits", Text),
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
    # The same text as in the statements: SQLite needs that to use a partial index.
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

Index(
    "ix_transfers_approved_due",
    transfers.c.approval_expires_us,
    transfers.c.seq,
    sqlite_where=transfers.c.status == "approved",
    postgresql_where=transfers.c.status == "approved",
)

payments: Final = Table(
    "payments",
    metadata,
    seq(),
    # A payment is also a transfer.
    Column("transfer_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("account_id", Text, nullable=False),
    # The terms of the 402, and the seller's origin.
    Column("protocol", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("url", Text),
    Column("recipient", Text, nullable=False),
    Column("fee_payer", Text),
    # Set when the payment is signed: the bytes as handed out, their blockhash, a nonce that is unique per
    # account and blockhash, and about when they expire. The bytes are kept after the payment's end, because
    # the same key returns them again for a day, even if an expired payment landed late. They have no value by
    # then.
    Column("raw", LargeBinary),
    Column("blockhash", Text),
    Column("nonce", BigInteger),
    Column("expires_us", BigInteger),
    # The seller's response as the client reports it.
    Column("outcome_status", BigInteger),
    Column("outcome_receipt", Text),
    Column("outcome_duration_ms", BigInteger),
    # Makes equal payments different transactions.
    UniqueConstraint("account_id", "blockhash", "nonce"),
    CheckConstraint(
        "(raw IS NULL) = (blockhash IS NULL) AND (raw IS NULL) = (nonce IS NULL) "
        "AND (raw IS NULL) = (expires_us IS NULL)",
        name="ck_payments_signed",
    ),
    Index("ix_payments_operator", "operator_id", "seq"),
    Index("ix_payments_account", "operator_id", "account_id", "seq"),
    Index("ix_payments_origin", "operator_id", "origin", "seq"),
)

pinned_origins: Final = Table(
    "pinned_origins",
    metadata,
    seq(),
    Column("operator_id", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("category", Text),
    # A JSON list of addresses; NULL allows all.
    Column("recipients", Text),
    Column("max_amount", BigInteger),
    Column("blocked", Boolean, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    UniqueConstraint("operator_id", "origin"),
    Index("ix_pinned_origins_operator", "operator_id", "seq"),
)

chain_transactions: Final = Table(
    "chain_transactions",
    metadata,
    seq(),
    # Identifies the transaction. Accounts that were provisioned together share one, with a row each.
    Column("signature", Text, nullable=False),
    # `Kind`, and its subject: a transfer_id, a session_id or an account_id.
    Column("kind", Text, nullable=False),
    Column("subject_id", Text, nullable=False),
    # The account whose key signed it, and how much of its balance it debits: in flight while pending.
    Column("account_id", Text, nullable=False),
    Column("held", BigInteger, nullable=False),
    # The account of this service that it credits when it settles; NULL without one.
    Column("credits_account_id", Text),
    # For the daily limit: its time, and the account's running total including it. NULL if it does not count.
    Column("spent_us", BigInteger),
    Column("spent_total", BigInteger),
    # A copy of `spent_us`, set once the spend is proved never to have happened. A separate column, because
    # SQLite would read the whole window to find rows by state.
    Column("released_us", BigInteger),
    # `State`.
    Column("state", Text, nullable=False),
    # The bytes, while they may have to be (re)sent. They are stored before the first send.
    Column("raw", LargeBinary),
    Column("last_valid_block_height", BigInteger, nullable=False),
    # JSON of its handler, specific to this transaction.
    Column("detail", Text),
    # When the event that reports the submission was emitted, before the outcome.
    Column("announced_us", BigInteger),
    # The amount in flight again because the transaction was reorganized away; 0 otherwise.
    Column("reserved", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger),
    # Until when, in real time, a pending one is leased to a process.
    Column("leased_until_us", BigInteger, nullable=False),
    # The signature that identifies a payment on chain, once known: that of the fee payer.
    Column("chain_signature", Text),
    UniqueConstraint("signature", "subject_id"),
    CheckConstraint(
        "(state IN ('pending', 'confirmed')) = (raw IS NOT NULL)", name="ck_chain_transactions_raw"
    ),
    CheckConstraint("(state = 'pending') = (ended_us IS NULL)", name="ck_chain_transactions_ended"),
    CheckConstraint("(spent_us IS NULL) = (spent_total IS NULL)", name="ck_chain_transactions_spent"),
    CheckConstraint("held >= 0", name="ck_chain_transactions_held"),
)

_IS_PENDING: Final = chain_transactions.c.state == "pending"
_IS_CONFIRMED: Final = chain_transactions.c.state == "confirmed"
_IS_EXPIRED: Final = chain_transactions.c.state == "expired"

# Partial: most of these indexes contain only rows in flight or watched, not history.
Index(
    # At most one transaction of a subject is in flight.
    "ux_chain_transactions_pending",
    chain_transactions.c.subject_id,
    chain_transactions.c.kind,
    unique=True,
    sqlite_where=_IS_PENDING,
    postgresql_where=_IS_PENDING,
)
Index(
    "ix_chain_transactions_leased",
    chain_transactions.c.leased_until_us,
    sqlite_where=_IS_PENDING,
    postgresql_where=_IS_PENDING,
)
Index(
    "ix_chain_transactions_account",
    chain_transactions.c.account_id,
    chain_transactions.c.seq,
    sqlite_where=_IS_PENDING,
    postgresql_where=_IS_PENDING,
)
Index(
    "ix_chain_transactions_confirmed",
    chain_transactions.c.signature,
    sqlite_where=_IS_CONFIRMED,
    postgresql_where=_IS_CONFIRMED,
)
Index(
    "ix_chain_transactions_reserved",
    chain_transactions.c.account_id,
    chain_transactions.c.reserved,
    sqlite_where=text("reserved > 0"),
    postgresql_where=text("reserved > 0"),
)
Index(
    "ix_chain_transactions_expired",
    chain_transactions.c.subject_id,
    chain_transactions.c.signature,
    sqlite_where=_IS_EXPIRED,
    postgresql_where=_IS_EXPIRED,
)
Index(
    "ix_chain_transactions_spent",
    chain_transactions.c.account_id,
    chain_transactions.c.spent_us,
    chain_transactions.c.spent_total,
    sqlite_where=chain_transactions.c.spent_us.is_not(None),
    postgresql_where=chain_transactions.c.spent_us.is_not(None),
)
Index(
    "ix_chain_transactions_released",
    chain_transactions.c.account_id,
    chain_transactions.c.released_us,
    chain_transactions.c.held,
    sqlite_where=chain_transactions.c.released_us.is_not(None),
    postgresql_where=chain_transactions.c.released_us.is_not(None),
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
    # A deposit is booked once, however often it is reported.
    "ux_entries_deposit",
    entries.c.account_id,
    entries.c.tx_signature,
    unique=True,
    sqlite_where=entries.c.type == "deposit",
    postgresql_where=entries.c.type == "deposit",
)
