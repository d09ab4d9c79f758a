"""Kinds of API keys, and audit entries of what the server does by itself."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Kinds of API keys, and audit entries of what the server does by itself."""
    op.add_column("api_keys", sa.Column("kind", sa.Text(), nullable=True))
    # Until now a key that was lent to one run of a server was known by its name.
    op.execute(
        "UPDATE api_keys SET kind = CASE WHEN account_id IS NOT NULL THEN 'agent' "
        "WHEN name = 'this run' THEN 'lent' ELSE 'operator' END"
    )
    with op.batch_alter_table("api_keys") as batch:
        batch.alter_column("kind", existing_type=sa.Text(), nullable=False)
    with op.batch_alter_table("audit") as batch:
        batch.alter_column("key_id", existing_type=sa.Text(), nullable=True)
