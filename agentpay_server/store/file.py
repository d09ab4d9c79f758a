"""SQLite in a file: one thread owns the one connection, and units wait in line for it.

How it is used:

    database = FileDatabase(directory / "store.sqlite3")  # opened and locked; DatabaseInUseError if taken
    await database.create_missing(metadata)  # or `await migrations.upgrade_file(database)`
    await database.run(unit, ...)  # BEGIN IMMEDIATE, unit, COMMIT: on disk when it returns
    await database.read(unit, ...)  # one state of the database; nothing stays changed
    await database.close()  # after everything that waits in line

It may be used from any event loop and any thread. A file belongs to one `FileDatabase` at a time, in this
process or another: the lock is SQLite's own and goes with the process, however that ends.

A commit is on disk before its caller hears of it (`synchronous=FULL`). A caller that is cancelled gives up
its place in line; once its unit has begun, it runs to its commit.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Concatenate, Final, ParamSpec, TypeVar, cast

from sqlalchemy import MetaData

from agentpay_server.store.connection import Connection
from agentpay_server.store.database import DatabaseInUseError, DatabaseUnavailableError
from agentpay_server.store.sqlite import SqliteConnection, create_missing

P = ParamSpec("P")
T = TypeVar("T")

_LOCK_WAIT_SECONDS: Final = 1.0
"""How long a start waits for a predecessor that is just letting go of the file."""


class FileDatabase:
    """Runs units of work on a SQLite file.

    Args:
        path: the file; made if it is not there. Its directory must exist.

    Raises:
        DatabaseInUseError: another server holds the file.
        DatabaseUnavailableError: it cannot be opened, or is no database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_open = True
        # Only ever used on the thread, and passed to it here because opening can fail where it is asked for.
        self._driver = _opened(path)
        self._connection = SqliteConnection(self._driver)
        self._thread = threading.Thread(target=self._serve, name=f"agentpay-{path.stem}", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._path

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `unit(connection, ...)` in one transaction and return its result when it is on disk.

        Raises:
            DatabaseUnavailableError: the disk is full or fails; nothing is committed.
            RuntimeError: the database is closed.
        """

        def transaction() -> T:
            self._driver.execute("BEGIN IMMEDIATE")
            try:
                result = unit(self._connection, *args, **kwargs)
                self._driver.execute("COMMIT")
            except BaseException:
                # Some failures of SQLite end the transaction by themselves.
                if self._driver.in_transaction:
                    self._driver.execute("ROLLBACK")
                raise
            return result

        return await self._on_thread(transaction)

    async def read(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `unit(connection, ...)`, which changes nothing; nothing else runs meanwhile.

        Raises:
            DatabaseUnavailableError: the disk fails.
            RuntimeError: the database is closed.
        """

        def transaction() -> T:
            self._driver.execute("BEGIN")
            try:
                return unit(self._connection, *args, **kwargs)
            finally:
                if self._driver.in_transaction:
                    self._driver.execute("ROLLBACK")

        return await self._on_thread(transaction)

    async def create_missing(self, tables: MetaData) -> None:
        """Create those tables and indexes that the database does not have yet."""
        await self._on_thread(lambda: create_missing(self._driver, tables))

    async def with_driver(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the connection itself, outside of any transaction: for migrations and copies."""
        return await self._on_thread(lambda: work(self._driver))

    async def close(self) -> None:
        """Finish what waits in line, and let go of the file. Calling it again does nothing."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
            if not was_open:
                return
            closing = self._submit(self._driver.close)
            self._jobs.put(None)
        await asyncio.shield(closing)
        self._thread.join()

    async def _on_thread(self, work: Callable[[], T]) -> T:
        with self._lock:
            if not self._is_open:
                raise RuntimeError(f"the database {self._path.name} is closed")
            future = self._submit(work)
        return await future

    def _submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            if future.cancelled():
                return
            result, failure = _attempt(work)
            try:
                loop.call_soon_threadsafe(_resolve, future, result, failure)
            except RuntimeError:  # The loop has ended, and with it whoever waited.
                return

        self._jobs.put(job)
        return future

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _attempt(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except sqlite3.OperationalError as error:
        failure = DatabaseUnavailableError(f"the database file cannot be used: {error}")
        failure.__cause__ = error
        return None, failure
    except BaseException as error:  # noqa: BLE001 - it is the caller's, who waits on another thread
        return None, error


def _resolve(future: "asyncio.Future[T]", result: T | None, failure: BaseException | None) -> None:
    if future.cancelled():
        return
    if failure is None:
        future.set_result(cast("T", result))
    else:
        future.set_exception(failure)


def _opened(path: Path) -> sqlite3.Connection:
    try:
        driver = sqlite3.connect(
            path, timeout=_LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
    except sqlite3.OperationalError as error:
        raise DatabaseUnavailableError(f"{path} cannot be opened: {error}") from error
    try:
        # Set before the file is first touched: it is locked from then on until the connection closes.
        driver.execute("PRAGMA locking_mode=EXCLUSIVE")
        driver.execute("PRAGMA journal_mode=WAL")
        driver.execute("PRAGMA synchronous=FULL")
        # Takes the lock that reading alone would not.
        driver.execute("BEGIN IMMEDIATE")
        driver.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        driver.close()
        if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise DatabaseInUseError(f"{path} is in use by another server; stop that one first") from error
        raise DatabaseUnavailableError(f"{path} cannot be used as a database: {error}") from error
    return driver
