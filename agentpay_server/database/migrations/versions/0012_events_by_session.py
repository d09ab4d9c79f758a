"""Events by session."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_SESSION_ID = {
    "sqlite": "json_extract(body, '$.data.session_id')",
    "postgresql": "(body::json #>> '{data,session_id}')",
}


def upgrade() -> None:
    """Events by session."""
    op.add_column("events", sa.Column("session_id", sa.Text(), nullable=True))
    op.execute(f"UPDATE events SET session_id = {_SESSION_ID[op.get_bind().dialect.name]}")  # noqa: S608
    where = sa.text("session_id IS NOT NULL")
    op.create_index(
        "ix_events_session",
        "events",
        ["operator_id", "session_id", "seq"],
        unique=False,
        sqlite_where=where,
        postgresql_where=where,
    )
