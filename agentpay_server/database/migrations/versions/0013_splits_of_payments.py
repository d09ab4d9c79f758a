"""The splits of a payment, shown to the operator who approves it."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """The splits of a payment, shown to the operator who approves it."""
    op.add_column("transfers", sa.Column("splits", sa.Text(), nullable=True))
