"""The database connection that a unit of work receives, independent of the engine, and compiled statements.

A `Connection` is a subset of SQLAlchemy's, which satisfies it. SQLite has its own implementation
(`sqlite.py`).

Both engines run compiled statements without SQLAlchemy. It caches compilation, but its other work per
execution takes several times as long as the driver's, and dominated the cost of a transfer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Protocol

from attrs import frozen
from sqlalchemy import Dialect, Executable, Insert, Select, UpdateBase

Parameters = Mapping[str, Any]

UNCACHED_PLAN: Final = {"agentpay_planned_each_time": True}
"""Execution options of a statement whose best plan depends on its parameters: engines must not cache it."""

ADDS: Final = {"agentpay_adds": True}
"""Execution options of an UPDATE that adds to amounts, whatever they are: several may come in any order."""


class ConstraintError(Exception):
    """A row would violate a constraint: another transaction committed first."""


class Result(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement matched, if it changes rows."""
        ...

    def __iter__(self) -> Iterator[Sequence[Any]]: ...

    def one_or_none(self) -> Sequence[Any] | None:
        """Return the only row, or None; more than one is an error."""
        ...

    def scalars(self) -> Iterator[Any]:
        """Return the first column of every row."""
        ...

    def scalar_one(self) -> Any:  # noqa: ANN401 - whatever the column holds
        """Return the only column of the only row; no row is an error."""
        ...

    def scalar_one_or_none(self) -> Any | None:  # noqa: ANN401 - whatever the column holds
        """Return the only column of the only row, or None if there is no row."""
        ...


class Connection(Protocol):
    """A connection within a transaction."""

    def execute(
        self, statement: Executable, parameters: Parameters | Sequence[Parameters] | None = None, /
    ) -> Result:
        """Run a statement; with a sequence of parameters, once for each of them.

        An engine may hold an INSERT until its `rowcount` is read, a later statement names its table, or the
        unit of work ends. A conflict is raised then.

        Raises:
            ConstraintError: a row would violate a constraint.
        """
        ...


Row = Sequence[Any]


@frozen
class Prepared:
    """A statement in the form that a driver takes.

    Attributes:
        names: the parameters in the order of the placeholders.
        positional: returns the values of parameters in the order of the placeholders.
        convert: converts a row from the driver's types to the tables'; None if they are equal.
    """

    text: str
    names: tuple[str, ...]
    positional: Callable[[Parameters], Sequence[Any]]
    convert: Callable[[Row], Row] | None


def _in_order(names: Sequence[str], constants: Mapping[str, Any]) -> Callable[[Parameters], Sequence[Any]]:
    """Return `Prepared.positional`; `constants` are the parameters that the statement itself sets."""
    if constants:
        return lambda given: [given[name] if name in given else constants[name] for name in names]
    # For fewer than two names, `itemgetter` does not return a sequence.
    return itemgetter(*names) if len(names) > 1 else lambda given: [given[name] for name in names]


class Preparer:
    """Compiles statements for one engine, and caches them.

    `dialect` has positional parameters; `converter` returns `Prepared.convert` for a statement with rows.
    """

    def __init__(
        self,
        dialect: Dialect,
        converter: Callable[[Select[Any] | UpdateBase], Callable[[Row], Row] | None] = lambda _: None,
    ) -> None:
        self._dialect = dialect
        self._converter = converter
        self._prepared: dict[tuple[Executable, tuple[str, ...]], Prepared] = {}

    def prepared(self, statement: Executable, parameters: Parameters) -> Prepared:
        """Return a statement compiled for the names of `parameters`.

        Raises:
            KeyError: the statement lacks one of these parameters.
        """
        # Statements are module constants, which bounds the cache. The key includes the names, because they
        # decide the columns of an INSERT.
        key = (statement, tuple(parameters))
        found = self._prepared.get(key)
        if found is None:
            found = self._prepared[key] = self._prepare(statement, parameters)
        return found

    def _prepare(self, statement: Executable, parameters: Parameters) -> Prepared:
        is_insert = isinstance(statement, Insert)
        # The parameters of INSERT … VALUES are its columns; INSERT … SELECT lists them itself.
        is_of_values = isinstance(statement, Insert) and statement.select is None
        # Compiled for many rows, an INSERT does not return the generated `seq`.
        compiled = statement.compile(  # type: ignore[attr-defined]
            dialect=self._dialect,
            column_keys=list(parameters) if is_of_values else None,
            for_executemany=is_insert,
        )
        names = tuple(compiled.positiontup or ())
        unknown = set(parameters).difference(names)
        if unknown:
            raise KeyError(f"the statement has no parameters {sorted(unknown)}")
        # The statement itself sets these values, which may be None.
        constants = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
        convert = self._converter(statement) if isinstance(statement, Select | UpdateBase) else None
        return Prepared(str(compiled), names, _in_order(names, constants), convert)
