"""Payments behind HTTP 402, pinned origins, and the signatures under which payments landed."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Payments behind HTTP 402."""
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
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("operator_id", "origin"),
    )
    op.create_index("ix_pinned_origins_operator", "pinned_origins", ["operator_id", "seq"], unique=False)
    op.create_index("ix_chain_signatures_message", "chain_signatures", ["message_hash"], unique=False)
    op.add_column("chain_transactions", sa.Column("chain_signature", sa.Text(), nullable=True))
    op.add_column("transfers", sa.Column("payment_digest", sa.Text(), nullable=True))
    op.create_index(
        "ix_transfers_approved_due",
        "transfers",
        ["approval_expires_us", "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'approved'"),
        postgresql_where=sa.text("status = 'approved'"),
    )
