"""The books of a server: the rows of its tables, which tests name as the database does.

The schema is stored, and outlives the modules that declare it.
"""

from functools import cache, partial
from typing import Any

import held_sums
from sqlalchemy import Select, Table, insert, select, update

from agentpay_server.database import tables
from agentpay_server.database.connection import Connection
from agentpay_server.database.runner import Database

NAMES = [name for name in tables.metadata.tables if name != "alembic_version"]
"""The names of all tables of a server."""

LEDGER = frozenset({"chain_accounts", "chain_credits", "chain_history", "chain_signatures", "chain_state"})
"""The tables of the embedded chain, which are in a separate database."""


async def rows(database: Database, table: str | Table, **where: object) -> list[dict[str, Any]]:
    """Return the rows of a table with these values, oldest first.

    Those of accounts have the sum of their open holds too, as `cap_holds`. Whoever reads them compares all
    holds with what they must be (`held_sums`).
    """

    def unit(connection: Connection) -> list[dict[str, Any]]:
        found = _rows(connection, table)
        return held_sums.compared(partial(_rows, connection), found) if table == "accounts" else found

    return [row for row in await database.read(unit) if where.items() <= row.items()]


def _rows(connection: Connection, table: str | Table) -> list[dict[str, Any]]:
    found = tables.metadata.tables[table] if isinstance(table, str) else table
    names = found.columns.keys()
    return [dict(zip(names, row, strict=True)) for row in connection.execute(_whole(found))]


@cache
def _whole(table: Table) -> Select[Any]:
    return select(table).order_by(*table.primary_key)


async def change(database: Database, table: str, changed: dict[str, Any], **where: object) -> None:
    """Change rows of a table, as another program could."""
    found = tables.metadata.tables[table]
    statement = update(found).where(*(found.c[name] == value for name, value in where.items()))

    def unit(connection: Connection) -> None:
        connection.execute(statement.values(changed))

    await database.run(unit)


async def add(database: Database, table: str, rows: list[dict[str, Any]]) -> None:
    """Insert rows, which get new sequence numbers."""

    def unit(connection: Connection) -> None:
        new = [{name: value for name, value in row.items() if name != "seq"} for row in rows]
        connection.execute(insert(tables.metadata.tables[table]), new)

    await database.run(unit)
