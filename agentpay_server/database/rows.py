"""Statements on the rows of one table, as records: insert, get, change, remove, and pages of lists.

    SESSIONS = Rows(SessionRecord, "session_id")
    IS_OPENING = SESSIONS.c.status == literal_column("'opening'")

    session = SESSIONS.get(connection, session_id, lock=True)
    opened = SESSIONS.change(connection, session_id, IS_OPENING, status="open", opened_us=now_us)
    if opened is None:
        ...  # it was not opening: another server was faster

Each statement is built once for its shape: the conditions and the names of the values. So conditions are
module constants; a value in one is a `bindparam`, passed in `given`. Where a partial index serves a
condition, its values are literals, as in the index.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import attrs
from attrs import frozen
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Select,
    String,
    Table,
    any_,
    bindparam,
    delete,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.dml import ReturningDelete, ReturningUpdate

from agentpay_server.database.connection import Connection, Result
from agentpay_server.database.pages import Place
from agentpay_server.database.tables.base import table_of

R = TypeVar("R")
T = TypeVar("T")

Condition = ColumnElement[Any]
Key = str | tuple[str | int, ...]
"""The value of the column that identifies a row, or of each of them."""

_NONE: Final[Mapping[str, Any]] = {}


class Rows(Generic[R]):
    """The rows of the table that `record` declares; `key` names the columns that identify one."""

    def __init__(self, record: type[R], *key: str) -> None:
        self.table: Table = table_of(record)
        self.c: ReadOnlyColumnCollection[str, Column[Any]] = self.table.c
        names = [each.name for each in attrs.fields(record)]  # type: ignore[arg-type]
        self._record = record
        self._is_positional = not any(each.kw_only for each in attrs.fields(record))  # type: ignore[arg-type]
        self._names = names
        self._written = tuple(name for name in names if name != "seq")
        self._values = attrgetter(*self._written)
        self._key = key
        self._of_key = tuple(f"of_{name}" for name in key)
        self._key_of = attrgetter(*key)
        self._this = tuple(self.c[name] == bindparam(f"of_{name}") for name in key)
        self._insert = insert(self.table)
        self._get = select(self.table).where(*self._this)
        self._gets: dict[tuple[bool, tuple[Condition, ...]], Select[Any]] = {}
        self._changes: dict[tuple[object, ...], ReturningUpdate[Any]] = {}
        self._removals: dict[tuple[Condition, ...], ReturningDelete[Any]] = {}

    def record(self, row: Sequence[Any]) -> R:
        """Return a row of the table as its record."""
        if self._is_positional:
            return self._record(*row)
        return self._record(**dict(zip(self._names, row, strict=True)))

    def one(self, connection: Connection, statement: Select[Any], **values: object) -> R | None:
        """Return the only row that a statement finds."""
        row = connection.execute(statement, values).one_or_none()
        return None if row is None else self.record(row)

    def all(self, connection: Connection, statement: Select[Any], **values: object) -> list[R]:
        """Return the rows that a statement finds."""
        return [self.record(row) for row in connection.execute(statement, values)]

    def insert(self, connection: Connection, *records: R) -> Result:
        """Store new rows, at the latest when the unit of work ends; the database assigns `seq`.

        Raises:
            ConstraintError: a row with the same unique values exists. It may be raised as late as by the end
                of the unit of work; see `insert_now`.
        """
        return self.insert_values(connection, [self.values(each) for each in records])

    def values(self, record: R) -> dict[str, Any]:
        """Return the values of a new row."""
        return dict(zip(self._written, self._values(record), strict=True))

    def insert_values(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> Result:
        """Store new rows by their values; see `insert`."""
        return connection.execute(self._insert, rows if len(rows) > 1 else rows[0])

    def insert_now(self, connection: Connection, *records: R) -> None:
        """Store new rows, as `insert` does, but raise a conflict here."""
        _ = self.insert(connection, *records).rowcount

    def get(self, connection: Connection, key: Key, *conditions: Condition, lock: bool = False) -> R | None:
        """Return a row, or None if it does not exist or does not satisfy the conditions.

        With `lock`, a row that is returned is locked until the unit of work ends.
        """
        shape = lock, conditions
        statement = self._gets.get(shape)
        if statement is None:
            statement = self._gets[shape] = self.get_statement(*conditions, lock=lock)
        row = connection.execute(statement, self._named(key)).one_or_none()
        return None if row is None else self.record(row)

    def existing(self, connection: Connection, key: Key, *, lock: bool = False) -> R:
        """Return a row that must exist.

        Raises:
            LookupError: it does not.
        """
        found = self.get(connection, key, lock=lock)
        if found is None:
            raise LookupError(f"{key} is gone")
        return found

    def change(
        self,
        connection: Connection,
        row: R | str,
        /,
        *conditions: Condition,
        given: Mapping[str, object] = _NONE,
        add: Mapping[str, int] = _NONE,
        **values: Any,  # noqa: ANN401 - each as its column
    ) -> R | None:
        """Change a row, or nothing if it does not satisfy the conditions.

        Args:
            connection: the connection.
            row: the row, or its key.
            conditions: its required state.
            given: the parameters of the conditions.
            add: amounts to add to columns.
            values: new values of columns.

        Returns:
            The row as it is now; None if it was not in the required state: another server was faster.
        """
        shape = conditions, tuple(values), tuple(add)
        statement = self._changes.get(shape)
        if statement is None:
            statement = self._changes[shape] = self.change_statement(conditions, values, add)
        parameters = {**values, **self._named(row if isinstance(row, str) else self._key_of(row)), **given}
        for name, amount in add.items():
            parameters[f"plus_{name}"] = amount
        changed = connection.execute(statement, parameters).one_or_none()
        return None if changed is None else self.record(changed)

    def changed(
        self,
        connection: Connection,
        row: R | str,
        /,
        *conditions: Condition,
        given: Mapping[str, object] = _NONE,
        add: Mapping[str, int] = _NONE,
        **values: Any,  # noqa: ANN401 - each as its column
    ) -> R:
        """Change a row that must be in the required state; see `change`.

        Raises:
            StaleRowError: it is not. The unit of work must be run again, on the row as it is now.
        """
        found = self.change(connection, row, *conditions, given=given, add=add, **values)
        if found is None:
            key = row if isinstance(row, str) else self._key_of(row)
            raise StaleRowError(f"{self.table.name} {key} is not in the state that this change requires")
        return found

    def remove(
        self,
        connection: Connection,
        key: Key,
        *conditions: Condition,
        given: Mapping[str, object] = _NONE,
    ) -> R | None:
        """Delete a row, and return it; None if it does not exist or does not satisfy the conditions."""
        statement = self._removals.get(conditions)
        if statement is None:
            statement = self._removals[conditions] = self.removal_statement(*conditions)
        removed = connection.execute(statement, {**self._named(key), **given}).one_or_none()
        return None if removed is None else self.record(removed)

    def to_change(
        self,
        row: R,
        /,
        *conditions: Condition,
        given: Mapping[str, object] = _NONE,
        add: Mapping[str, int] = _NONE,
        **values: Any,  # noqa: ANN401 - each as its column
    ) -> "Change[R]":
        """Return a change to be written later; see `changed`."""
        return Change(self, row, conditions, values, given, add)

    def pages(
        self,
        owner: str,
        *conditions: Condition,
        equal: Iterable[str] = (),
        filters: Mapping[str, Sequence[Condition]] = _NONE,
        few: str = "",
    ) -> "Pages[R]":
        """Return the list of the rows of an owner that satisfy the conditions; see `Pages`.

        `equal` names columns that callers can filter by.
        """
        return Pages(
            select(self.table).where(*conditions),
            self.record,
            owner=self.c[owner],
            place=self.c.seq,
            filters={**self.equal(*equal), **filters},
            few=few,
        )

    def equal(self, *names: str) -> dict[str, Sequence[Condition]]:
        """Return filters by the values of columns."""
        return {name: (self.c[name] == bindparam(name),) for name in names}

    def sorted_pages(
        self,
        owner: str,
        key: ColumnElement[Any],
        *conditions: Condition,
        filters: Mapping[str, Sequence[Condition]] = _NONE,
        is_descending: bool = False,
    ) -> "SortedPages[R]":
        """Return the list of the rows of an owner in the order of a key; see `SortedPages`."""
        keyed = select(self.table, key.label("value")).where(self.c[owner] == bindparam(owner), *conditions)
        return SortedPages(keyed, self.record, owner=owner, filters=filters, is_descending=is_descending)

    def _named(self, key: Key) -> dict[str, Any]:
        """Return the parameters of a key."""
        return dict(zip(self._of_key, (key,) if isinstance(key, str) else key, strict=True))

    # --- Shapes

    def get_statement(self, *conditions: Condition, lock: bool) -> Select[Any]:
        """Return the statement of `get`."""
        statement = self._get.where(*conditions)
        return statement.with_for_update() if lock else statement

    def change_statement(
        self, conditions: Sequence[Condition], values: Iterable[str], add: Iterable[str] = ()
    ) -> ReturningUpdate[Any]:
        """Return the statement of `change`.

        Raises:
            KeyError: the table has no such column.
        """
        new: dict[Column[Any], Any] = {self.c[name]: bindparam(name) for name in values}
        for name in add:
            column = self.c[name]
            new[column] = column + bindparam(f"plus_{name}", type_=column.type)
        return update(self.table).where(*self._this, *conditions).values(new).returning(*self.c)

    def removal_statement(self, *conditions: Condition) -> ReturningDelete[Any]:
        """Return the statement of `remove`."""
        return delete(self.table).where(*self._this, *conditions).returning(*self.c)

    def statements(self) -> "dict[str, Any]":
        """Return a statement of each kind, for tests of what engines make of them."""
        return {
            "insert": self._insert,
            "get": self._get,
            "lock": self.get_statement(lock=True),
            "change": self.change_statement((), self._written),
            "remove": self.removal_statement(),
        }


@frozen
class Change(Generic[R]):
    """A change of a row, as data.

    Attributes:
        row: the row before it.
        conditions: the state that it requires.
        values: new values of columns.
        given: the parameters of the conditions.
        add: amounts to add to columns.
    """

    rows: Rows[R]
    row: R
    conditions: tuple[Condition, ...]
    values: Mapping[str, Any]
    given: Mapping[str, object] = _NONE
    add: Mapping[str, int] = _NONE

    @property
    def after(self) -> R:
        """The row after it."""
        added = {name: getattr(self.row, name) + amount for name, amount in self.add.items()}
        return attrs.evolve(self.row, **self.values, **added)  # type: ignore[misc]

    def write(self, connection: Connection) -> R:
        """Write it, and return the row as it is now.

        Raises:
            StaleRowError: the row is not in the required state.
        """
        return self.rows.changed(
            connection, self.row, *self.conditions, given=self.given, add=self.add, **self.values
        )


def lock_of(column: Column[Any], *conditions: Condition) -> Select[Any]:
    """Return a statement that locks the rows whose `column` is in the array `ids`, for PostgreSQL.

    It waits for none: it skips rows that another transaction has locked, and returns `column` of the others.
    """
    ids = any_(bindparam("ids", type_=ARRAY(String)))
    return select(column).where(column == ids, *conditions).order_by(column).with_for_update(skip_locked=True)


class StaleRowError(Exception):
    """A row is not in the state that a change requires: another server was faster. Nothing was changed."""


class Pages(Generic[T]):
    """A list that is read in pages, newest first, with the filters that a caller gives.

    Args:
        statement: finds all rows.
        record: converts a row.
        owner: the column that says whose list it is.
        place: the sequence number.
        filters: the conditions of each filter; a filter's value is the parameter of its name.
        few: a filter that matches so few rows that sorting them is faster than a scan in order.
    """

    def __init__(
        self,
        statement: Select[Any],
        record: Callable[[Sequence[Any]], T],
        *,
        owner: Column[Any],
        place: Column[Any],
        filters: Mapping[str, Sequence[Condition]] = _NONE,
        few: str = "",
    ) -> None:
        self._statement = statement.where(owner == bindparam(owner.name))
        self._record = record
        self._owner = owner.name
        self._place = place
        self._filters = filters
        self._few = few
        self._statements: dict[tuple[str, ...], Select[Any]] = {}

    def __call__(
        self, connection: Connection, /, owner: str, before: int, count: int, **given: object
    ) -> list[T]:
        """Return up to `count` rows of an owner below a sequence number.

        `given` are the values of filters; None means without the filter.
        """
        names, values = _chosen(self._filters, given)
        statement = self._statements.get(names)
        if statement is None:
            statement = self._statements[names] = self._shape(names)
        parameters = {self._owner: owner, "before": before, "count": count, **values}
        return [self._record(row) for row in connection.execute(statement, parameters)]

    def statements(self) -> dict[tuple[str, ...], Select[Any]]:
        """Return the statements with up to two filters, and with all."""
        return {names: self._shape(names) for names in _combined(self._filters)}

    def _shape(self, names: tuple[str, ...]) -> Select[Any]:
        # Not a plain column: no index is in its order.
        place = self._place + 0 if self._few in names else self._place
        return (
            self._statement.where(
                place < bindparam("before"), *(each for name in names for each in self._filters[name])
            )
            .order_by(place.desc())
            .limit(bindparam("count"))
        )


class SortedPages(Generic[T]):
    """A list that is read in pages in the order of a value, with the filters that a caller gives.

    Of equal rows the oldest comes first; descending, the list is the same from its end. A page starts after
    the value and the sequence number of the last row before it, so ties and rows that are created meanwhile
    neither repeat nor hide one. Without an index in this order, each page reads all rows.

    Args:
        rows: finds all rows of an owner, each with its `value` as the last column.
        record: converts a row without it.
        owner: the parameter that says whose list it is.
        filters: as those of `Pages`.
        is_descending: the largest value comes first.
    """

    def __init__(
        self,
        rows: Select[Any],
        record: Callable[[Sequence[Any]], T],
        *,
        owner: str,
        filters: Mapping[str, Sequence[Condition]] = _NONE,
        is_descending: bool,
    ) -> None:
        self._rows = rows
        self._record = record
        self._owner = owner
        self._filters = filters
        self._is_descending = is_descending
        self._statements: dict[tuple[bool, tuple[str, ...]], Select[Any]] = {}

    def __call__(
        self, connection: Connection, /, owner: str, after: Place | None, count: int, **given: object
    ) -> list[tuple[T, Place]]:
        """Return up to `count` rows of an owner after a place, each with its own.

        `given` are the values of filters, None means without the filter; and parameters of the value.
        """
        names, values = _chosen(self._filters, given)
        shape = after is None, names
        statement = self._statements.get(shape)
        if statement is None:
            statement = self._statements[shape] = self._shape(names, is_first=after is None)
        parameters = {self._owner: owner, "count": count, **values}
        if after is not None:
            parameters |= {"value": after.value, "seq": after.seq}
        rows = connection.execute(statement, parameters)
        return [(self._record(row[:-1]), Place(row[0], row[-1])) for row in rows]

    def statements(self) -> dict[tuple[str, ...], Select[Any]]:
        """Return the statements of the first page and of the others, with filters as those of `Pages`."""
        return {
            ("first" if is_first else "next", *names): self._shape(names, is_first=is_first)
            for is_first in (True, False)
            for names in _combined(self._filters)
        }

    def _shape(self, names: tuple[str, ...], *, is_first: bool) -> Select[Any]:
        rows = self._rows.where(*(each for name in names for each in self._filters[name])).subquery()
        value, seq = rows.c.value, rows.c.seq
        order = (value.desc(), seq.desc()) if self._is_descending else (value, seq)
        statement = select(rows).order_by(*order).limit(bindparam("count"))
        if is_first:
            return statement
        # As one comparison, which an index finds.
        place = tuple_(value, seq)
        last = tuple_(bindparam("value", type_=value.type), bindparam("seq", type_=BigInteger))
        return statement.where(place < last if self._is_descending else place > last)


def _chosen(
    filters: Mapping[str, object], given: Mapping[str, object]
) -> tuple[tuple[str, ...], dict[str, object]]:
    """Return the names of the filters that are given, and all values that are."""
    values = {name: value for name, value in given.items() if value is not None}
    return tuple(name for name in filters if name in values), values


def _combined(filters: Mapping[str, object]) -> list[tuple[str, ...]]:
    """Return the combinations of up to two filters, and all of them."""
    few = [names for number in range(3) for names in combinations(filters, number)]
    return list(dict.fromkeys([*few, tuple(filters)]))
