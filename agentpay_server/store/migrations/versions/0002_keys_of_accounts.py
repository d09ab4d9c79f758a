"""Idempotency keys are held under their source account.

A key was unique for an operator. From now on it is unique for each account, and among what operator keys
claim.
Rows that hold one under the old rule keep it: under both new constraints they are unique, too.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_OLD = ["operator_id", "held_key"]
_NEW = ["account_id", "held_key"]


def upgrade() -> None:
    """Idempotency keys are held under their source account."""
    for table in ("transfers", "sessions"):
        op.add_column(table, sa.Column("claimed_by_operator", sa.Boolean(), nullable=True))
        # Who has claimed it is what kind of key has made the row; a key is never deleted.
        op.execute(
            f"UPDATE {table} SET claimed_by_operator = EXISTS ("  # noqa: S608 - two names, both above
            f"SELECT 1 FROM api_keys WHERE api_keys.key_id = {table}.key_id AND api_keys.account_id IS NULL)"
        )
        if op.get_bind().dialect.name == "sqlite":
            _rebuild(table)
        else:
            _alter(table)
        op.create_index(
            f"ux_{table}_claimed_key",
            table,
            ["operator_id", "held_key"],
            unique=True,
            sqlite_where=sa.text("claimed_by_operator = 1"),
            postgresql_where=sa.text("claimed_by_operator"),
        )
        op.create_index(
            f"ix_{table}_agents_key",
            table,
            ["operator_id", "held_key", "key_expires_us"],
            unique=False,
            sqlite_where=sa.text("claimed_by_operator = 0"),
            postgresql_where=sa.text("NOT claimed_by_operator"),
        )


def _alter(table: str) -> None:
    op.alter_column(table, "claimed_by_operator", nullable=False)
    for constraint in sa.inspect(op.get_bind()).get_unique_constraints(table):
        if constraint["column_names"] == _OLD and constraint["name"] is not None:
            op.drop_constraint(constraint["name"], table, type_="unique")
    op.create_unique_constraint(None, table, _NEW)


def _rebuild(table: str) -> None:
    """Do the same on SQLite, which drops no constraint: the table as it is, copied to one with another."""
    found = sa.Table(table, sa.MetaData(), autoload_with=op.get_bind())
    for constraint in list(found.constraints):
        if isinstance(constraint, sa.UniqueConstraint) and list(constraint.columns.keys()) == _OLD:
            found.constraints.remove(constraint)
    found.append_constraint(sa.UniqueConstraint(*_NEW))
    found.c.claimed_by_operator.nullable = False
    copied: Any = op.batch_alter_table(table, copy_from=found, recreate="always")
    with copied:
        pass
