"""SQLite, and a database in memory: SQLAlchemy Core compiles statements, sqlite3 executes them directly.

Tests compare the result of every statement with that of SQLAlchemy's own execution.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Boolean, Executable, MetaData, Select, UpdateBase, create_engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from agentpay_server.database.connection import Connection, ConstraintError, Parameters, Preparer, Row
from agentpay_server.database.runner import DatabaseClosedError
from agentpay_server.database.tables import metadata
from agentpay_server.platform.capturing import Restore

_CACHE_KIB: Final = 250

CACHED_STATEMENTS: Final = 512
"""Number of statements that a connection keeps parsed: more than a server uses."""


def _converter(statement: Select[Any] | UpdateBase) -> Callable[[Row], Row] | None:
    """Return a function that converts 0 and 1 to booleans; None for rows without booleans."""
    columns = list(statement.exported_columns)
    places = [place for place, column in enumerate(columns) if isinstance(column.type, Boolean)]
    if not places:
        return None

    def convert(row: Row) -> Row:
        values = list(row)
        for place in places:
            values[place] = None if values[place] is None else bool(values[place])
        return values

    return convert


_DIALECT: Final = SQLiteDialect_pysqlite()
_PREPARER: Final = Preparer(_DIALECT, _converter)


class SqliteRows:
    __slots__ = ("_convert", "_cursor")

    def __init__(self, cursor: sqlite3.Cursor, convert: Callable[[Row], Row] | None) -> None:
        self._cursor = cursor
        self._convert = convert

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def __iter__(self) -> Iterator[Row]:
        return iter(self._cursor) if self._convert is None else map(self._convert, self._cursor)

    def one_or_none(self) -> Row | None:
        rows: list[Row] = self._cursor.fetchall()
        if not rows:
            return None
        if len(rows) > 1:
            raise ValueError("the statement returned more than one row")
        return rows[0] if self._convert is None else self._convert(rows[0])

    def scalars(self) -> Iterator[Any]:
        return (row[0] for row in self)

    def scalar_one(self) -> Any:  # noqa: ANN401 - whatever the column holds
        row = self.one_or_none()
        if row is None:
            raise ValueError("the statement returned no row")
        return row[0]

    def scalar_one_or_none(self) -> Any | None:  # noqa: ANN401 - whatever the column holds
        row = self.one_or_none()
        return None if row is None else row[0]


class SqliteConnection:
    """Runs Core statements on a sqlite3 connection without its own transaction control."""

    def __init__(self, driver: sqlite3.Connection) -> None:
        self._driver = driver

    def execute(
        self, statement: Executable, parameters: Parameters | Sequence[Parameters] | None = None, /
    ) -> SqliteRows:
        """See `Connection.execute`.

        Raises:
            ConstraintError: a row would violate a constraint.
            KeyError: a parameter is missing.
        """
        try:
            # Most are a dict, and the abstract class takes long to ask.
            if not isinstance(parameters, dict) and isinstance(parameters, Sequence):
                prepared = _PREPARER.prepared(statement, parameters[0])
                cursor = self._driver.executemany(prepared.text, [prepared.positional(p) for p in parameters])
            else:
                values = parameters or {}
                prepared = _PREPARER.prepared(statement, values)
                cursor = self._driver.execute(prepared.text, prepared.positional(values))
        except sqlite3.IntegrityError as error:
            raise ConstraintError(str(error)) from error
        return SqliteRows(cursor, prepared.convert)


def create_missing(driver: sqlite3.Connection, tables: MetaData) -> None:
    """Create the tables and indexes that are missing, in one transaction."""
    driver.execute("BEGIN IMMEDIATE")
    try:
        for table in tables.sorted_tables:
            driver.execute(str(CreateTable(table, if_not_exists=True).compile(dialect=_DIALECT)))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                driver.execute(str(CreateIndex(index, if_not_exists=True).compile(dialect=_DIALECT)))
        driver.execute("COMMIT")
    except BaseException:
        driver.execute("ROLLBACK")
        raise


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
        self._load(_template())
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
            self._load(pages)

        return restore

    def _load(self, pages: bytes) -> None:
        self._driver.deserialize(pages)
        # The pages are in memory anyway. A commit after the split of a b-tree looks at each cached one.
        self._driver.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")

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
