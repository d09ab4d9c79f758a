"""Runners: how a unit of work reaches the database.

A unit of work is a plain function `unit(connection, ...)`. A runner opens a transaction, calls it, commits,
and returns what it returned; an exception rolls everything back. No transaction is ever held across an await,
because no unit can await. What an engine does differently (locks, threads) is the runner's business alone.
"""

import sqlite3
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.pool import NullPool

from agentpay_server.store.tables import metadata

P = ParamSpec("P")
T = TypeVar("T")


class Database(Protocol):
    """Runs units of work."""

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `unit(connection, ...)` in one transaction and return its result after the commit."""
        ...

    async def close(self) -> None:
        """Let go of all connections."""
        ...


class MemoryDatabase:
    """SQLite in memory: one connection, held by the thread that made it, units run inline.

    A new database is a copy of a template that was laid out once in the process.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._connection = _memory_engine().connect()

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `unit(connection, ...)` in one transaction and return its result after the commit."""
        if threading.get_ident() != self._thread:
            raise RuntimeError("a database in memory belongs to the thread that made it")
        with self._connection.begin():
            return unit(self._connection, *args, **kwargs)

    async def close(self) -> None:
        """Let go of the connection, and with it of all data."""
        self._connection.close()


class ImmediateDialect(SQLiteDialect_pysqlite):
    """SQLite whose transactions take the write lock when they begin, so that what they read stays true.

    sqlite3's own transaction control, which would begin only at the first write, is off: connections are made
    with `isolation_level=None`.
    """

    supports_statement_cache = True

    def do_begin(self, dbapi_connection: Any) -> None:  # noqa: ANN401 - as the base has it
        """Begin a transaction."""
        dbapi_connection.execute("BEGIN IMMEDIATE")


registry.register("sqlite.immediate", __name__, ImmediateDialect.__name__)


@cache
def _memory_engine() -> Engine:
    """The engine of all databases in memory: sharing it shares its compiled statements.

    It pools nothing, so that every connection is a database of its own.
    """
    return create_engine("sqlite+immediate://", poolclass=NullPool, creator=_copy_of_template)


def _copy_of_template() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(_template())
    return connection


@cache
def _template() -> bytes:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
    driver_connection: Any = engine.raw_connection()
    try:
        return bytes(driver_connection.serialize())
    finally:
        driver_connection.close()
        engine.dispose()
