"""What a unit of work sees of the database, whichever engine it is.

It is the part of SQLAlchemy's `Connection` that the statements need, and that one satisfies it. SQLite has an
implementation of its own (`sqlite.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from sqlalchemy import Executable

Parameters = Mapping[str, Any]

PLANNED_EACH_TIME: Final = {"agentpay_planned_each_time": True}
"""Execution options of a statement whose best plan depends on what is there, for engines that keep plans."""


class ConflictError(Exception):
    """A row would break a constraint of its table: somebody else was first."""


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows the statement matched, if it changes rows."""
        ...

    def __iter__(self) -> Iterator[Sequence[Any]]: ...

    def one_or_none(self) -> Sequence[Any] | None:
        """Return the only row, or None if there is none; more than one is an error."""
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
    ) -> Rows:
        """Run a statement; with a sequence of parameters, once for each of them.

        Raises:
            ConflictError: a row would break a constraint.
        """
        ...
