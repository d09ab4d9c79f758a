"""What the embedded chain keeps of its blocks and messages."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """What the embedded chain keeps of its blocks and messages."""
    op.add_column("chain_state", sa.Column("height_since_us", sa.BigInteger(), nullable=True))
    op.add_column("chain_signatures", sa.Column("message_hash", sa.LargeBinary(), nullable=True))
    op.add_column("chain_signatures", sa.Column("height", sa.BigInteger(), nullable=True))
    op.create_index("ix_chain_signatures_height", "chain_signatures", ["height"], unique=False)
