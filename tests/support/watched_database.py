"""What servers in memory ask of their database, statement by statement, and what they send to the chain."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from money import Context, on_owner

from agentpay_server import AgentPayServer
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.database.rows import Rows
from agentpay_server.database.sqlite import MemoryDatabase, SqliteConnection

COMMIT = "COMMIT"
# A read of several statements, which needs a BEGIN and a COMMIT too: no hot path has one.
SNAPSHOT = "SNAPSHOT"
SEND = "SEND"


class Watched:
    """Every statement, every commit, and every transaction that is sent, in order.

    Attributes:
        names: what each does, and to which table first, such as `UPDATE accounts`.
        values: the parameters of each.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.values: list[Any] = []
        execute, run, read = SqliteConnection.execute, MemoryDatabase.run, MemoryDatabase.read
        send = EmbeddedChain.send

        def executing(connection: Any, statement: Any, *parameters: Any) -> Any:
            self._add(_name_of(statement), *parameters)
            return execute(connection, statement, *parameters)

        async def committing(database: Any, unit: Callable[..., Any], *args: Any, **options: Any) -> Any:
            result = await run(database, unit, *args, **options)
            self._add(COMMIT)
            return result

        async def reading(database: Any, unit: Callable[..., Any], *args: Any, **options: Any) -> Any:
            before = len(self.names)
            result = await read(database, unit, *args, **options)
            if len(self.names) > before + 1:
                self._add(SNAPSHOT)
            return result

        async def sending(chain: Any, raw: bytes, **options: Any) -> None:
            self._add(SEND)
            await send(chain, raw, **options)

        patch.setattr(EmbeddedChain, "send", sending)
        patch.setattr(SqliteConnection, "execute", executing)
        patch.setattr(MemoryDatabase, "read", reading)
        patch.setattr(MemoryDatabase, "run", committing)

    def _add(self, name: str, values: Any = None) -> None:
        self.names.append(name)
        self.values.append(values)

    def clear(self) -> None:
        """Forget what was seen so far."""
        self.names.clear()
        self.values.clear()

    def commits(self) -> list[list[str]]:
        """Return the names of the statements before each commit, since the one before."""
        *ended, _ = "\n".join(self.names).split(COMMIT)
        return [each.split("\n") for each in ended]


def _name_of(statement: Any) -> str:
    text = " ".join(str(statement).split())
    before = r"INTO |FROM |count\(\*\) AS \w+ FROM |\(SELECT |\(EXISTS \(SELECT \* FROM "
    found = re.match(rf"(SELECT|INSERT|UPDATE|DELETE) (?:{before})?(\w+)", text)
    assert found is not None, text
    return f"{found[1]} {found[2]}"


@contextmanager
def traced(server: AgentPayServer) -> Iterator[list[str]]:
    """Collect the SQL of a server in memory, with its values."""
    driver = server._running.server.context.database._driver
    seen: list[str] = []
    driver.set_trace_callback(seen.append)
    try:
        yield seen
    finally:
        driver.set_trace_callback(None)


def plan_of(server: AgentPayServer, sql: str) -> list[str]:
    """Return the steps by which the database of a server in memory runs a statement."""

    async def explained(context: Context) -> list[str]:
        return [row[3] for row in context.database._driver.execute(f"EXPLAIN QUERY PLAN {sql}")]

    return on_owner(server, explained)


def refuse(patch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    """Let each statement of a name, such as `INSERT audit`, fail on SQLite."""
    execute = SqliteConnection.execute

    def executing(connection: Any, statement: Any, *parameters: Any) -> Any:
        if _name_of(statement) == name:
            raise error
        return execute(connection, statement, *parameters)

    patch.setattr(SqliteConnection, "execute", executing)


def refuse_inserts(patch: pytest.MonkeyPatch, table: str, error: Exception) -> None:
    """Let no row be inserted into a table, on any store."""
    inserted = Rows.insert_values

    def inserting(rows: Any, connection: Any, values: Any) -> Any:
        if rows.table.name == table:
            raise error
        return inserted(rows, connection, values)

    patch.setattr(Rows, "insert_values", inserting)
