"""The tables, for SQLite and PostgreSQL alike.

Amounts are integers of micro-USDC, times integers of microseconds since 1970. `seq` orders rows by insertion
and is what cursors point at. Names of columns are those of the contract where it has one.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata: Final = MetaData()


def _seq() -> Column[int]:
    return Column("seq", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True)


# What a server is, across its starts (services/identity.py).
server_state: Final = Table(
    "server_state",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

operators: Final = Table(
    "operators",
    metadata,
    _seq(),
    Column("operator_id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    _seq(),
    Column("key_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    # NULL for an operator key; the bound account of an agent-scoped one.
    Column("account_id", Text),
    Column("name", Text),
    # The SHA-256 of the key: the key itself is shown once and never stored.
    Column("digest", Text, nullable=False, unique=True),
    Column("created_us", BigInteger, nullable=False),
    Column("revoked_us", BigInteger),
    Index("ix_api_keys_operator", "operator_id", "seq"),
)

counters: Final = Table(
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

accounts: Final = Table(
    "accounts",
    metadata,
    _seq(),
    Column("account_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("handle", Text, nullable=False),
    Column("metadata", Text),
    # Position of the account's keys in the custody tree; never used twice.
    Column("key_index", BigInteger, nullable=False, unique=True),
    Column("chain_address", Text, nullable=False),
    Column("usdc_token_account", Text, nullable=False, unique=True),
    # The policy as canonical JSON; `paused` repeats one field of it, to be filtered by.
    Column("policy", Text, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("policy_version", BigInteger, nullable=False),
    Column("policy_updated_us", BigInteger, nullable=False),
    # Running total of the account's spends, and the time of the newest (domain/spending.py).
    Column("spent_total", BigInteger, nullable=False),
    Column("last_spend_us", BigInteger, nullable=False),
    # What the account holds by the books, which every settled movement changes in its own commit.
    Column("balance", BigInteger, nullable=False),
    # What signed transfers and openings of sessions that are not final may yet take from the balance.
    Column("in_flight", BigInteger, nullable=False),
    # Up to where the token account's history on chain was looked through for deposits; NULL: never.
    Column("deposit_cursor", Text),
    # Running total of all that was ever in flight: what was added between two looks is the difference.
    Column("in_flight_total", BigInteger, nullable=False),
    # The caps of all sessions that are not settled: they count against the daily limit in full.
    Column("session_reserved", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Index("ix_accounts_operator", "operator_id", "seq"),
    Index("ix_accounts_operator_paused", "operator_id", "paused", "seq"),
)

transfers: Final = Table(
    "transfers",
    metadata,
    _seq(),
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
    UniqueConstraint("operator_id", "held_key"),
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

expired_transactions: Final = Table(
    "expired_transactions",
    metadata,
    # What was proved never to land and was signed again: kept, so that the proof can be doubted afterwards.
    Column("signature", Text, primary_key=True),
    # The transfer or the session that it was for.
    Column("subject_id", Text, nullable=False),
    Column("last_valid_block_height", BigInteger, nullable=False),
    Column("expired_us", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

sessions: Final = Table(
    "sessions",
    metadata,
    _seq(),
    Column("session_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("account_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("to", Text, nullable=False),
    Column("recipient_account_id", Text),
    Column("recipient_token_account", Text, nullable=False),
    Column("category", Text),
    Column("cap", BigInteger, nullable=False),
    # What is charged so far: never above the cap, and what is settled once the session is no longer open.
    Column("running_total", BigInteger, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    # As for transfers: the key while this session holds it, and until when.
    Column("held_key", Text),
    Column("key_expires_us", BigInteger),
    Column("status", Text, nullable=False),
    # Why it failed; of one that is closing, why its settlement was refused.
    Column("error", Text),
    Column("message", Text),
    Column("escrow_token_account", Text, nullable=False, unique=True),
    Column("tx_signature", Text, nullable=False),
    Column("settlement_tx_signature", Text),
    # The transaction under way, of the opening or of the settlement; NULL when none is.
    Column("tx_raw", LargeBinary),
    Column("tx_last_valid_block_height", BigInteger),
    # How often a settlement was signed: each is another transaction, even of the same amounts.
    Column("settlements", Integer, nullable=False),
    # What the settlement under way returns beyond the cap: sent to the escrow by strangers.
    Column("deposited", BigInteger, nullable=False),
    Column("opened_us", BigInteger),
    Column("settled_us", BigInteger),
    # When an open session closes by itself; NULL where no limit is set.
    Column("closes_us", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    # Until when, in real time, a session that is opening or closing is left to whoever drives it; else NULL.
    Column("leased_until_us", BigInteger),
    UniqueConstraint("operator_id", "held_key"),
    Index("ix_sessions_operator", "operator_id", "seq"),
    Index("ix_sessions_operator_status", "operator_id", "status", "seq"),
    Index("ix_sessions_account", "account_id", "seq"),
    Index("ix_sessions_account_status", "account_id", "status", "seq"),
)
Index(
    "ix_sessions_leased",
    sessions.c.leased_until_us,
    sqlite_where=sessions.c.leased_until_us.is_not(None),
    postgresql_where=sessions.c.leased_until_us.is_not(None),
)
Index(
    "ix_sessions_closes",
    sessions.c.closes_us,
    sqlite_where=sessions.c.closes_us.is_not(None),
    postgresql_where=sessions.c.closes_us.is_not(None),
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
    _seq(),
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

events: Final = Table(
    "events",
    metadata,
    _seq(),
    Column("event_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("account_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    # The envelope as it is sent: every delivery attempt sends these very bytes.
    Column("body", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Index("ix_events_operator", "operator_id", "seq"),
    Index("ix_events_account", "operator_id", "account_id", "seq"),
)

webhooks: Final = Table(
    "webhooks",
    metadata,
    _seq(),
    Column("webhook_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("url", Text, nullable=False),
    # JSON arrays of strings.
    Column("events", Text, nullable=False),
    Column("account_ids", Text, nullable=False),
    Column("low_balance_threshold", BigInteger),
    # Sealed with the webhook's identifier. While a rotation overlaps, the next secret stands beside the one
    # in use, until the time at which it takes its place.
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
    _seq(),
    Column("delivery_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("webhook_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    # Attempts that have ended.
    Column("attempts", Integer, nullable=False),
    # When the next attempt is due, on the server's clock; NULL when there is none.
    Column("due_us", BigInteger),
    # Until when, in real time, the attempt that was begun belongs to whoever began it.
    Column("leased_until_us", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Index("ix_deliveries_operator", "operator_id", "seq"),
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

delivery_attempts: Final = Table(
    "delivery_attempts",
    metadata,
    Column("delivery_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("status_code", Integer),
    Column("error", Text),
    Column("duration_ms", Integer, nullable=False),
    sqlite_with_rowid=False,
)

policy_records: Final = Table(
    "policy_records",
    metadata,
    Column("account_id", Text, primary_key=True),
    Column("address", Text, nullable=False),
    # The write that is under way: the version of the policy that it carries, and the signed transaction. NULL
    # when none is under way.
    Column("signed_version", BigInteger),
    Column("signed_signature", Text),
    Column("signed_raw", LargeBinary),
    Column("signed_last_valid_block_height", BigInteger),
    # The version that the chain holds, 0 before the first write has landed.
    Column("written_version", BigInteger, nullable=False),
    Column("tx_signature", Text),
    # When the record is to be written again; NULL when the chain holds the newest version.
    Column("due_us", BigInteger),
    Column("failures", Integer, nullable=False),
)
Index("ix_policy_records_due", policy_records.c.due_us)

audit: Final = Table(
    "audit",
    metadata,
    _seq(),
    Column("operator_id", Text, nullable=False),
    # The key that did it.
    Column("key_id", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("request_id", Text),
    Column("created_us", BigInteger, nullable=False),
    Index("ix_audit_operator", "operator_id", "seq"),
)

# The ledger of the embedded chain (chain/ledger.py): another system, that happens to be stored here.

chain_state: Final = Table(
    "chain_state",
    metadata,
    Column("genesis", Text, primary_key=True),
    Column("slot", BigInteger, nullable=False),
    Column("height", BigInteger, nullable=False),
)

chain_accounts: Final = Table(
    "chain_accounts",
    metadata,
    Column("address", Text, primary_key=True),
    # The account as Solana serialises it; one that is gone has no row.
    Column("account", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

chain_signatures: Final = Table(
    "chain_signatures",
    metadata,
    Column("signature", Text, primary_key=True),
    # Why it moved nothing; NULL when it succeeded.
    Column("failure_reason", Text),
    Column("failure_detail", Text),
    sqlite_with_rowid=False,
)

chain_credits: Final = Table(
    "chain_credits",
    metadata,
    # What came into a token account, and the slot of the transaction that brought it.
    Column("token_account", Text, primary_key=True),
    Column("slot", BigInteger, primary_key=True),
    Column("signature", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("sender", Text),
    sqlite_with_rowid=False,
)
