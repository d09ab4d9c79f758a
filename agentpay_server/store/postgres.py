"""PostgreSQL: a pool of connections, units of work in their own transactions, locks where statements ask.

A unit runs at READ COMMITTED with the row locks that its statements take, a read at REPEATABLE READ, so that
all its statements see one state. What the engine gives up to resolve a deadlock is run again; so is what was
cut off before COMMIT was sent, which certainly changed nothing. Once COMMIT was sent, a lost connection is
`DatabaseUnavailableError`: the outcome is not known, and never guessed.

Any number of servers may share a database. One that must be alone takes `hold_alone` first.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import sqlalchemy
from attrs import define
from sqlalchemy import Executable, MetaData, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from agentpay_server.store.connection import ConflictError, Connection, Parameters, Rows
from agentpay_server.store.database import DatabaseInUseError, DatabaseUnavailableError

P = ParamSpec("P")
T = TypeVar("T")

POOL_SIZE: Final = 16
"""Connections that one server holds at most; units beyond that wait for one."""

_TRIES: Final = 5
_GIVEN_UP: Final = {"40001", "40P01"}
"""SQLSTATEs of a transaction that was undone for another's sake: serialization failure, deadlock."""

_OUR_FAULTS: Final = {"22", "25", "42"}
"""Classes of SQLSTATEs that no other try would get around: a wrong value, transaction or statement."""

_ALONE: Final = text("SELECT pg_try_advisory_lock(:key)")
_LOCK: Final = text("SELECT pg_advisory_xact_lock(:key)")
_ALONE_KEY: Final = 0x6167_656E_7401
LAYOUT_KEY: Final = 0x6167_656E_7402
"""Advisory lock under which tables are laid out."""


class PostgresConnection:
    """Runs Core statements on a connection within a transaction.

    Args:
        inner: SQLAlchemy's.
    """

    def __init__(self, inner: sqlalchemy.Connection) -> None:
        self._inner = inner

    def execute(
        self, statement: Executable, parameters: Parameters | Sequence[Parameters] | None = None, /
    ) -> Rows:
        """Run a statement; with a sequence of parameters, once for each of them.

        Raises:
            ConflictError: a row would break a constraint. The transaction is lost.
        """
        try:
            return _Rows(self._inner.execute(statement, parameters))
        except IntegrityError as error:
            raise ConflictError(str(error.orig)) from error


class _Rows:
    """The result of a statement."""

    __slots__ = ("_result",)

    def __init__(self, result: sqlalchemy.CursorResult[Any]) -> None:
        self._result = result

    @property
    def rowcount(self) -> int:
        """How many rows the statement matched."""
        return self._result.rowcount

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self._result)

    def one_or_none(self) -> Sequence[Any] | None:
        """Return the only row, or None if there is none."""
        row: Sequence[Any] | None = self._result.fetchone()
        if row is not None and self._result.fetchone() is not None:
            raise ValueError("the statement has found more than one row")
        return row

    def scalars(self) -> Iterator[Any]:
        """Return the first column of every row."""
        return (row[0] for row in self._result)

    def scalar_one(self) -> Any:  # noqa: ANN401 - whatever the column holds
        """Return the only column of the only row."""
        row = self.one_or_none()
        if row is None:
            raise ValueError("the statement has found no row")
        return row[0]

    def scalar_one_or_none(self) -> Any | None:  # noqa: ANN401 - whatever the column holds
        """Return the only column of the only row, or None if there is no row."""
        row = self.one_or_none()
        return None if row is None else row[0]


@define
class _Progress:
    """How far a transaction has come."""

    is_committing: bool = False


class PostgresDatabase:
    """Runs units of work on a PostgreSQL database, from one event loop.

    Args:
        url: `postgresql://user:password@host:port/name`, with `?host=/directory` for a socket.

    Raises:
        ValueError: `url` is not one of a PostgreSQL database.
    """

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._reading = self._engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        self._under_way: set[asyncio.Task[Any]] = set()
        self._alone: AsyncConnection | None = None
        self._is_hold_lost = False
        self._lost: Callable[[], None] = lambda: None
        self._is_open = True

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `unit(connection, ...)` in one transaction and return its result after the commit.

        A caller that is cancelled stops nothing: what has begun runs to its commit.

        Raises:
            DatabaseUnavailableError: there is no answer, and it may or may not be committed.
            RuntimeError: the database is closed.
        """

        def work(connection: sqlalchemy.Connection) -> T:
            return unit(PostgresConnection(connection), *args, **kwargs)

        return await self._to_its_end(_repeated(self._engine, work))

    async def read(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `unit(connection, ...)`, which changes nothing, on one state of the database.

        Raises:
            DatabaseUnavailableError: there is no answer.
            RuntimeError: the database is closed.
        """

        def work(connection: sqlalchemy.Connection) -> T:
            return unit(PostgresConnection(connection), *args, **kwargs)

        return await self._to_its_end(_repeated(self._reading, work))

    async def create_missing(self, tables: MetaData) -> None:
        """Create those tables and indexes that the database does not have yet."""
        await self.lay_out(tables.create_all)

    async def lay_out(self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        """Run `work`, which changes tables, while no other server does the same."""

        def alone(connection: sqlalchemy.Connection) -> T:
            connection.execute(_LOCK, {"key": LAYOUT_KEY})
            return work(connection)

        return await self._to_its_end(_repeated(self._engine, alone))

    async def hold_alone(self, lost: Callable[[], None] = lambda: None) -> None:
        """Keep every other server that asks for the same away from this database, until it is closed.

        Args:
            lost: called once others are kept away no longer; nothing runs on the database from then on.

        Raises:
            DatabaseInUseError: another server holds it.
            DatabaseUnavailableError: there is no answer.
        """
        if self._alone is not None:
            return
        try:
            connection = await self._engine.connect()
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            is_alone = (await connection.execute(_ALONE, {"key": _ALONE_KEY})).scalar_one()
            raw: Any = await connection.get_raw_connection()
        except Exception as error:
            declared = _declared(error)
            raise error if declared is None else declared from error
        if not is_alone:
            await connection.close()
            raise DatabaseInUseError(
                "another server holds this database; one with an embedded chain needs it for itself"
            )
        raw.driver_connection.add_termination_listener(self._lose_hold)
        self._alone, self._lost = connection, lost

    async def close(self) -> None:
        """Finish what is under way and let go of all connections. Calling it again does nothing."""
        self._is_open = False
        if self._under_way:
            await asyncio.wait(self._under_way)
        alone, self._alone = self._alone, None
        if alone is not None:
            # Not returned to the pool: the lock goes with the connection.
            await alone.invalidate()
            await alone.close()
        await self._engine.dispose()

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._is_open or self._is_hold_lost:
            work.close()
            if self._is_open:
                raise DatabaseUnavailableError("the connection that kept other servers away was lost")
            raise RuntimeError("the database is closed")
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # Taken here, so that a failure that nobody awaits any more is not reported by the collector.
            task.exception()

    def _lose_hold(self, _connection: object) -> None:
        # Another server may hold the database from now on: this one must not touch it again.
        if self._alone is not None:
            self._is_hold_lost = True
            self._lost()


async def _repeated(engine: AsyncEngine, work: Callable[[sqlalchemy.Connection], T]) -> T:
    """Run `work` in a transaction, again when it certainly changed nothing."""
    for tries_left in reversed(range(_TRIES)):
        progress = _Progress()
        try:
            return await _once(engine, work, progress)
        except Exception as error:
            if tries_left and _changed_nothing(error, progress):
                continue
            declared = _declared(error)
            if declared is None:
                raise
            raise declared from error
    raise AssertionError("unreachable")


async def _once(engine: AsyncEngine, work: Callable[[sqlalchemy.Connection], T], progress: _Progress) -> T:
    async with engine.connect() as connection, connection.begin() as transaction:
        result = await connection.run_sync(work)
        progress.is_committing = True
        await transaction.commit()
        return result


def _changed_nothing(error: Exception, progress: _Progress) -> bool:
    """Whether the transaction was certainly undone, by no fault of its own."""
    if not isinstance(error, DBAPIError):
        return False
    if getattr(error.orig, "sqlstate", None) in _GIVEN_UP:
        return True
    return error.connection_invalidated and not progress.is_committing


def _declared(error: Exception) -> Exception | None:
    """Return what `Database` declares in the place of what SQLAlchemy, the driver or the network raised."""
    if isinstance(error, IntegrityError):  # Of a constraint that is checked at the end.
        return ConflictError(str(error.orig))
    cause = error.orig if isinstance(error, DBAPIError) else error
    if str(getattr(cause, "sqlstate", None))[:2] in _OUR_FAULTS:
        return None
    is_drivers = type(error).__module__.startswith("asyncpg.")
    if is_drivers or isinstance(error, (SQLAlchemyError, OSError)):
        return DatabaseUnavailableError(f"PostgreSQL gave no answer: {cause}")
    return None


def _engine(url: str) -> AsyncEngine:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError("a database URL is postgresql://user:password@host:port/name") from None
    if parsed.drivername not in ("postgresql", "postgres", "postgresql+asyncpg"):
        raise ValueError(f"a database URL starts with postgresql://, not {parsed.drivername}://")
    parsed = parsed.set(drivername="postgresql+asyncpg")
    mode = parsed.query.get("sslmode")
    if mode is not None:
        # libpq's name for it, which most URLs have; asyncpg knows the same values under its own.
        parsed = parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return create_async_engine(parsed, pool_size=POOL_SIZE, max_overflow=0, hide_parameters=True)
