"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = None


def upgrade() -> None:  # noqa: PLR0915 - one statement for each table and each index
    """The first tables."""
    op.create_table(
        "account_claims",
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("operator_id", "number"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "accounts",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("handle", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("key_index", sa.BigInteger(), nullable=False),
        sa.Column("chain_address", sa.Text(), nullable=False),
        sa.Column("usdc_token_account", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("policy_version", sa.BigInteger(), nullable=False),
        sa.Column("policy_updated_us", sa.BigInteger(), nullable=False),
        sa.Column("spent_total", sa.BigInteger(), nullable=False),
        sa.Column("last_spend_us", sa.BigInteger(), nullable=False),
        sa.Column("balance", sa.BigInteger(), nullable=False),
        sa.Column("in_flight", sa.BigInteger(), nullable=False),
        sa.Column("deposit_cursor", sa.Text(), nullable=True),
        sa.Column("in_flight_total", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("unjudged_spend", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("suspended_us", sa.BigInteger(), nullable=True),
        sa.Column("burned_total", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_burned_us", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("operator_burned_total", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("account_id"),
        sa.UniqueConstraint("key_index"),
        sa.UniqueConstraint("usdc_token_account"),
    )
    op.create_index("ix_accounts_operator", "accounts", ["operator_id", "seq"], unique=False)
    op.create_index("ix_accounts_operator_paused", "accounts", ["operator_id", "paused", "seq"], unique=False)
    op.create_index(
        "ix_accounts_suspended",
        "accounts",
        ["suspended_us"],
        unique=False,
        sqlite_where=sa.text("suspended_us IS NOT NULL"),
        postgresql_where=sa.text("suspended_us IS NOT NULL"),
    )
    op.create_table(
        "api_keys",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("revoked_us", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("max_total", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("digest"),
        sa.UniqueConstraint("key_id"),
    )
    op.create_index("ix_api_keys_operator", "api_keys", ["operator_id", "seq"], unique=False)
    op.create_table(
        "audit",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_audit_operator", "audit", ["operator_id", "seq"], unique=False)
    op.create_index("ix_audit_time", "audit", ["operator_id", "created_us", "seq"], unique=False)
    op.create_table(
        "chain_accounts",
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("account", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("address"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "chain_credits",
        sa.Column("token_account", sa.Text(), nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("token_account", "slot"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "chain_history",
        sa.Column("slot", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("height", sa.BigInteger(), nullable=False),
        sa.Column("time_us", sa.BigInteger(), nullable=False),
        sa.Column("executed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("slot"),
    )
    op.create_table(
        "chain_signatures",
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("failure_reason", sa.Text(), nullable=True),
        sa.Column("failure_detail", sa.Text(), nullable=True),
        sa.Column("message_hash", sa.LargeBinary(), nullable=True),
        sa.Column("height", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("signature"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_chain_signatures_height", "chain_signatures", ["height"], unique=False)
    op.create_index("ix_chain_signatures_message", "chain_signatures", ["message_hash"], unique=False)
    op.create_table(
        "chain_state",
        sa.Column("genesis", sa.Text(), nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("height", sa.BigInteger(), nullable=False),
        sa.Column("height_since_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("genesis"),
    )
    op.create_table(
        "chain_transactions",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("hold", sa.BigInteger(), nullable=False),
        sa.Column("credits_account_id", sa.Text(), nullable=True),
        sa.Column("pays_out", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("spent_us", sa.BigInteger(), nullable=True),
        sa.Column("spent_total", sa.BigInteger(), nullable=True),
        sa.Column("released_us", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.Column("last_valid_block_height", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("announced_us", sa.BigInteger(), nullable=True),
        sa.Column("vanished_hold", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("leased_until_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("chain_signature", sa.Text(), nullable=True),
        sa.Column("debits", sa.Text(), nullable=True),
        sa.Column("fee", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rent", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("budgeted", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("burned_us", sa.BigInteger(), nullable=True),
        sa.Column("burned_total", sa.BigInteger(), nullable=True),
        sa.Column("by_operator", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.CheckConstraint("(state = 'pending') = (ended_us IS NULL)", name="ck_chain_transactions_ended"),
        sa.CheckConstraint(
            "(state IN ('pending', 'confirmed')) = (raw IS NOT NULL)", name="ck_chain_transactions_raw"
        ),
        sa.CheckConstraint("(spent_us IS NULL) = (spent_total IS NULL)", name="ck_chain_transactions_spent"),
        sa.CheckConstraint("hold >= 0", name="ck_chain_transactions_hold"),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("signature", "subject_id"),
    )
    op.create_index(
        "ix_chain_transactions_account",
        "chain_transactions",
        ["account_id", "seq"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_chain_transactions_burned",
        "chain_transactions",
        ["account_id", "by_operator", "burned_us", "burned_total"],
        unique=False,
        sqlite_where=sa.text("burned_us IS NOT NULL"),
        postgresql_where=sa.text("burned_us IS NOT NULL"),
    )
    op.create_index(
        "ix_chain_transactions_confirmed",
        "chain_transactions",
        ["signature"],
        unique=False,
        sqlite_where=sa.text("state = 'confirmed'"),
        postgresql_where=sa.text("state = 'confirmed'"),
    )
    op.create_index(
        "ix_chain_transactions_leased",
        "chain_transactions",
        ["leased_until_us"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_chain_transactions_released",
        "chain_transactions",
        ["account_id", "released_us", "hold"],
        unique=False,
        sqlite_where=sa.text("released_us IS NOT NULL"),
        postgresql_where=sa.text("released_us IS NOT NULL"),
    )
    op.create_index(
        "ix_chain_transactions_spent",
        "chain_transactions",
        ["account_id", "spent_us", "spent_total"],
        unique=False,
        sqlite_where=sa.text("spent_us IS NOT NULL"),
        postgresql_where=sa.text("spent_us IS NOT NULL"),
    )
    op.create_index(
        "ix_chain_transactions_vanished_hold",
        "chain_transactions",
        ["account_id", "vanished_hold"],
        unique=False,
        sqlite_where=sa.text("vanished_hold > 0"),
        postgresql_where=sa.text("vanished_hold > 0"),
    )
    op.create_index(
        "ix_chain_transactions_watched",
        "chain_transactions",
        ["subject_id", "signature"],
        unique=False,
        sqlite_where=sa.text("state IN ('expired', 'rejected')"),
        postgresql_where=sa.text("state IN ('expired', 'rejected')"),
    )
    op.create_index(
        "ux_chain_transactions_pending",
        "chain_transactions",
        ["subject_id", "kind"],
        unique=True,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_table(
        "channels",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("is_payment", sa.Boolean(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("terms_digest", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("escrow_token_account", sa.Text(), nullable=False),
        sa.Column("payee", sa.Text(), nullable=False),
        sa.Column("rent_payer", sa.Text(), nullable=False),
        sa.Column("signer", sa.Text(), nullable=False),
        sa.Column("salt", sa.BigInteger(), nullable=False),
        sa.Column("open_slot", sa.BigInteger(), nullable=False),
        sa.Column("grace_seconds", sa.Integer(), nullable=False),
        sa.Column("shares", sa.Text(), nullable=False),
        sa.Column("deposit", sa.BigInteger(), nullable=False),
        sa.Column("cumulative", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=True),
        sa.Column("force_us", sa.BigInteger(), nullable=True),
        sa.Column("postponements", sa.Integer(), nullable=False),
        sa.Column("payout_signature", sa.Text(), nullable=True),
        sa.Column("opening_fee", sa.BigInteger(), nullable=False),
        sa.Column("by_operator", sa.Boolean(), nullable=False),
        sa.Column("challenge", sa.Text(), nullable=False),
        sa.Column("challenge_expires_us", sa.BigInteger(), nullable=True),
        sa.Column("newest_challenge", sa.Text(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("in_flight", sa.Text(), nullable=True),
        sa.Column("in_flight_until_us", sa.BigInteger(), nullable=True),
        sa.Column("refusals", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("address"),
        sa.UniqueConstraint("escrow_token_account"),
        sa.UniqueConstraint("owner_id"),
    )
    op.create_index(
        "ix_channels_due",
        "channels",
        ["due_us"],
        unique=False,
        sqlite_where=sa.text("due_us IS NOT NULL"),
        postgresql_where=sa.text("due_us IS NOT NULL"),
    )
    op.create_index("ix_channels_origin", "channels", ["operator_id", "origin", "created_us"], unique=False)
    op.create_index("ix_channels_terms", "channels", ["account_id", "terms_digest", "seq"], unique=False)
    op.create_table(
        "counters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "deliveries",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("delivery_id", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=True),
        sa.Column("leased_until_us", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("delivery_id"),
    )
    op.create_index(
        "ix_deliveries_due",
        "deliveries",
        ["due_us", "seq"],
        unique=False,
        sqlite_where=sa.text("due_us IS NOT NULL"),
        postgresql_where=sa.text("due_us IS NOT NULL"),
    )
    op.create_index("ix_deliveries_event", "deliveries", ["operator_id", "event_id", "seq"], unique=False)
    op.create_index("ix_deliveries_operator", "deliveries", ["operator_id", "seq"], unique=False)
    op.create_index("ix_deliveries_time", "deliveries", ["operator_id", "created_us", "seq"], unique=False)
    op.create_index(
        "ix_deliveries_undelivered",
        "deliveries",
        ["operator_id", "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'undelivered'"),
        postgresql_where=sa.text("status = 'undelivered'"),
    )
    op.create_index("ix_deliveries_webhook", "deliveries", ["webhook_id", "operator_id", "seq"], unique=False)
    op.create_index(
        "ix_deliveries_webhook_due",
        "deliveries",
        ["webhook_id", "due_us", "seq"],
        unique=False,
        sqlite_where=sa.text("due_us IS NOT NULL"),
        postgresql_where=sa.text("due_us IS NOT NULL"),
    )
    op.create_table(
        "delivery_attempts",
        sa.Column("delivery_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.Column("response_excerpt", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("delivery_id", "attempt"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "entries",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("transaction_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("direction", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("counterparty", sa.Text(), nullable=True),
        sa.Column("memo", sa.Text(), nullable=True),
        sa.Column("category", sa.Text(), nullable=True),
        sa.Column("tx_signature", sa.Text(), nullable=True),
        sa.Column("transfer_id", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("rejection_reason", sa.Text(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("operator_id", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_entries_account", "entries", ["account_id", "seq"], unique=False)
    op.create_index("ix_entries_account_status", "entries", ["account_id", "status", "seq"], unique=False)
    op.create_index(
        "ix_entries_amount",
        "entries",
        ["operator_id", "amount", "seq"],
        unique=False,
        sqlite_where=sa.text("type = 'deposit'"),
        postgresql_where=sa.text("type = 'deposit'"),
    )
    op.create_index("ix_entries_operator", "entries", ["operator_id", "seq"], unique=False)
    op.create_index("ix_entries_operator_status", "entries", ["operator_id", "status", "seq"], unique=False)
    op.create_index(
        "ix_entries_sender",
        "entries",
        ["operator_id", "counterparty", "seq"],
        unique=False,
        sqlite_where=sa.text("type = 'deposit'"),
        postgresql_where=sa.text("type = 'deposit'"),
    )
    op.create_index(
        "ix_entries_signature",
        "entries",
        ["tx_signature"],
        unique=False,
        sqlite_where=sa.text("tx_signature IS NOT NULL"),
        postgresql_where=sa.text("tx_signature IS NOT NULL"),
    )
    op.create_index("ix_entries_time", "entries", ["operator_id", "created_us", "seq"], unique=False)
    op.create_index(
        "ux_entries_deposit",
        "entries",
        ["account_id", "tx_signature"],
        unique=True,
        sqlite_where=sa.text("type = 'deposit'"),
        postgresql_where=sa.text("type = 'deposit'"),
    )
    op.create_table(
        "events",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("transfer_id", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("event_id"),
    )
    op.create_index("ix_events_account", "events", ["operator_id", "account_id", "seq"], unique=False)
    op.create_index("ix_events_operator", "events", ["operator_id", "seq"], unique=False)
    op.create_index(
        "ix_events_session",
        "events",
        ["operator_id", "session_id", "seq"],
        unique=False,
        sqlite_where=sa.text("session_id IS NOT NULL"),
        postgresql_where=sa.text("session_id IS NOT NULL"),
    )
    op.create_index("ix_events_time", "events", ["operator_id", "created_us", "seq"], unique=False)
    op.create_index(
        "ix_events_transfer",
        "events",
        ["operator_id", "transfer_id", "seq"],
        unique=False,
        sqlite_where=sa.text("transfer_id IS NOT NULL"),
        postgresql_where=sa.text("transfer_id IS NOT NULL"),
    )
    op.create_index("ix_events_type", "events", ["operator_id", "type", "seq"], unique=False)
    op.create_table(
        "holds",
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("fees", sa.BigInteger(), nullable=False),
        sa.Column("by_operator", sa.Boolean(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("subject_id"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_holds_key",
        "holds",
        ["key_id", "amount"],
        unique=False,
        sqlite_where=sa.text("key_id IS NOT NULL"),
        postgresql_where=sa.text("key_id IS NOT NULL"),
    )
    op.create_index(
        "ix_holds_open",
        "holds",
        ["account_id", "by_operator", "fees", "amount"],
        unique=False,
        sqlite_where=sa.text("closed = 0"),
        postgresql_where=sa.text("NOT closed"),
    )
    op.create_table(
        "key_claims",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("claimed_by_operator", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("account_id", "idempotency_key"),
    )
    op.create_index(
        "ux_key_claims_operator",
        "key_claims",
        ["operator_id", "idempotency_key"],
        unique=True,
        sqlite_where=sa.text("claimed_by_operator = 1"),
        postgresql_where=sa.text("claimed_by_operator"),
    )
    op.create_table(
        "operators",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("operator_id"),
    )
    op.create_table(
        "payments",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("transfer_id", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("fee_payer", sa.Text(), nullable=True),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.Column("blockhash", sa.Text(), nullable=True),
        sa.Column("nonce", sa.BigInteger(), nullable=True),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("outcome_status", sa.BigInteger(), nullable=True),
        sa.Column("outcome_receipt", sa.Text(), nullable=True),
        sa.Column("outcome_duration_ms", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "(raw IS NULL) = (blockhash IS NULL) AND (raw IS NULL) = (nonce IS NULL) "
            "AND (raw IS NULL) = (expires_us IS NULL)",
            name="ck_payments_signed",
        ),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("account_id", "blockhash", "nonce"),
        sa.UniqueConstraint("transfer_id"),
    )
    op.create_index("ix_payments_account", "payments", ["operator_id", "account_id", "seq"], unique=False)
    op.create_index("ix_payments_operator", "payments", ["operator_id", "seq"], unique=False)
    op.create_index("ix_payments_origin", "payments", ["operator_id", "origin", "seq"], unique=False)
    op.create_table(
        "pinned_origins",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=True),
        sa.Column("recipients", sa.Text(), nullable=True),
        sa.Column("max_amount", sa.BigInteger(), nullable=True),
        sa.Column("blocked", sa.Boolean(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.Column("sponsor_fees", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("operator_id", "origin"),
    )
    op.create_index("ix_pinned_origins_operator", "pinned_origins", ["operator_id", "seq"], unique=False)
    op.create_table(
        "policy_records",
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("written_version", sa.BigInteger(), nullable=False),
        sa.Column("tx_signature", sa.Text(), nullable=True),
        sa.Column("due_us", sa.BigInteger(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("account_id"),
    )
    op.create_index("ix_policy_records_due", "policy_records", ["due_us"], unique=False)
    op.create_table(
        "server_state",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "session_charges",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "idempotency_key"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sessions",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("to", sa.Text(), nullable=False),
        sa.Column("recipient_account_id", sa.Text(), nullable=True),
        sa.Column("recipient_token_account", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=True),
        sa.Column("cap", sa.BigInteger(), nullable=False),
        sa.Column("running_total", sa.BigInteger(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("key_expires_us", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("escrow_token_account", sa.Text(), nullable=False),
        sa.Column("tx_signature", sa.Text(), nullable=True),
        sa.Column("settlement_tx_signature", sa.Text(), nullable=True),
        sa.Column("settlements", sa.Integer(), nullable=False),
        sa.Column("put_offs", sa.Integer(), nullable=False),
        sa.Column("opened_us", sa.BigInteger(), nullable=True),
        sa.Column("settled_us", sa.BigInteger(), nullable=True),
        sa.Column("closes_us", sa.BigInteger(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("recipient_owner", sa.Text(), nullable=True),
        sa.Column("closed_by", sa.Text(), nullable=True),
        sa.Column("stuck_reason", sa.Text(), nullable=True),
        sa.Column("payee_created_us", sa.BigInteger(), nullable=True),
        sa.Column("opening_fee", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("protocol", sa.Text(), server_default="escrow", nullable=False),
        sa.Column("origin", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("channel", sa.Text(), nullable=True),
        sa.Column("settled", sa.BigInteger(), nullable=True),
        sa.Column("by_operator", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("channel"),
        sa.UniqueConstraint("escrow_token_account"),
        sa.UniqueConstraint("session_id"),
    )
    op.create_index("ix_sessions_account", "sessions", ["account_id", "seq"], unique=False)
    op.create_index("ix_sessions_account_status", "sessions", ["account_id", "status", "seq"], unique=False)
    op.create_index("ix_sessions_cap", "sessions", ["operator_id", "cap", "seq"], unique=False)
    op.create_index(
        "ix_sessions_closes",
        "sessions",
        ["closes_us"],
        unique=False,
        sqlite_where=sa.text("closes_us IS NOT NULL"),
        postgresql_where=sa.text("closes_us IS NOT NULL"),
    )
    op.create_index("ix_sessions_key", "sessions", ["operator_id", "idempotency_key", "seq"], unique=False)
    op.create_index("ix_sessions_operator", "sessions", ["operator_id", "seq"], unique=False)
    op.create_index("ix_sessions_operator_status", "sessions", ["operator_id", "status", "seq"], unique=False)
    op.create_index("ix_sessions_payee", "sessions", ["operator_id", "to", "seq"], unique=False)
    op.create_index(
        "ix_sessions_payee_created",
        "sessions",
        ["account_id", "payee_created_us"],
        unique=False,
        sqlite_where=sa.text("payee_created_us IS NOT NULL"),
        postgresql_where=sa.text("payee_created_us IS NOT NULL"),
    )
    op.create_index("ix_sessions_settlement", "sessions", ["settlement_tx_signature"], unique=False)
    op.create_index("ix_sessions_time", "sessions", ["operator_id", "created_us", "seq"], unique=False)
    op.create_table(
        "sign_in_codes",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index("ix_sign_in_codes_expires", "sign_in_codes", ["expires_us"], unique=False)
    op.create_table(
        "transfers",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("transfer_id", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("to", sa.Text(), nullable=False),
        sa.Column("recipient_account_id", sa.Text(), nullable=True),
        sa.Column("recipient_token_account", sa.Text(), nullable=True),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("memo", sa.Text(), nullable=True),
        sa.Column("category", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("key_expires_us", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("tx_signature", sa.Text(), nullable=True),
        sa.Column("settled_us", sa.BigInteger(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("approval_expires_us", sa.BigInteger(), nullable=True),
        sa.Column("payment_digest", sa.Text(), nullable=True),
        sa.Column("splits", sa.Text(), nullable=True),
        sa.Column("memo_key", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("transfer_id"),
    )
    op.create_index("ix_transfers_account", "transfers", ["operator_id", "account_id", "seq"], unique=False)
    op.create_index(
        "ix_transfers_account_status",
        "transfers",
        ["operator_id", "account_id", "status", "seq"],
        unique=False,
    )
    op.create_index("ix_transfers_amount", "transfers", ["operator_id", "amount", "seq"], unique=False)
    op.create_index(
        "ix_transfers_approved_due",
        "transfers",
        ["approval_expires_us", "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'approved'"),
        postgresql_where=sa.text("status = 'approved'"),
    )
    op.create_index(
        "ix_transfers_error",
        "transfers",
        ["operator_id", "error", "seq"],
        unique=False,
        sqlite_where=sa.text("error IS NOT NULL"),
        postgresql_where=sa.text("error IS NOT NULL"),
    )
    op.create_index("ix_transfers_key", "transfers", ["operator_id", "idempotency_key", "seq"], unique=False)
    op.create_index(
        "ix_transfers_memo",
        "transfers",
        ["operator_id", "memo_key", "seq"],
        unique=False,
        sqlite_where=sa.text("memo_key IS NOT NULL"),
        postgresql_where=sa.text("memo_key IS NOT NULL"),
    )
    op.create_index("ix_transfers_operator", "transfers", ["operator_id", "seq"], unique=False)
    op.create_index(
        "ix_transfers_operator_status", "transfers", ["operator_id", "status", "seq"], unique=False
    )
    op.create_index("ix_transfers_payee", "transfers", ["operator_id", "to", "seq"], unique=False)
    op.create_index(
        "ix_transfers_pending",
        "transfers",
        ["operator_id", "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'pending_approval'"),
        postgresql_where=sa.text("status = 'pending_approval'"),
    )
    op.create_index(
        "ix_transfers_pending_due",
        "transfers",
        ["approval_expires_us", "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'pending_approval'"),
        postgresql_where=sa.text("status = 'pending_approval'"),
    )
    op.create_index(
        "ix_transfers_pending_key",
        "transfers",
        ["key_id"],
        unique=False,
        sqlite_where=sa.text("status = 'pending_approval'"),
        postgresql_where=sa.text("status = 'pending_approval'"),
    )
    op.create_table(
        "vouchers",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("charge_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("cumulative", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("outcome_status", sa.BigInteger(), nullable=True),
        sa.Column("outcome_receipt", sa.Text(), nullable=True),
        sa.Column("outcome_duration_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("charge_id"),
        sa.UniqueConstraint("session_id", "cumulative"),
    )
    op.create_index("ix_vouchers_key", "vouchers", ["operator_id", "idempotency_key", "seq"], unique=False)
    op.create_table(
        "webhooks",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("account_ids", sa.Text(), nullable=False),
        sa.Column("low_balance_threshold", sa.BigInteger(), nullable=True),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("next_secret", sa.LargeBinary(), nullable=True),
        sa.Column("next_secret_us", sa.BigInteger(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("deleted_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("webhook_id"),
    )
    op.create_index(
        "ix_webhooks_operator",
        "webhooks",
        ["operator_id", "seq"],
        unique=False,
        sqlite_where=sa.text("deleted_us IS NULL"),
        postgresql_where=sa.text("deleted_us IS NULL"),
    )
