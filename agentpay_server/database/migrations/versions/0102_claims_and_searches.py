"""One claim for each idempotency key, who asked for what costs fees, and searches by index."""

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    """Add what this version needs to a database of the version before."""
    _fees_by_operator()
    _claim_keys()
    _searches()
    _channels()


def _fees_by_operator() -> None:
    """Count the fees of operators' work apart; what was signed before counts as agents' work."""
    for table in ("chain_transactions", "sessions"):
        op.add_column(
            table, sa.Column("by_operator", sa.Boolean(), server_default=sa.false(), nullable=False)
        )
    op.add_column(
        "accounts", sa.Column("operator_burned_total", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.drop_index("ix_chain_transactions_burned", "chain_transactions")
    op.create_index(
        "ix_chain_transactions_burned",
        "chain_transactions",
        ["account_id", "by_operator", "burned_us", "burned_total"],
        unique=False,
        sqlite_where=sa.text("burned_us IS NOT NULL"),
        postgresql_where=sa.text("burned_us IS NOT NULL"),
    )


def _claim_keys() -> None:
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
    op.execute(_CLAIMS)
    # Payments that settled, and sessions that opened, never release their keys.
    op.execute(
        "UPDATE transfers SET key_expires_us = NULL WHERE payment_digest IS NOT NULL AND status = 'settled'"
    )
    op.execute("UPDATE sessions SET key_expires_us = NULL WHERE status != 'failed'")
    _drop_claim("transfers", "held_key", "held_key", "claimed_by_operator")
    _drop_claim("sessions", "held_key", "held_key", "claimed_by_operator")
    _drop_claim("vouchers", "idempotency_key", "claimed_by_operator")
    op.create_index("ix_vouchers_key", "vouchers", ["operator_id", "idempotency_key", "seq"])


def _drop_claim(table: str, key: str, *columns: str) -> None:
    """Drop what a table had for the claims of its own keys."""
    op.drop_index(f"ux_{table}_claimed_key", table)
    if op.get_bind().dialect.name != "sqlite":
        op.drop_constraint(f"{table}_account_id_{key}_key", table)
        for column in columns:
            op.drop_column(table, column)
        return
    # SQLite names no constraint, and drops no column of one: the table is created again without it.
    found = sa.Table(table, sa.MetaData(), autoload_with=op.get_bind())
    found.constraints = {
        each
        for each in found.constraints
        if not isinstance(each, sa.UniqueConstraint) or set(each.columns.keys()) != {"account_id", key}
    }
    with op.batch_alter_table(table, copy_from=found, recreate="always") as batch:
        for column in columns:
            batch.drop_column(column)


# Earlier versions kept the keys of each kind apart, and forgot those of payments and sessions. Of an
# account's purchases under one key, the claim is held by one that paid or may pay for ever, else by one that
# may pay or has paid lately, else by the newest. The others stay in their tables, and are found there.
_CLAIMS = """
INSERT INTO key_claims (operator_id, account_id, idempotency_key, kind, subject_id, claimed_by_operator)
WITH purchases AS (
    SELECT operator_id, account_id, idempotency_key, transfer_id AS subject_id, created_us,
        claimed_by_operator, CASE WHEN payment_digest IS NULL THEN 'transfer' ELSE 'payment' END AS kind,
        CASE
            WHEN status IN ('rejected', 'failed') THEN 2
            WHEN payment_digest IS NULL THEN 1
            ELSE 0
        END AS place
    FROM transfers
    WHERE held_key IS NOT NULL OR (payment_digest IS NOT NULL AND status NOT IN ('rejected', 'failed'))
    UNION ALL
    SELECT operator_id, account_id, idempotency_key, session_id, created_us, claimed_by_operator,
        CASE WHEN channel IS NULL THEN 'session' ELSE 'channel' END,
        CASE WHEN status = 'failed' THEN 2 ELSE 0 END
    FROM sessions
    WHERE protocol != 'x402_upto' AND (held_key IS NOT NULL OR status != 'failed')
    UNION ALL
    SELECT operator_id, account_id, idempotency_key, charge_id, created_us, claimed_by_operator, 'channel', -1
    FROM vouchers
), claims AS (
    SELECT purchases.*,
        ROW_NUMBER() OVER (
            PARTITION BY account_id, idempotency_key ORDER BY place, created_us DESC, subject_id DESC
        ) AS rank,
        MAX(CASE WHEN claimed_by_operator THEN 1 ELSE 0 END) OVER (
            PARTITION BY account_id, idempotency_key
        ) AS is_operators
    FROM purchases
)
SELECT operator_id, account_id, idempotency_key, kind, subject_id,
    is_operators = 1 AND ROW_NUMBER() OVER (
        PARTITION BY operator_id, idempotency_key
        ORDER BY is_operators DESC, place, created_us DESC, subject_id DESC
    ) = 1
FROM claims WHERE rank = 1 ORDER BY created_us, subject_id
"""


def _searches() -> None:
    op.add_column("transfers", sa.Column("memo_key", sa.LargeBinary(), nullable=True))
    op.add_column("entries", sa.Column("operator_id", sa.Text(), server_default="", nullable=False))
    connection = op.get_bind()
    connection.execute(
        sa.text(
            "UPDATE entries SET operator_id = (SELECT operator_id FROM accounts "
            "WHERE accounts.account_id = entries.account_id)"
        )
    )
    after, page = (
        0,
        sa.text(
            "SELECT seq, memo FROM transfers WHERE seq > :after AND memo IS NOT NULL ORDER BY seq LIMIT 1000"
        ),
    )
    write = sa.text("UPDATE transfers SET memo_key = :memo_key WHERE seq = :seq")
    while memos := connection.execute(page, {"after": after}).all():
        connection.execute(write, [{"seq": seq, "memo_key": memo.casefold().encode()} for seq, memo in memos])
        after = memos[-1][0]
    for name, table, columns, where in (
        ("ix_transfers_amount", "transfers", ("operator_id", "amount", "seq"), None),
        ("ix_transfers_payee", "transfers", ("operator_id", "to", "seq"), None),
        ("ix_transfers_memo", "transfers", ("operator_id", "memo_key", "seq"), "memo_key IS NOT NULL"),
        ("ix_transfers_error", "transfers", ("operator_id", "error", "seq"), "error IS NOT NULL"),
        ("ix_audit_time", "audit", ("operator_id", "created_us", "seq"), None),
        ("ix_sessions_time", "sessions", ("operator_id", "created_us", "seq"), None),
        ("ix_sessions_cap", "sessions", ("operator_id", "cap", "seq"), None),
        ("ix_sessions_payee", "sessions", ("operator_id", "to", "seq"), None),
        ("ix_events_type", "events", ("operator_id", "type", "seq"), None),
        ("ix_entries_operator", "entries", ("operator_id", "seq"), None),
        ("ix_entries_operator_status", "entries", ("operator_id", "status", "seq"), None),
        ("ix_entries_time", "entries", ("operator_id", "created_us", "seq"), None),
        ("ix_entries_signature", "entries", ("tx_signature",), "tx_signature IS NOT NULL"),
        ("ix_entries_sender", "entries", ("operator_id", "counterparty", "seq"), "type = 'deposit'"),
        ("ix_entries_amount", "entries", ("operator_id", "amount", "seq"), "type = 'deposit'"),
    ):
        condition = None if where is None else sa.text(where)
        op.create_index(name, table, list(columns), sqlite_where=condition, postgresql_where=condition)


def _channels() -> None:
    """Give each channel a row of its own: so far it had half of it, and a session the rest."""
    op.execute(_OLD_CHANNELS)
    op.drop_table("channels")
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
        sa.Column("closing_fee", sa.BigInteger(), nullable=False),
        sa.Column("by_operator", sa.Boolean(), nullable=False),
        sa.Column("challenge", sa.Text(), nullable=False),
        sa.Column("challenge_expires_us", sa.BigInteger(), nullable=True),
        sa.Column("newest_challenge", sa.Text(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.Column("in_flight", sa.Text(), nullable=True),
        sa.Column("in_flight_until_us", sa.BigInteger(), nullable=True),
        sa.Column("refusals", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("address"),
        sa.UniqueConstraint("escrow_token_account"),
        sa.UniqueConstraint("owner_id"),
    )
    op.create_index("ix_channels_account_status", "channels", ["account_id", "status", "seq"])
    op.create_index(
        "ix_channels_due",
        "channels",
        ["due_us"],
        sqlite_where=sa.text("due_us IS NOT NULL"),
        postgresql_where=sa.text("due_us IS NOT NULL"),
    )
    op.create_index("ix_channels_origin", "channels", ["operator_id", "origin", "created_us"])
    op.create_index("ix_channels_terms", "channels", ["account_id", "terms_digest", "seq"])
    op.execute(_NEW_CHANNELS)
    op.drop_table("old_channels")
    op.execute("DELETE FROM sessions WHERE protocol = 'x402_upto'")
    op.execute(
        "UPDATE sessions SET opening_fee = 0, closing_fee = 0, settlements = 0, put_offs = 0 "
        "WHERE channel IS NOT NULL"
    )
    # A channel's row says from now on when a closing one is looked at.
    op.execute("UPDATE sessions SET closes_us = NULL WHERE channel IS NOT NULL AND status != 'open'")


_OLD_CHANNELS = """
CREATE TABLE old_channels AS
SELECT channels.*, sessions.channel AS address, sessions.escrow_token_account, sessions.cap,
    sessions.running_total, sessions.status, sessions.closes_us, sessions.put_offs,
    sessions.settlement_tx_signature, sessions.opening_fee, sessions.closing_fee, sessions.by_operator,
    sessions.protocol
FROM channels JOIN sessions ON sessions.session_id = channels.session_id
"""
_SHARED = """
    operator_id, account_id, terms_digest, origin, address, escrow_token_account, payee, rent_payer, signer,
    salt, open_slot, grace_seconds, shares, status, force_us, opening_fee, closing_fee, by_operator,
    challenge, challenge_expires_us, newest_challenge, raw, expires_us, in_flight, in_flight_until_us,
    refusals, created_us
"""
_NEW_CHANNELS = f"""
INSERT INTO channels (
    owner_id, is_payment, deposit, cumulative, due_us, postponements, payout_signature, {_SHARED}
)
SELECT session_id, protocol = 'x402_upto', cap,
    CASE WHEN protocol = 'x402_upto' THEN cap ELSE running_total END,
    CASE WHEN protocol = 'x402_upto' OR status != 'open' THEN closes_us END,
    put_offs, settlement_tx_signature, {_SHARED}
FROM old_channels ORDER BY seq
"""  # noqa: S608 - of constants
