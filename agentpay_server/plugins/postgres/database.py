"""PostgreSQL: pooled connections, one transaction per unit of work, explicit locks.

A unit runs at READ COMMITTED with explicit row locks. A read runs at REPEATABLE READ, so that all its
statements see one state. A unit is retried if PostgreSQL aborted it to resolve a deadlock, or if the
connection was lost before COMMIT was sent: in both cases nothing was changed. Any other error after COMMIT
was sent raises `DatabaseUnavailableError`, because the outcome is unknown.

All tables live in one schema, the only one on the search path of a connection, so that no statement reaches
other tables. Servers may share a schema, or use different schemas of one database: locks are per schema too.
A server that needs its schema exclusively calls `hold_alone` first.
"""

import asyncio
import contextlib
import hashlib
import inspect
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

import asyncpg
import sqlalchemy
from sqlalchemy import URL, MetaData, NullPool, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateSchema

from agentpay_server.database.connection import Connection
from agentpay_server.database.runner import (
    DatabaseAwayError,
    DatabaseClosedError,
    DatabaseInUseError,
    DatabaseUnavailableError,
    OfAccounts,
    StartRefusedError,
)
from agentpay_server.database.tables import metadata
from agentpay_server.platform.settings import DATABASE_SCHEMA, check_database_schema
from agentpay_server.plugins.postgres.batches import Batches
from agentpay_server.plugins.postgres.connections import (
    CONNECTING_SECONDS,
    MultipleStatements,
    Pool,
    PreparedConnection,
    UndoneError,
    session_settings,
)

VERSION_TABLE: Final = "agentpay_version"
"""Holds the current migration. `alembic_version` may belong to other software, and is never read."""

_NOT_PERMITTED: Final = "42501"
_USABLE: Final = text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = :name")
# Tables, indexes, sequences and views, whose names share one namespace.
_RELATIONS: Final = text(
    "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace ORDER BY relname"
)
_CURRENT: Final = text("SELECT current_schema()")

P = ParamSpec("P")
T = TypeVar("T")

POOL_SIZE: Final = 16
"""Maximum connections per server; further units wait for one."""

_TRIES: Final = 5
_TRYING_SECONDS: Final = 15.0
"""A unit is not retried after this time: on a dead network each attempt takes its full timeout."""

_ABORTED: Final = {"40001", "40P01"}
"""SQLSTATEs of a transaction aborted in favor of another: serialization failure, deadlock."""

_SERVER_STOPPING: Final = {"57P01", "57P02", "57P03"}
"""SQLSTATEs of a server that is shutting down, has crashed, or is still starting."""

_LASTING: Final = {"0A", "28", "3D", "3F", "54"}
"""Classes of SQLSTATEs that waiting does not change: an unsupported feature, a refused role or password, a
missing database or schema, a limit of PostgreSQL."""

_BUGS: Final = {"22", "25", "42"}
"""Classes of SQLSTATEs for which a retry is pointless: an invalid value, transaction or statement."""

_PASSING: Final = {"25006", "25P03", "25P04"}
"""SQLSTATEs of these classes that are no bugs: a server that is read-only during a failover, a timeout of the
transaction."""

_URL_OPTIONS: Final = frozenset(inspect.signature(asyncpg.connect).parameters)

_BEGIN: Final = "BEGIN"
_BEGIN_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_ALONE: Final = "SELECT pg_try_advisory_lock($1)"
# Not `now()`, which is when the transaction began.
_NOW_US: Final = text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS bigint)")
_LOCK: Final = text("SELECT pg_advisory_xact_lock(:key)")
_HOLD_TRIES: Final = 30
_HOLD_PAUSE_SECONDS: Final = 0.1
_LAST_UNITS_SECONDS: Final = 5.0
_PROBE_PAUSE_SECONDS: Final = 30.0
_PROBE_ANSWER_SECONDS: Final = 10.0
_PROBE: Final = "SELECT 1"


def give_conditions(tables: MetaData) -> None:
    """Give partial indexes the condition that they have on SQLite, or the `postgresql_where` in their `info`.

    As an argument of the index, it would load PostgreSQL's dialect in every process.
    """
    for index in (index for table in tables.tables.values() for index in table.indexes):
        condition = index.info.get("postgresql_where", index.dialect_options["sqlite"]["where"])
        if condition is not None:
            index.dialect_options["postgresql"]["where"] = condition


def lock_key(purpose: str, schema: str) -> int:
    """Return the key of an advisory lock. It includes the schema, because a database shares these keys."""
    digest = hashlib.sha256(f"agentpay {purpose} {schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def create_schema(connection: sqlalchemy.Connection, name: str) -> None:
    """Create the schema if it does not exist.

    Raises:
        StartRefusedError: the connection's role may neither create nor use it.
    """
    is_usable = connection.execute(_USABLE, {"name": name}).scalar_one_or_none()
    if is_usable is None:
        # Only if missing: IF NOT EXISTS needs the right to create schemas even for an existing one.
        connection.execute(CreateSchema(name))
    elif not is_usable:
        raise _not_permitted(name)


def refusal_of(error: DBAPIError, schema: str) -> StartRefusedError | None:
    """Return the refusal for a denied permission; None for any other error."""
    is_refusal = getattr(error.orig, "sqlstate", None) == _NOT_PERMITTED
    return _not_permitted(schema) if is_refusal else None


def check_contents(connection: sqlalchemy.Connection) -> bool:
    """Return whether the current schema is migrated; False if it is empty.

    Raises:
        StartRefusedError: it holds tables of other software.
    """
    names = list(connection.execute(_RELATIONS).scalars())
    if names and VERSION_TABLE not in names:
        schema = connection.execute(_CURRENT).scalar_one()
        raise StartRefusedError(
            f"the database schema {schema!r} holds tables of other software, such as {names[0]!r}. Set "
            "--database-schema (database_schema=) to the name of a schema that is empty or does not exist"
        )
    return bool(names)


def _not_permitted(schema: str) -> StartRefusedError:
    return StartRefusedError(
        f"the database role may not use the schema {schema!r}, or may not create tables in it. Ask an "
        f"administrator to run CREATE SCHEMA {schema} AUTHORIZATION with the name of the role, or set "
        "--database-schema (database_schema=) to a schema that the role owns"
    )


give_conditions(metadata)


class PostgresDatabase:
    """Runs units of work on a PostgreSQL database, from one event loop.

    Args:
        url: `postgresql://user:password@host:port/name`, with `?host=/directory` for a socket.
        schema: holds all tables; created if missing. No table outside it is ever read.

    Raises:
        ValueError: `url` is not a PostgreSQL URL, or `schema` is not a valid name.
    """

    is_inline: ClassVar[bool] = False

    def __init__(self, url: str, schema: str = DATABASE_SCHEMA) -> None:
        self._url = _url(url)
        self._schema = check_database_schema(schema)
        self._pool = Pool(self._url, POOL_SIZE, schema=schema)
        self._running: set[asyncio.Task[Any]] = set()
        self._units = Batches(partial(self._in_transaction, _BEGIN), self._start)
        # By the code objects of units: a read that takes long holds up none of another kind.
        self._reads: defaultdict[object, Batches] = defaultdict(self._new_reads)
        # The code objects of units known to read with more than one statement.
        self._multi_statement_reads: set[object] = set()
        self._holder: PreparedConnection | None = None
        self._probing: asyncio.Task[None] | None = None
        self._is_hold_lost = False
        self._lost: Callable[[], None] = lambda: None
        self._is_open = True

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See `Database.run`. If the caller is cancelled, a unit that has begun still runs to its commit.

        Raises:
            DatabaseUnavailableError: the database did not respond; the unit may or may not be committed.
            DatabaseClosedError: `close` was called.
        """

        def work(connection: Connection) -> T:
            return unit(connection, *args, **kwargs)

        def alone() -> Coroutine[Any, Any, T]:
            return self._in_transaction(_BEGIN, work)

        if isinstance(unit, OfAccounts):
            return await self._shielded(self._units.run(work, unit, alone))
        return await self._shielded(alone())

    async def read(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See `Database.read`.

        A single SELECT sees one state even without a transaction, which saves two statements. So a unit first
        runs without one. If it has several statements, it is run again in a transaction, as all later runs
        are.

        Raises:
            DatabaseUnavailableError: the database did not respond.
            DatabaseClosedError: `close` was called.
        """
        kind = getattr(unit, "__code__", type(unit))
        return await self._shielded(self._read(kind, lambda c: unit(c, *args, **kwargs)))

    async def now_us(self) -> int:
        """Return PostgreSQL's clock, in microseconds since 1970, UTC.

        Raises:
            DatabaseUnavailableError: the database did not respond.
            DatabaseClosedError: `close` was called.
        """
        return await self.read(_now_us)

    async def create_missing(self, tables: MetaData) -> None:
        give_conditions(tables)
        await self.lay_out(tables.create_all)

    async def lay_out(self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        """Run `work`, which changes tables, under a lock against other servers of this schema.

        Raises:
            StartRefusedError: the role may not create the schema or its tables.
            DatabaseUnavailableError: the database did not respond.
        """

        def alone(connection: sqlalchemy.Connection) -> T:
            connection.execute(_LOCK, {"key": lock_key("layout", self._schema)})
            try:
                create_schema(connection, self._schema)
                return work(connection)
            except DBAPIError as error:
                refusal = refusal_of(error, self._schema)
                if refusal is None:
                    raise
                raise refusal from error

        async def laid_out() -> T:
            options = {"timeout": CONNECTING_SECONDS, "server_settings": session_settings(self._schema)}
            engine = create_async_engine(
                self._url, poolclass=NullPool, hide_parameters=True, connect_args=options
            )
            async with engine.begin() as connection:
                return await connection.run_sync(alone)

        return await self._shielded(_declaring(laid_out()))

    async def hold_alone(self, lost: Callable[[], None] = lambda: None) -> None:
        """Acquire exclusive use of this schema until `close`, against all servers that do the same.

        If it is lost, running units are aborted, later ones refused, and `lost` is called.

        Raises:
            DatabaseInUseError: another server holds the schema.
            DatabaseUnavailableError: the database did not respond.
        """
        if self._holder is None:
            holder = await _declaring(self._hold())
            holder.driver.add_termination_listener(self._lose_hold)
            self._holder, self._lost = holder, lost
            self._probing = asyncio.get_running_loop().create_task(_probe(holder))

    async def close(self) -> None:
        """Finish running units and close all connections. Closing twice is allowed.

        Units that take more than five seconds are aborted.
        """
        self._is_open = False
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=_LAST_UNITS_SECONDS)
            if late:
                # Abort connections before units, which would otherwise send a rollback and wait for it.
                self._pool.abort()
                for unit in late:
                    unit.cancel()
                await asyncio.wait(late)
        if self._probing is not None:
            self._probing.cancel()
        holder, self._holder = self._holder, None
        if holder is not None:
            await holder.close()
        await self._pool.close()

    async def _hold(self) -> PreparedConnection:
        session = await self._pool.connect()
        key = lock_key("alone", self._schema)
        is_held = False
        try:
            # A killed server holds the lock until PostgreSQL detects that its connection is gone.
            for _ in range(_HOLD_TRIES):
                is_held = await session.driver.fetchval(_ALONE, key)
                if is_held:
                    break
                await asyncio.sleep(_HOLD_PAUSE_SECONDS)
        finally:
            if not is_held:
                await session.close()
        if not is_held:
            raise DatabaseInUseError(
                f"another server holds the schema {self._schema!r} of this database, and a server with an "
                "embedded chain needs it exclusively. Stop that server, or choose another --database-schema "
                "(database_schema=)"
            )
        return session

    async def _in_transaction(self, begin: str, unit: Callable[[Connection], T]) -> T:
        is_committing = False

        def committing() -> None:
            nonlocal is_committing
            is_committing = True

        async def once(session: PreparedConnection) -> T:
            nonlocal is_committing
            is_committing = False
            return await session.in_transaction(begin, unit, committing)

        return await self._repeated(once, lambda: is_committing)

    async def _read(self, kind: object, unit: Callable[[Connection], T]) -> T:
        if kind not in self._multi_statement_reads:
            try:
                return await self._reads[kind].run(unit, None, lambda: self._single_select(unit))
            except MultipleStatements:
                self._multi_statement_reads.add(kind)
        return await self._in_transaction(_BEGIN_READ, unit)

    def _new_reads(self) -> Batches:
        return Batches(self._read_together, self._start, is_read=True)

    async def _single_select(self, unit: Callable[[Connection], T]) -> T:
        return await self._repeated(lambda session: session.single_select(unit), lambda: False)

    async def _read_together(self, unit: Callable[[Connection], None]) -> None:
        await self._repeated(lambda session: session.without_transaction(unit), lambda: False)

    async def _repeated(
        self, once: Callable[[PreparedConnection], Awaitable[T]], is_committing: Callable[[], bool]
    ) -> T:
        """Run `once` on a connection, and retry on another connection if nothing was changed."""
        loop = asyncio.get_running_loop()
        last_try_at = loop.time() + _TRYING_SECONDS
        for tries_left in reversed(range(_TRIES)):
            # The notification of the loss arrives slightly late, so check the connection too.
            if self._is_hold_lost or (self._holder is not None and self._holder.driver.is_closed()):
                raise DatabaseAwayError(
                    "the connection that kept other servers away from the database was lost"
                )
            try:
                return await self._once(once)
            except Exception as error:
                is_unchanged = _sqlstate(error) in _ABORTED or (_is_lost(error) and not is_committing())
                if is_unchanged and tries_left and loop.time() < last_try_at:
                    continue
                declared = _declared(error)
                if declared is None and is_committing() and not isinstance(error, UndoneError):
                    declared = DatabaseUnavailableError(f"an error followed COMMIT: {_message_of(error)}")
                if declared is None:
                    raise
                raise declared from error
        raise AssertionError("unreachable")

    async def _once(self, once: Callable[[PreparedConnection], Awaitable[T]]) -> T:
        session = await self._pool.acquire()
        try:
            return await once(session)
        except Exception as error:
            if _is_lost(error):
                session.driver.terminate()
                self._pool.drop_idle()
            raise
        finally:
            self._pool.release(session)

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._is_open:
            work.close()
            raise DatabaseClosedError("the database is closed")
        return await asyncio.shield(self._start(work))

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Retrieved here, so that asyncio does not report it if no caller awaits the task.
            task.exception()

    def _lose_hold(self, _connection: object) -> None:
        # Another server may hold the schema now, so this one must not use it again.
        if self._holder is not None:
            self._is_hold_lost = True
            # Abort uncommitted transactions, because the other server may already have read the state.
            self._pool.abort()
            self._lost()


def _now_us(connection: Connection) -> int:
    return int(connection.execute(_NOW_US).scalar_one())


async def _probe(holder: PreparedConnection) -> None:
    """Check periodically that a connection responds, and close it if it does not.

    On a network that drops packets this server would not notice that PostgreSQL released the hold.
    """
    with contextlib.suppress(Exception):
        while True:
            await asyncio.sleep(_PROBE_PAUSE_SECONDS)
            async with asyncio.timeout(_PROBE_ANSWER_SECONDS):
                await holder.driver.execute(_PROBE)
    holder.driver.terminate()


async def _declaring(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except Exception as error:
        declared = _declared(error)
        if declared is None:
            raise
        raise declared from error


def _sqlstate(error: BaseException | None) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def _is_lost(error: Exception) -> bool:
    """Return whether an error means that the connection, or its server, is gone."""
    state = _sqlstate(error)
    # asyncpg's message for a connection that was closed while idle.
    is_drivers = isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError))
    is_value = isinstance(error, ValueError)
    return (
        (is_drivers and not is_value)
        or isinstance(error, OSError)
        or state in _SERVER_STOPPING
        or state.startswith("08")
    )


def _declared(error: Exception) -> DatabaseUnavailableError | None:
    """Return the declared error for an error of the driver or network; None for a bug."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = _sqlstate(cause)
    # A ValueError is a bug (a value that asyncpg cannot send), unless it reports an invalid URL option.
    is_bug = isinstance(cause, ValueError) and not isinstance(cause, asyncpg.ClientConfigurationError)
    if is_bug or (state[:2] in _BUGS and state not in _PASSING):
        return None
    is_drivers = type(cause).__module__.startswith("asyncpg.")
    if is_drivers or isinstance(error, (DBAPIError, OSError)):
        kind = DatabaseAwayError if _may_pass(cause, state) else DatabaseUnavailableError
        return kind(f"PostgreSQL did not respond: {_message_of(cause)}")
    return None


def _may_pass(cause: BaseException | None, state: str) -> bool:
    """Return whether waiting may help, unlike with a wrong name, password or certificate."""
    is_lasting = isinstance(cause, (ssl.SSLCertVerificationError, asyncpg.ClientConfigurationError))
    return not is_lasting and state[:2] not in _LASTING


def _message_of(cause: BaseException | None) -> str:
    # A connection timeout has no message.
    return str(cause) or type(cause).__name__


def _url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError("a database URL is postgresql://user:password@host:port/name") from None
    if parsed.drivername not in ("postgresql", "postgres", "postgresql+asyncpg"):
        raise ValueError(f"a database URL starts with postgresql://, not {parsed.drivername}://")
    parsed = parsed.set(drivername="postgresql+asyncpg")
    mode = parsed.query.get("sslmode")
    if mode is not None:
        # Most URLs use libpq's name; asyncpg takes the same values under its own.
        parsed = parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    unknown = parsed.query.keys() - _URL_OPTIONS
    if unknown:
        # asyncpg lacks some options of libpq: refuse them now, not at the first connection.
        raise ValueError(f"a database URL takes no option {', '.join(sorted(unknown))}; leave it out")
    return parsed
