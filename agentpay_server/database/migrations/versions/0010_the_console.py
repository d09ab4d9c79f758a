"""Expiring keys and sign-in codes; events by transfer and by time; excerpts of receivers' responses."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_TRANSFER_ID = {
    "sqlite": "json_extract(body, '$.data.transfer_id')",
    "postgresql": "(body::json #>> '{data,transfer_id}')",
}


def upgrade() -> None:
    """Expiring keys and sign-in codes; events by transfer and by time; excerpts of receivers' responses."""
    op.add_column("api_keys", sa.Column("expires_us", sa.BigInteger(), nullable=True))
    op.create_table(
        "sign_in_codes",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("operator_id", sa.Text(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index("ix_sign_in_codes_expires", "sign_in_codes", ["expires_us"], unique=False)
    op.add_column("delivery_attempts", sa.Column("response_excerpt", sa.Text(), nullable=True))
    op.add_column("events", sa.Column("transfer_id", sa.Text(), nullable=True))
    op.execute(f"UPDATE events SET transfer_id = {_TRANSFER_ID[op.get_bind().dialect.name]}")  # noqa: S608
    where = sa.text("transfer_id IS NOT NULL")
    op.create_index(
        "ix_events_transfer",
        "events",
        ["operator_id", "transfer_id", "seq"],
        unique=False,
        sqlite_where=where,
        postgresql_where=where,
    )
    op.create_index("ix_events_time", "events", ["operator_id", "created_us", "seq"], unique=False)
    op.create_index("ix_deliveries_time", "deliveries", ["operator_id", "created_us", "seq"], unique=False)
