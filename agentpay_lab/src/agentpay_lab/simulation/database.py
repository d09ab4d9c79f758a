"""The database of all simulated servers: SQLite in memory behind a network that delays, loses and rolls back.

Committed strings that may be signatures are recorded, for the invariant that a transaction is stored before
it is sent. Each life first migrates the schema to its release; other lives wait for it, and if it dies
meanwhile, nothing has changed.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Executable, MetaData

from agentpay_lab.simulation.chance import Chance, CodeOwner
from agentpay_lab.simulation.faults import FaultInjector
from agentpay_lab.simulation.loop import never
from agentpay_lab.simulation.timeline import Timeline
from agentpay_server.database.connection import Connection, Parameters, Result
from agentpay_server.database.runner import DatabaseUnavailableError
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.plugins import migrations
from agentpay_server.plugins.migrations import THIS_RELEASE, SchemaRelease

P = ParamSpec("P")
T = TypeVar("T")

NEXT_RELEASE: Final = SchemaRelease(
    "simulated", (*THIS_RELEASE.folders, Path(__file__).parent / "next_release")
)
"""A later release, which only adds tables and columns."""

_SIGNATURE_LENGTHS = range(80, 89)
_LONGEST_CHANGE_SECONDS: Final = 5.0
_WAIT_SECONDS: Final = 0.05


class _UndoneError(Exception):
    pass


class SharedDatabase:
    """`signatures` are committed strings of a signature's length; `changes` is the life that is migrating."""

    def __init__(self) -> None:
        self._database = MemoryDatabase()
        _finished(self._database.with_driver(_note_release))
        self.release = THIS_RELEASE
        self.changes: CodeOwner | None = None
        self.signatures: set[str] = set()
        self.units = 0
        self._copy: Callable[[], None] | None = None

    def run(self, unit: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        noted: list[str] = []

        def run(connection: Connection) -> T:
            return unit(_Recording(connection, noted), *args, **kwargs)

        result = _finished(self._database.run(run))
        self.units += 1
        self.signatures.update(noted)
        return result

    def undo(self, unit: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def run(connection: Connection) -> None:
            unit(connection, *args, **kwargs)
            raise _UndoneError

        try:
            _finished(self._database.run(run))
        except _UndoneError:
            return

    def read(self, unit: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        self.units += 1
        return _finished(self._database.read(unit, *args, **kwargs))

    @property
    def is_locked(self) -> bool:
        return self.changes is not None and not self.changes.is_dead

    def lay_out(self, release: SchemaRelease) -> None:
        _finished(migrations.upgrade(self._database, release=release))
        if release is NEXT_RELEASE:
            self.release = release

    def copy(self) -> None:
        """Keep a copy of everything, like a backup."""
        restore, release = self._database.capture(), self.release

        def restored() -> None:
            restore()
            self.release = release

        self._copy = restored

    def restore(self) -> bool:
        """Replace everything by the copy; return whether there is one. No server may be up."""
        if self._copy is not None:
            self._copy()
        return self._copy is not None

    def create_missing(self, tables: MetaData) -> None:
        _finished(self._database.create_missing(tables))

    def close(self) -> None:
        _finished(self._database.close())


class DatabaseLink:
    """One life's connection. `may_die` may kill the server at a place, and returns whether it did.

    `true_us` is the time, which is also the database's.
    """

    is_inline: ClassVar[bool] = False

    def __init__(
        self,
        shared: SharedDatabase,
        server: str,
        *,
        chance: Chance,
        faults: FaultInjector,
        timeline: Timeline,
        may_die: Callable[[str], bool],
        life: CodeOwner,
        true_us: Callable[[], int],
    ) -> None:
        self._shared, self._server = shared, server
        self._faults, self._timeline = faults, timeline
        self._latency = chance.stream("database latency", server)
        self._may_die, self._life, self._true_us = may_die, life, true_us

    async def lay_out(self, release: SchemaRelease) -> None:
        """Other servers wait meanwhile."""
        await self._travel()
        shared = self._shared
        if release is not THIS_RELEASE and shared.release is THIS_RELEASE:
            shared.changes = self._life
            self._timeline.note("server", self._life.name, "changes the tables")
            await asyncio.sleep(self._latency.uniform(0, _LONGEST_CHANGE_SECONDS))
            if self._may_die("kill.before commit"):
                await never()
            shared.changes = None
        shared.lay_out(release)
        if self._may_die("kill.after commit"):
            await never()
        await self._travel_back()

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        faults, server = self._faults, self._server
        await self._travel()
        if self._may_die("kill.before commit"):
            await never()
        if faults.strike("db.rolled back", server):
            self._shared.undo(unit, args, kwargs)
            raise DatabaseUnavailableError("rolled back")
        if faults.strike("db.rerun", server):
            self._shared.undo(unit, args, kwargs)
        result = self._shared.run(unit, args, kwargs)
        self._timeline.note("unit", server, getattr(unit, "__qualname__", type(unit).__name__))
        if self._may_die("kill.after commit"):
            await never()
        await self._travel_back()
        return result

    async def read(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        await self._travel()
        return self._shared.read(unit, args, kwargs)

    async def now_us(self) -> int:
        """Return the database's clock, which is right."""
        await self._travel()
        now_us = self._true_us()
        await self._travel_back()
        return now_us

    async def create_missing(self, tables: MetaData) -> None:
        self._shared.create_missing(tables)

    async def close(self) -> None:
        """Do nothing: other servers use the database."""

    async def _travel(self) -> None:
        pause = self._latency.uniform(0.0002, 0.004)
        slow = self._faults.strike("db.slow", self._server)
        await asyncio.sleep(slow.uniform(0.05, 3) if slow else pause)
        while self._shared.is_locked:  # noqa: ASYNC110 - the life with the lock may die without a notice
            await asyncio.sleep(_WAIT_SECONDS)
        if self._life.is_dead:
            raise RuntimeError("a killed server used its database")
        if self._faults.strike("db.lost before", self._server):
            raise DatabaseUnavailableError("the connection was lost before")

    async def _travel_back(self) -> None:
        await asyncio.sleep(self._latency.uniform(0.0002, 0.004))
        if self._faults.strike("db.lost after", self._server):
            raise DatabaseUnavailableError("the connection was lost after")


class _Recording:
    __slots__ = ("_connection", "_noted")

    def __init__(self, connection: Connection, noted: list[str]) -> None:
        self._connection = connection
        self._noted = noted

    def execute(
        self, statement: Executable, parameters: Parameters | Sequence[Parameters] | None = None, /
    ) -> Result:
        if parameters and statement.is_dml:
            for line in parameters if isinstance(parameters, Sequence) else (parameters,):
                for value in line.values():
                    if type(value) is str and len(value) in _SIGNATURE_LENGTHS:
                        self._noted.append(value)
        return self._connection.execute(statement, parameters)


def _note_release(driver: sqlite3.Connection) -> None:
    """Record the release as migrations do, for tables that come from the template."""
    driver.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    driver.execute("INSERT INTO alembic_version VALUES (?)", (THIS_RELEASE.head,))


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a database in memory has waited")
