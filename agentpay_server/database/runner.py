"""Runners: the interface through which units of work reach the database.

A unit of work is a plain function `unit(connection, ...)`. A runner opens a transaction, calls it, commits,
and returns its result; an exception rolls everything back. A unit cannot await, so no transaction is ever
held across an await. The engines have their own runners: `memory.py`, `file.py`, `postgres.py`.

A unit may run more than once: if the engine aborts its transaction (PostgreSQL does, to resolve a deadlock),
the runner retries it. So a unit must have no side effects outside the database.
"""

from collections.abc import Callable
from typing import ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import MetaData

from agentpay_server.database.connection import ConflictError, Connection

P = ParamSpec("P")
T = TypeVar("T")


class DatabaseUnavailableError(Exception):
    """Whether the transaction was committed is unknown. Check the database before retrying.

    `outage` names this outage in logs, at most once a second.
    """

    outage: ClassVar[str] = "database"


class DatabaseAwayError(DatabaseUnavailableError):
    """The database may respond later: a starting server waits for it."""


class StartRefusedError(Exception):
    """The message says why a server cannot start with this configuration, and what to do."""


class DatabaseInUseError(StartRefusedError):
    """Another server uses the database, which must have only one."""


class NewerSchemaError(StartRefusedError):
    """This version does not know the schema."""


class OlderSchemaError(StartRefusedError):
    """Servers of the schema's older version may still be running."""


class Database(Protocol):
    """Runs units of work. If `is_inline`, a unit never yields to the event loop: it cannot be cancelled."""

    is_inline: ClassVar[bool]

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a unit in one transaction and return its result after the commit.

        After `DatabaseUnavailableError` it may or may not be committed.
        """
        ...

    async def read(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a read-only unit on one state of the database."""
        ...

    async def create_missing(self, tables: MetaData) -> None:
        """Tables and indexes."""
        ...

    async def close(self) -> None:
        """Finish running units first."""
        ...


async def run_again_if_late(
    database: Database, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a unit that inserts a row if it is missing and returns the stored one.

    Two servers that start at once may both find no row. The slower one gets a conflict; its unit is run again
    and returns the other's row.
    """
    try:
        return await database.run(unit, *args, **kwargs)
    except ConflictError:
        return await database.run(unit, *args, **kwargs)
