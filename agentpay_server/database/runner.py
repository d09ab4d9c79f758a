"""Runners: how a unit of work reaches the database.

A unit of work is a plain function `unit(connection, ...)`. A runner opens a transaction, calls it, commits,
and returns what it returned; an exception rolls everything back. No transaction is ever held across an await,
because no unit can await. What an engine does differently (locks, threads) is the runner's business alone:
`memory.py`, `file.py` and `postgres.py` hold one each.

A unit may be run again from its start when the engine gave its transaction up (PostgreSQL does, for a
deadlock): it keeps nothing outside the database but what it returns.
"""

from collections.abc import Callable
from typing import ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import MetaData

from agentpay_server.database.connection import ConflictError, Connection

P = ParamSpec("P")
T = TypeVar("T")


class DatabaseUnavailableError(Exception):
    """The database cannot be reached or cannot write.

    Whether the transaction was committed is not known: whoever repeats it asks the database first.

    Attributes:
        outage: what logs call it: however many suffer from it, it is told once a second.
    """

    outage: ClassVar[str] = "database"


class DatabaseAwayError(DatabaseUnavailableError):
    """The database does not answer now, and may do so later: a start waits for it."""


class StartRefusedError(Exception):
    """A server must not start as it was told to; the message says why, and what to do."""


class DatabaseInUseError(StartRefusedError):
    """Another server holds the database; a second one beside it would do harm."""


class NewerSchemaError(StartRefusedError):
    """A newer version has laid out the database, and this one does not know what it holds."""


class OlderSchemaError(StartRefusedError):
    """An older version has laid out the database, and servers of that version may be at work on it."""


class Database(Protocol):
    """Runs units of work.

    Attributes:
        is_inline: whether a unit runs before anybody else does, so that nobody can be cancelled amid it.
    """

    is_inline: ClassVar[bool]

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `unit(connection, ...)` in one transaction and return its result after the commit.

        Raises:
            DatabaseUnavailableError: there is no answer, and it may or may not be committed.
        """
        ...

    async def read(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `unit(connection, ...)`, which changes nothing, on one state of the database.

        Raises:
            DatabaseUnavailableError: there is no answer.
        """
        ...

    async def create_missing(self, tables: MetaData) -> None:
        """Create those tables and indexes that the database does not have yet."""
        ...

    async def close(self) -> None:
        """Finish what is under way and let go of all connections."""
        ...


async def run_again_if_late(
    database: Database, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a unit that stores what is not there yet, and returns what is there then.

    Two servers that start at once both find nothing. The one that comes late runs it again, and finds what
    the other has stored.
    """
    try:
        return await database.run(unit, *args, **kwargs)
    except ConflictError:
        return await database.run(unit, *args, **kwargs)
