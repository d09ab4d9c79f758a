"""The splits of a payment, for those who approve it."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("transfers", sa.Column("splits", sa.Text(), nullable=True))
