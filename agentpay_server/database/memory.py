"""SQLite in memory."""

import sqlite3
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from sqlalchemy import MetaData, create_engine

from agentpay_server.database.connection import Connection
from agentpay_server.database.runner import DatabaseClosedError
from agentpay_server.database.sqlite import CACHED_STATEMENTS, SqliteConnection, create_missing
from agentpay_server.database.tables import metadata
from agentpay_server.platform.capturing import Restore

P = ParamSpec("P")
T = TypeVar("T")


class MemoryDatabase:
    """SQLite in memory: units run inline on the thread that created the database.

    A new database is a copy of a template that is built once per process.
    """

    is_inline: ClassVar[bool] = True

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        # sqlite3's own transaction control is off, because it begins a transaction only at the first write.
        self._driver = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, cached_statements=CACHED_STATEMENTS
        )
        self._driver.deserialize(_template())
        self._connection = SqliteConnection(self._driver)
        self._is_open = True

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._check()
        self._driver.execute("BEGIN IMMEDIATE")
        try:
            result = unit(self._connection, *args, **kwargs)
        except BaseException:
            self._driver.execute("ROLLBACK")
            raise
        self._driver.execute("COMMIT")
        return result

    async def read(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See `Database.read`. No other unit runs meanwhile."""
        self._check()
        return unit(self._connection, *args, **kwargs)

    async def create_missing(self, tables: MetaData) -> None:
        self._check()
        create_missing(self._driver, tables)

    async def with_driver(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the raw connection, outside any transaction, for migrations."""
        self._check()
        return work(self._driver)

    def capture(self) -> Restore:
        """Return a function that restores the current contents. No unit may be running."""
        self._check()
        pages = self._driver.serialize()

        def restore() -> None:
            self._check()
            self._driver.deserialize(pages)

        return restore

    async def close(self) -> None:
        """Close the connection and discard all data."""
        self._is_open = False
        self._driver.close()

    def _check(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError("an in-memory database was used outside the thread that created it")
        if not self._is_open:
            raise DatabaseClosedError("the database is closed")


@cache
def _template() -> bytes:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        # A transaction copies each page that it changes, for a rollback: small pages cost less.
        connection.exec_driver_sql("PRAGMA page_size = 1024")
        metadata.create_all(connection)
        connection.commit()
    driver_connection: Any = engine.raw_connection()
    try:
        return bytes(driver_connection.serialize())
    finally:
        driver_connection.close()
        engine.dispose()
