"""Add a column to every table, and a table: changes that servers of the previous release tolerate."""

import sqlalchemy
from alembic import op

from agentpay_server.plugins.migrations import HEAD

revision = "simulated"
down_revision = HEAD
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in sqlalchemy.inspect(op.get_bind()).get_table_names():
        if not name.startswith("alembic"):
            op.add_column(name, sqlalchemy.Column("simulated", sqlalchemy.Text))
    op.create_table("simulated", sqlalchemy.Column("number", sqlalchemy.Integer, primary_key=True))


def downgrade() -> None:
    raise NotImplementedError
