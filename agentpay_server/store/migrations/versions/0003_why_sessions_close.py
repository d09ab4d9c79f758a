"""Sessions: who owns the payee's token account, when it was created again, why they close or wait."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add what a settlement needs to know, for accounts of this service from what is stored of them."""
    op.add_column("sessions", sa.Column("recipient_owner", sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("closed_by", sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("stuck_reason", sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("payee_created_us", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_sessions_payee_created",
        "sessions",
        ["account_id", "payee_created_us"],
        sqlite_where=sa.text("payee_created_us IS NOT NULL"),
        postgresql_where=sa.text("payee_created_us IS NOT NULL"),
    )
    sessions = sa.table(
        "sessions", sa.column("recipient_account_id", sa.Text()), sa.column("recipient_owner", sa.Text())
    )
    accounts = sa.table("accounts", sa.column("account_id", sa.Text()), sa.column("chain_address", sa.Text()))
    owner = (
        sa.select(accounts.c.chain_address)
        .where(accounts.c.account_id == sessions.c.recipient_account_id)
        .scalar_subquery()
    )
    op.execute(
        sa.update(sessions)
        .where(sessions.c.recipient_account_id.is_not(None))
        .values({sessions.c.recipient_owner: owner})
    )
