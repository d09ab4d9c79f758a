"""One claim for each idempotency key, who asked for what costs fees, and searches by index."""

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    """Add what this version needs to a database of the version before."""
    _fees_by_operator()


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
