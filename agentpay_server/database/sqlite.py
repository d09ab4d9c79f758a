"""SQLite: SQLAlchemy Core compiles statements (`prepared.py`), sqlite3 executes them directly.

Tests compare the result of every statement with that of SQLAlchemy's own execution.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Boolean, Executable, MetaData, Select, UpdateBase
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from agentpay_server.database.connection import ConstraintError, Parameters
from agentpay_server.database.prepared import Preparer, Row

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
        row: Row | None = self._cursor.fetchone()
        if row is None:
            return None
        if self._cursor.fetchone() is not None:
            raise ValueError("the statement returned more than one row")
        return row if self._convert is None else self._convert(row)

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
