"""Connections to PostgreSQL: SQLAlchemy Core compiles statements, asyncpg executes them directly.

A statement is compiled once (`Prepared`) and prepared once per connection. A unit of work is a plain
function, run in a greenlet so that the event loop continues while a statement waits.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar, cast

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement
from sqlalchemy import URL, BigInteger, Executable, Select, UpdateBase, bindparam
from sqlalchemy import cast as cast_to
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.util import await_only, greenlet_spawn

from agentpay_server.database.connection import (
    UNCACHED_PLAN,
    Connection,
    ConstraintError,
    Parameters,
    Preparer,
    Result,
    Row,
)
from agentpay_server.plugins.postgres.writes import HeldRows, HeldWrites, shape_of

T = TypeVar("T")

_DIALECT: Final = PGDialect_asyncpg()  # type: ignore[no-untyped-call]
_PREPARER: Final = Preparer(_DIALECT)
CONNECTING_SECONDS: Final = 10.0
"""Timeout of connecting."""

_CLOSING_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 10.0
"""Timeout of a statement: one usually takes milliseconds, and a network that drops packets reports nothing.
"""

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
"""Closes an idle connection about ten seconds after its peer is gone."""

_SETTINGS: Final = {
    # Each statement has one good plan for all parameters: plan it once per connection.
    "plan_cache_mode": "force_generic_plan",
    # Keepalive on the server's side, which holds the locks of a transaction whose client is gone.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "idle_in_transaction_session_timeout": "15000",
}
_PLACE: Final = "place_among_sets"
_CUSTOM_PLAN: Final = "SET LOCAL plan_cache_mode = force_custom_plan"


def session_settings(schema: str) -> dict[str, str]:
    """Return the settings of every connection: only `schema` and PostgreSQL's own are on the search path."""
    return {**_SETTINGS, "search_path": f'"{schema}"'}


class MultipleStatements(BaseException):
    """A unit needs a transaction: it has several statements, or one that is not a plain SELECT."""


class UndoneError(Exception):
    """A unit ignored an error that had aborted its transaction."""


class PreparedConnection:
    """A connection to the server, with its prepared statements."""

    def __init__(self, driver: asyncpg.Connection) -> None:
        self.driver = driver
        self._statements: dict[str, PreparedStatement] = {}
        self._is_given_up = False

    @property
    def is_idle(self) -> bool:
        """Whether it is open and outside a transaction."""
        return not self.driver.is_closed() and not self.driver.is_in_transaction()

    async def in_transaction(
        self, begin: str, unit: Callable[[Connection], T], committing: Callable[[], None]
    ) -> T:
        """Run `unit` in a transaction, and return its result after the commit.

        `begin` is the statement that begins it; `committing` is called just before COMMIT is sent.
        """
        await self.execute(begin)
        connection = PostgresConnection(self)

        def to_its_end() -> T:
            result = unit(connection)
            connection.send_held()
            return result

        try:
            result = await greenlet_spawn(to_its_end)
        except BaseException:
            # If the rollback fails too, the pool discards the connection, and the server rolls back.
            with contextlib.suppress(Exception):
                await self.execute("ROLLBACK")
            raise
        committing()
        # PostgreSQL responds to COMMIT of an aborted transaction with ROLLBACK.
        if await self.execute("COMMIT") != "COMMIT":
            raise UndoneError("a unit of work continued after its transaction was aborted")
        return result

    async def single_select(self, unit: Callable[[Connection], T]) -> T:
        """Run `unit`, which may execute one SELECT only, without a transaction.

        Raises:
            MultipleStatements: the unit does more; nothing was changed.
        """
        return await greenlet_spawn(unit, _SingleStatementConnection(self))

    async def without_transaction(self, unit: Callable[[Connection], T]) -> T:
        """Run `unit`, which only reads, without a transaction. Each statement may see another state."""
        return await greenlet_spawn(unit, PostgresConnection(self))

    async def execute(self, text: str) -> str:
        """Run a statement without parameters, and return its status text."""
        status: str = await self._answered(self.driver.execute(text))
        return status

    async def fetch(self, text: str, values: Sequence[Any]) -> "_Rows":
        """Run a statement."""
        statement = await self._prepared(text)
        return _Rows(await self._answered(statement.fetch(*values)), statement.get_statusmsg())

    async def fetch_each(self, text: str, values: Sequence[Sequence[Any]]) -> "list[asyncpg.Record]":
        """Run a statement once for each set of values, in one batch, and return the rows of all."""
        rows: list[asyncpg.Record] = await self._answered((await self._prepared(text)).fetchmany(values))
        return rows

    async def run_each(self, text: str, values: Sequence[Sequence[Any]]) -> "_Rows":
        """Run a statement once for each set of values, in one batch."""
        await self._answered((await self._prepared(text)).executemany(values))
        return _Rows([], "")

    async def close(self) -> None:
        """Close the connection."""
        # Errors while closing have no effect.
        with contextlib.suppress(Exception):
            await self.driver.close(timeout=_CLOSING_SECONDS)

    async def _prepared(self, text: str) -> PreparedStatement:
        found = self._statements.get(text)
        if found is None:
            found = self._statements[text] = await self._answered(self.driver.prepare(text))
        return found

    async def _answered(self, answer: Awaitable[T]) -> T:
        """Return the server's response; close the connection if it takes too long.

        Raises:
            ConnectionAbortedError: the statement timed out.
        """
        # A timer costs a third of `asyncio.timeout`, and there is one for each statement.
        limit = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self._give_up)
        try:
            return await answer
        except Exception:
            if not self._is_given_up:
                raise
            raise ConnectionAbortedError(
                f"PostgreSQL did not answer within {_ANSWER_SECONDS:.0f} s"
            ) from None
        finally:
            limit.cancel()

    def _give_up(self) -> None:
        self._is_given_up = True
        # Without a cancel request, which would need the same network.
        self.driver.terminate()


class PostgresConnection:
    """A connection in a transaction. See `Connection`."""

    def __init__(self, session: PreparedConnection) -> None:
        self._session = session
        self._held = HeldWrites()

    def execute(
        self, statement: Executable, parameters: Parameters | Sequence[Parameters] | None = None, /
    ) -> Result:
        """See `Connection.execute`. A conflict aborts the transaction."""
        sets = parameters if isinstance(parameters, Sequence) else [parameters or {}]
        prepared = _PREPARER.prepared(statement, sets[0])
        values = [prepared.positional(each) for each in sets]
        shape = shape_of(statement, prepared)
        if shape is not None:
            held = self._held.add(shape, values)
            if held is None:
                self.send_held()
                held = self._held.add(shape, values)
            if held is not None:
                return HeldResult(self.send_held, held)
        if self._held.concern(prepared.text):
            self.send_held()
        try:
            if isinstance(parameters, Sequence):
                return await_only(self._session.run_each(prepared.text, values))
            if UNCACHED_PLAN.items() <= statement.get_execution_options().items():
                await_only(self._session.execute(_CUSTOM_PLAN))
            return await_only(self._session.fetch(prepared.text, values[0]))
        except asyncpg.IntegrityConstraintViolationError as error:
            raise ConstraintError(str(error)) from error

    def execute_each(self, statement: Executable, sets: Sequence[Parameters]) -> list[Result]:
        """Execute a statement for each set of parameters, in order and in one round trip.

        Raises:
            ConstraintError: a row would violate a constraint. The transaction is aborted.
        """
        statement = _numbered(statement)
        prepared = _PREPARER.prepared(statement, {**sets[0], _PLACE: 0})
        values = [prepared.positional({**each, _PLACE: place}) for place, each in enumerate(sets)]
        if self._held.concern(prepared.text):
            self.send_held()
        rows: list[list[Any]] = [[] for _ in sets]
        try:
            for row in await_only(self._session.fetch_each(prepared.text, values)):
                rows[row[-1]].append(row[:-1])
        except asyncpg.IntegrityConstraintViolationError as error:
            raise ConstraintError(str(error)) from error
        return [_Rows(each, str(len(each))) for each in rows]

    def send_held(self) -> None:
        """Send the writes that are held.

        Raises:
            ConstraintError: a row would violate a constraint.
        """
        if not self._held:
            return
        taken, text, values = self._held.take()
        try:
            counts = await_only(self._session.fetch(text, values)).one_or_none()
        except asyncpg.IntegrityConstraintViolationError as error:
            raise ConstraintError(str(error)) from error
        for held, count in zip(taken, counts or (), strict=True):
            held.count = count


class _Rows:
    __slots__ = ("_records", "_status")

    def __init__(self, records: "list[Any]", status: str) -> None:
        self._records = records
        self._status = status

    @property
    def rowcount(self) -> int:
        return int(self._status.rpartition(" ")[2])

    def __iter__(self) -> Iterator[Row]:
        return iter(cast("list[Row]", self._records))

    def one_or_none(self) -> Row | None:
        if len(self._records) > 1:
            raise ValueError("the statement returned more than one row")
        return cast("Row", self._records[0]) if self._records else None

    def scalars(self) -> Iterator[Any]:
        return (row[0] for row in self._records)

    def scalar_one(self) -> Any:  # noqa: ANN401 - whatever the column holds
        row = self.one_or_none()
        if row is None:
            raise ValueError("the statement returned no row")
        return row[0]

    def scalar_one_or_none(self) -> Any | None:  # noqa: ANN401 - whatever the column holds
        row = self.one_or_none()
        return None if row is None else row[0]


class HeldResult(_Rows):
    """The result of a write that may still be held; there are no rows. `send_held` sends what is held."""

    __slots__ = ("_send_held", "held")

    def __init__(self, send_held: Callable[[], None], held: HeldRows) -> None:
        super().__init__([], "")
        self._send_held = send_held
        self.held: HeldRows = held

    @property
    def rowcount(self) -> int:
        """Send the write if it is held. Other rows of its table that were sent with it count too."""
        if self.held.count is None:
            self._send_held()
        return self.held.count or 0


class _SingleStatementConnection(PostgresConnection):
    """Runs a single SELECT, without a transaction."""

    _is_used = False

    def execute(
        self, statement: Executable, parameters: Parameters | Sequence[Parameters] | None = None, /
    ) -> Result:
        """Run the statement.

        Raises:
            MultipleStatements: it is not the first, or not a SELECT.
        """
        if self._is_used or not isinstance(statement, Select):
            raise MultipleStatements
        self._is_used = True
        return super().execute(statement, parameters)


_numbered_statements: dict[Executable, Executable] = {}


def _numbered(statement: Executable) -> Executable:
    """Return a statement whose rows end with the place of the parameters that they belong to."""
    found = _numbered_statements.get(statement)
    if found is None:
        place = cast_to(bindparam(_PLACE, type_=BigInteger), BigInteger)
        if isinstance(statement, Select):
            found = statement.add_columns(place)
        elif isinstance(statement, UpdateBase):
            found = statement.returning(place)
        else:
            raise TypeError(f"{type(statement).__name__} cannot be executed for several sets")
        _numbered_statements[statement] = found
    return found


class Pool:
    """The connections of one server, opened on demand and kept open; callers wait if `size` are in use.

    asyncpg's own pool resets every returned connection, and so discards its prepared statements. Units never
    change session state, so no reset is needed.
    """

    def __init__(self, url: URL, size: int, *, schema: str) -> None:
        _, options = _DIALECT.create_connect_args(url)  # type: ignore[no-untyped-call]
        settings = {"server_settings": session_settings(schema)}
        self._options = {"timeout": CONNECTING_SECONDS, **options, **settings}
        self._places = asyncio.Semaphore(size)
        self._free: list[PreparedConnection] = []
        self._taken: set[PreparedConnection] = set()
        self._is_aborted = False

    async def connect(self) -> PreparedConnection:
        """Open a connection that is not part of the pool."""
        driver = await asyncpg.connect(**self._options)
        _keep_alive(driver)
        return PreparedConnection(driver)

    async def acquire(self) -> PreparedConnection:
        """Return a connection for exclusive use; `release` returns it.

        Raises:
            ConnectionAbortedError: all connections were aborted.
        """
        await self._places.acquire()
        try:
            session = await self._usable()
        except BaseException:
            self._places.release()
            raise
        self._taken.add(session)
        return session

    async def _usable(self) -> PreparedConnection:
        while self._free:
            # The most recently used: its prepared statements and the server's caches are warm.
            session = self._free.pop()
            if session.is_idle:
                return session
        if not self._is_aborted:
            session = await self.connect()
            if not self._is_aborted:
                return session
            session.driver.terminate()
        raise ConnectionAbortedError("this server has closed its database connections")

    def drop_idle(self) -> None:
        """Close the idle connections after the loss of one, because they may be lost too.

        Otherwise a unit could spend all its retries on lost connections.
        """
        free, self._free = self._free, []
        for session in free:
            session.driver.terminate()

    def abort(self) -> None:
        """Abort all connections, even those in use, and refuse new ones."""
        self._is_aborted = True
        for session in (*self._taken, *self._free):
            session.driver.terminate()

    def release(self, session: PreparedConnection) -> None:
        """Return a connection to the pool, or close it if it is unusable."""
        self._taken.discard(session)
        if session.is_idle:
            self._free.append(session)
        else:
            session.driver.terminate()
        self._places.release()

    async def close(self) -> None:
        """Close all connections. None may be in use."""
        free, self._free = self._free, []
        await asyncio.gather(*(session.close() for session in free))


def _keep_alive(driver: asyncpg.Connection) -> None:
    """Enable TCP keepalive, for which asyncpg has no option."""
    found = driver._transport.get_extra_info("socket")  # noqa: SLF001
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        # Some systems lack some of these options.
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
