"""The database connection that a unit of work receives, independent of the engine.

A `Connection` is a subset of SQLAlchemy's, which satisfies it. SQLite has its own implementation
(`sqlite.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from sqlalchemy import Executable

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
