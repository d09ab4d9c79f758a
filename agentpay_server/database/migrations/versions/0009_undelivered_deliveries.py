"""Index of undelivered deliveries, which the console counts."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Index of undelivered deliveries, which the console counts."""
    where = sa.text("status = 'undelivered'")
    op.create_index(
        "ix_deliveries_undelivered",
        "deliveries",
        ["operator_id", "seq"],
        unique=False,
        sqlite_where=where,
        postgresql_where=where,
    )
