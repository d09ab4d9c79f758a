"""Indexes of the lists of transfers, and of sessions by idempotency key."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Indexes of the lists of transfers, and of sessions by idempotency key."""
    for name, columns in (
        ("ix_transfers_operator", ["operator_id", "seq"]),
        ("ix_transfers_operator_status", ["operator_id", "status", "seq"]),
        ("ix_transfers_account", ["operator_id", "account_id", "seq"]),
        ("ix_transfers_account_status", ["operator_id", "account_id", "status", "seq"]),
        ("ix_transfers_key", ["operator_id", "idempotency_key", "seq"]),
    ):
        op.create_index(name, "transfers", columns, unique=False)
    op.create_index("ix_sessions_key", "sessions", ["operator_id", "idempotency_key", "seq"], unique=False)
