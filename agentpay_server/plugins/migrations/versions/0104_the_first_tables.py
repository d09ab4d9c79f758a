"""The first tables, as the name that later migrations follow.

Nothing runs it: an empty database gets the declared tables, and no database is older.
"""

revision = "0104"
down_revision = None


def upgrade() -> None:
    """Change nothing."""
