"""Runners: the interface through which units of work reach the database.

A unit of work is a plain function `unit(connection, ...)`. A runner opens a transaction, calls it, commits,
and returns its result; an exception rolls everything back. A unit cannot await, so no transaction is ever
held across an await. The engines differ in their runners: `sqlite.py`, `file.py`, `postgres.py`.

A unit may run more than once: if the engine aborts its transaction (PostgreSQL does, to resolve a deadlock),
the runner retries it. So a unit must have no side effects outside the database.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from attrs import frozen
from sqlalchemy import MetaData, Select

from agentpay_server.database.connection import Connection, ConstraintError

P = ParamSpec("P")
T = TypeVar("T")


class DatabaseUnavailableError(Exception):
    """The database cannot be reached or cannot write.

    It is unknown whether the transaction was committed. Check the database before retrying.

    Attributes:
        outage: the name of this outage in logs. It is logged at most once a second, however many callers
            fail.
    """

    outage: ClassVar[str] = "database"


class DatabaseAwayError(DatabaseUnavailableError):
    """The database does not respond at the moment but may later: a starting server waits for it."""


class DatabaseClosedError(DatabaseUnavailableError):
    """This server has closed the database, because it is stopping. The unit did not run."""


class StartRefusedError(Exception):
    """A server cannot start with this configuration; the message says why, and what to do."""


class DatabaseInUseError(StartRefusedError):
    """Another server uses the database, which must have only one."""


class NewerSchemaError(StartRefusedError):
    """The schema is of a newer version, which this version does not know."""


class MissingExtraError(StartRefusedError):
    """The configuration needs an extra that is not installed. The message has the command to install it."""


class OlderSchemaError(StartRefusedError):
    """The schema is of an older version, and servers of that version may still be running."""


@frozen
class OfAccounts(Generic[P, T]):
    """A unit of work on the rows of a few accounts and subjects. An engine may commit several units together.

    It decides on, locks and changes only their rows. One statement or a constraint decides the rest, such as
    taking an idempotency key or adding to a counter.

    Attributes:
        account_ids: the accounts.
        subject_ids: the transfers or sessions.
        lock: locks a row of each subject (`rows.lock_of`) before units that are committed together begin.
            Without it, the unit must not wait for a row of its subjects that another unit may lock.
        adds: whether it only adds to amounts of the accounts (`connection.ADDS`). If so, units of one account
            may run side by side.
    """

    unit: Callable[Concatenate[Connection, P], T]
    account_ids: frozenset[str]
    subject_ids: frozenset[str] = frozenset()
    lock: Select[Any] | None = None
    adds: bool = False

    def __call__(self, connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it."""
        return self.unit(connection, *args, **kwargs)


class Database(Protocol):
    """Runs units of work.

    Attributes:
        is_inline: whether a unit runs without yielding to the event loop, so that it cannot be cancelled.
    """

    is_inline: ClassVar[bool]

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `unit(connection, ...)` in one transaction and return its result after the commit.

        Raises:
            DatabaseUnavailableError: the database did not respond; the unit may or may not be committed.
        """
        ...

    async def read(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a read-only `unit(connection, ...)` on one state of the database.

        Raises:
            DatabaseUnavailableError: the database did not respond.
        """
        ...

    async def create_missing(self, tables: MetaData) -> None:
        """Create the tables and indexes that are missing."""
        ...

    async def close(self) -> None:
        """Finish running units and close all connections."""
        ...


async def run_again_if_late(
    database: Database, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a unit that inserts a row if it is missing and returns the stored one.

    Two servers that start at once may both find no row. The slower one gets a conflict, and its unit is run
    again and returns the other's row.
    """
    try:
        return await database.run(unit, *args, **kwargs)
    except ConstraintError:
        return await database.run(unit, *args, **kwargs)
