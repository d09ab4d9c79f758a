"""Transactions that land after all, accounts that sign nothing meanwhile, and what is reserved again."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Watch what expires from now on; of what expired before, only that it did is known."""
    op.add_column(
        "accounts", sa.Column("unjudged_spend", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.add_column("accounts", sa.Column("stopped_us", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_accounts_stopped",
        "accounts",
        ["stopped_us"],
        unique=False,
        sqlite_where=sa.text("stopped_us IS NOT NULL"),
        postgresql_where=sa.text("stopped_us IS NOT NULL"),
    )
    op.add_column(
        "confirmed_transactions", sa.Column("reserved", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.create_index(
        "ix_confirmed_transactions_reserved",
        "confirmed_transactions",
        ["subject", "reserved"],
        unique=False,
        sqlite_where=sa.text("reserved > 0"),
        postgresql_where=sa.text("reserved > 0"),
    )
    for column in (
        sa.Column("kind", sa.Text(), nullable=True),
        sa.Column("account_id", sa.Text(), nullable=True),
        sa.Column("detail", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), server_default="ruled_out", nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
    ):
        op.add_column("expired_transactions", column)
    op.create_index(
        "ix_expired_transactions_watched",
        "expired_transactions",
        ["subject_id", "signature"],
        unique=False,
        sqlite_where=sa.text("state = 'watched'"),
        postgresql_where=sa.text("state = 'watched'"),
    )
