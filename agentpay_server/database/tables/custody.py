"""Accounts, and the on-chain records of their policies."""

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text

from agentpay_server.database.tables.base import metadata, seq

accounts: Final = Table(
    "accounts",
    metadata,
    seq(),
    Column("account_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("handle", Text, nullable=False),
    Column("metadata", Text),
    # Position of the account's keys in the custody tree; never reused.
    Column("key_index", BigInteger, nullable=False, unique=True),
    Column("chain_address", Text, nullable=False),
    Column("usdc_token_account", Text, nullable=False, unique=True),
    # The policy as canonical JSON. `paused` copies one of its fields, for filters.
    Column("policy", Text, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("policy_version", BigInteger, nullable=False),
    Column("policy_updated_us", BigInteger, nullable=False),
    # Running total of the account's spends, and the time of the newest (money/spending.py).
    Column("spent_total", BigInteger, nullable=False),
    Column("last_spend_us", BigInteger, nullable=False),
    # The booked balance. Every settled movement changes it in its own commit.
    Column("balance", BigInteger, nullable=False),
    # The amount that signed transfers and session openings that are not final may still debit.
    Column("in_flight", BigInteger, nullable=False),
    # How far the token account's on-chain history was scanned for deposits; NULL if never.
    Column("deposit_cursor", Text),
    # Running total of every amount that went in flight: the difference of two values is what was added.
    Column("in_flight_total", BigInteger, nullable=False),
    # The caps of all unsettled sessions, which count against the daily limit in full.
    Column("session_reserved", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    # The amount debited since `balance.low_threshold` was last checked.
    Column("unjudged_spend", BigInteger, nullable=False, server_default="0"),
    # Since when signing is stopped, because a transaction landed that had been considered expired.
    Column("stopped_us", BigInteger),
    Index("ix_accounts_operator", "operator_id", "seq"),
    Index("ix_accounts_operator_paused", "operator_id", "paused", "seq"),
)

Index(
    "ix_accounts_stopped",
    accounts.c.stopped_us,
    sqlite_where=accounts.c.stopped_us.is_not(None),
    postgresql_where=accounts.c.stopped_us.is_not(None),
)

policy_records: Final = Table(
    "policy_records",
    metadata,
    Column("account_id", Text, primary_key=True),
    Column("address", Text, nullable=False),
    # The version on chain, 0 before the first write has landed.
    Column("written_version", BigInteger, nullable=False),
    Column("tx_signature", Text),
    # When the record must be written; NULL if the chain has the newest version.
    Column("due_us", BigInteger),
    Column("failures", Integer, nullable=False),
)

Index("ix_policy_records_due", policy_records.c.due_us)
