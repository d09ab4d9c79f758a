"""Connections to PostgreSQL: SQLAlchemy Core on asyncpg with SQLAlchemy out of the way of every execution.

A statement is compiled once (`prepared.py`) and prepared once on each connection. A unit of work is a plain
function: it runs in a greenlet, which lets the event loop go on while a statement waits for its answer.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar, cast

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement
from sqlalchemy import URL, Executable, Select
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.util import await_only, greenlet_spawn

from agentpay_server.database.connection import PLANNED_EACH_TIME, ConflictError, Connection, Parameters
from agentpay_server.database.prepared import Preparer, Row

T = TypeVar("T")

_DIALECT: Final = PGDialect_asyncpg()  # type: ignore[no-untyped-call]
_PREPARER: Final = Preparer(_DIALECT)
CONNECTING_SECONDS: Final = 10.0
"""How long a connection may take to come about."""

_CLOSING_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 10.0
"""How long a statement may take: milliseconds are usual, and a network that swallows it tells nobody."""

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
"""An idle connection whose other side is gone is closed within some ten seconds, before anybody uses it."""

_SETTINGS: Final = {
    # Every statement has one good plan, whatever its parameters: made once on a connection, not each time.
    "plan_cache_mode": "force_generic_plan",
    # The same from the other side, which holds the locks of a transaction whose server is gone.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "idle_in_transaction_session_timeout": "15000",
}
_PLAN_ANEW: Final = "SET LOCAL plan_cache_mode = force_custom_plan"


def session_settings(schema: str) -> dict[str, str]:
    """Return what every connection to the server is set to.

    Args:
        schema: the only one whose tables a statement finds, beside PostgreSQL's own.
    """
    return {**_SETTINGS, "search_path": f'"{schema}"'}


class MoreThanOneStatement(BaseException):
    """A unit needs a transaction: it has more than one statement, or one that is no plain SELECT."""


class UnansweredError(ConnectionAbortedError):
    """A statement was not answered in time; the connection is given up."""


class UndoneError(Exception):
    """A unit went on after an error that had undone its transaction, and returned."""


class Session:
    """A connection to the server, and the statements that are prepared on it.

    Args:
        driver: asyncpg's connection.
    """

    def __init__(self, driver: asyncpg.Connection) -> None:
        self.driver = driver
        self._statements: dict[str, PreparedStatement] = {}

    @property
    def is_idle(self) -> bool:
        """Whether it can be used: it is open, and nothing is left over on it."""
        return not self.driver.is_closed() and not self.driver.is_in_transaction()

    async def in_transaction(
        self, begin: str, unit: Callable[[Connection], T], committing: Callable[[], None]
    ) -> T:
        """Return what `unit` returns, after the commit.

        Args:
            begin: the statement that begins the transaction.
            unit: called with a connection.
            committing: called when COMMIT is about to be sent.
        """
        await self.execute(begin)
        try:
            result = await greenlet_spawn(unit, _Connection(self))
        except BaseException:
            # Where that fails too, the connection is not used again, and the server rolls back by itself.
            with contextlib.suppress(Exception):
                await self.execute("ROLLBACK")
            raise
        committing()
        # A transaction that an error has undone ends with ROLLBACK, though COMMIT was asked for.
        if await self.execute("COMMIT") != "COMMIT":
            raise UndoneError("a unit of work went on after its transaction was undone")
        return result

    async def alone(self, unit: Callable[[Connection], T]) -> T:
        """Return what `unit` returns, whose only statement, a SELECT, is a transaction of its own.

        Raises:
            MoreThanOneStatement: it is not; nothing was changed.
        """
        return await greenlet_spawn(unit, _LonelyConnection(self))

    async def execute(self, text: str) -> str:
        """Run a statement without parameters, and return what the server says of it."""
        status: str = await self._answered(self.driver.execute(text))
        return status

    async def fetch(self, text: str, values: list[Any]) -> "_Rows":
        """Run a statement."""
        statement = await self._prepared(text)
        return _Rows(await self._answered(statement.fetch(*values)), statement.get_statusmsg())

    async def run_each(self, text: str, values: list[list[Any]]) -> "_Rows":
        """Run a statement for each of some sets of values, all in one go."""
        await self._answered((await self._prepared(text)).executemany(values))
        return _Rows([], "")

    async def close(self) -> None:
        """Close the connection."""
        # Whatever becomes of that, it is the end of it.
        with contextlib.suppress(Exception):
            await self.driver.close(timeout=_CLOSING_SECONDS)

    async def _prepared(self, text: str) -> PreparedStatement:
        found = self._statements.get(text)
        if found is None:
            found = self._statements[text] = await self._answered(self.driver.prepare(text))
        return found

    async def _answered(self, answer: Awaitable[T]) -> T:
        """Return what the server answers, and give the connection up once that takes too long.

        Raises:
            UnansweredError: it did not answer in time.
        """
        limit = asyncio.timeout(_ANSWER_SECONDS)
        try:
            async with limit:
                return await answer
        except TimeoutError:
            if not limit.expired():
                raise
            # At once: to ask the server to give the statement up would wait for the same network.
            self.driver.terminate()
            raise UnansweredError(f"PostgreSQL did not answer within {_ANSWER_SECONDS:.0f} s") from None


class _Connection:
    """Runs statements within a unit of work."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def execute(
        self, statement: Executable, parameters: Parameters | Sequence[Parameters] | None = None, /
    ) -> "_Rows":
        """Run a statement; with a sequence of parameters, once for each of them.

        Raises:
            ConflictError: a row would break a constraint. The transaction is lost.
            KeyError: a parameter is missing.
        """
        try:
            if isinstance(parameters, Sequence):
                prepared = _PREPARER.prepared(statement, parameters[0])
                values = [prepared.positional(each) for each in parameters]
                return await_only(self._session.run_each(prepared.text, values))
            if PLANNED_EACH_TIME.items() <= statement.get_execution_options().items():
                await_only(self._session.execute(_PLAN_ANEW))
            prepared = _PREPARER.prepared(statement, parameters or {})
            return await_only(self._session.fetch(prepared.text, prepared.positional(parameters or {})))
        except asyncpg.IntegrityConstraintViolationError as error:
            raise ConflictError(str(error)) from error


class _LonelyConnection(_Connection):
    """Runs one SELECT, which needs no transaction around it."""

    _is_used = False

    def execute(
        self, statement: Executable, parameters: Parameters | Sequence[Parameters] | None = None, /
    ) -> "_Rows":
        """Run the statement.

        Raises:
            MoreThanOneStatement: it is not the first, or no SELECT.
        """
        if self._is_used or not isinstance(statement, Select):
            raise MoreThanOneStatement
        self._is_used = True
        return super().execute(statement, parameters)


class _Rows:
    """The result of a statement."""

    __slots__ = ("_records", "_status")

    def __init__(self, records: "list[asyncpg.Record]", status: str) -> None:
        self._records = records
        self._status = status

    @property
    def rowcount(self) -> int:
        """How many rows the statement matched."""
        return int(self._status.rpartition(" ")[2])

    def __iter__(self) -> Iterator[Row]:
        return iter(cast("list[Row]", self._records))

    def one_or_none(self) -> Row | None:
        """Return the only row, or None if there is none.

        Raises:
            ValueError: there is more than one.
        """
        if len(self._records) > 1:
            raise ValueError("the statement has found more than one row")
        return cast("Row", self._records[0]) if self._records else None

    def scalars(self) -> Iterator[Any]:
        """Return the first column of every row."""
        return (row[0] for row in self._records)

    def scalar_one(self) -> Any:  # noqa: ANN401 - whatever the column holds
        """Return the only column of the only row.

        Raises:
            ValueError: there is no row, or more than one.
        """
        row = self.one_or_none()
        if row is None:
            raise ValueError("the statement has found no row")
        return row[0]

    def scalar_one_or_none(self) -> Any | None:  # noqa: ANN401 - whatever the column holds
        """Return the only column of the only row, or None if there is no row."""
        row = self.one_or_none()
        return None if row is None else row[0]


class Pool:
    """The connections of one server: made when they are needed, kept when they are not.

    asyncpg's own pool would ask the server to reset every connection that is returned, and forget what is
    prepared on it; here nothing is ever set on one.

    Args:
        url: of the database.
        size: how many there are at most; whoever asks beyond that waits for one.
        schema: the schema that holds all tables.
    """

    def __init__(self, url: URL, size: int, *, schema: str) -> None:
        _, options = _DIALECT.create_connect_args(url)  # type: ignore[no-untyped-call]
        settings = {"server_settings": session_settings(schema)}
        self._options = {"timeout": CONNECTING_SECONDS, **options, **settings}
        self._places = asyncio.Semaphore(size)
        self._free: list[Session] = []
        self._taken: set[Session] = set()
        self._is_cut_off = False

    async def connect(self) -> Session:
        """Return a connection that is no part of the pool."""
        driver = await asyncpg.connect(**self._options)
        _keep_alive(driver)
        return Session(driver)

    async def take(self) -> Session:
        """Return a connection that nobody else uses, to be given back.

        Raises:
            ConnectionAbortedError: all were cut off.
        """
        await self._places.acquire()
        try:
            session = await self._usable()
        except BaseException:
            self._places.release()
            raise
        self._taken.add(session)
        return session

    async def _usable(self) -> Session:
        while self._free:
            # The newest: what is prepared, here and in the caches of the server, is warm on it.
            session = self._free.pop()
            if session.is_idle:
                return session
        if not self._is_cut_off:
            session = await self.connect()
            if not self._is_cut_off:
                return session
            session.driver.terminate()
        raise ConnectionAbortedError("this server has given up its connections")

    def drop_idle(self) -> None:
        """Close the connections that nobody uses: one of them went unanswered, and the others may as well."""
        free, self._free = self._free, []
        for session in free:
            session.driver.terminate()

    def cut_off(self) -> None:
        """End every connection, whatever runs on it; there is none from then on."""
        self._is_cut_off = True
        for session in (*self._taken, *self._free):
            session.driver.terminate()

    def give_back(self, session: Session) -> None:
        """Take back a connection that was taken; one that is not as it was is closed."""
        self._taken.discard(session)
        if session.is_idle:
            self._free.append(session)
        else:
            session.driver.terminate()
        self._places.release()

    async def close(self) -> None:
        """Close all connections, none of which is in use."""
        free, self._free = self._free, []
        await asyncio.gather(*(session.close() for session in free))


def _keep_alive(driver: asyncpg.Connection) -> None:
    """Have the system find out by itself when the other side of a connection is gone."""
    # The library has no option for it.
    found = driver._transport.get_extra_info("socket")  # noqa: SLF001
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        # Not every system has each of them.
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
