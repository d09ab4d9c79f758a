"""SQLite in a file: one connection, one writer thread, and group commits.

Usage:

    database = FileDatabase(directory / "store.sqlite3")  # opened and locked; DatabaseInUseError if taken
    await database.create_missing(metadata)  # or `await migrations.upgrade(database)`
    await database.run(unit, ...)  # BEGIN IMMEDIATE, unit, COMMIT: on disk when it returns
    await database.read(unit, ...)  # one consistent state of the database; changes are rolled back
    await database.close()  # after all queued units

Any event loop and any thread may use it. A file belongs to one `FileDatabase` at a time, across processes:
SQLite holds the lock, and the process releases it however it ends.

`run` returns once the commit is on disk (`synchronous=FULL`). The disk is the bottleneck, so all queued units
share one transaction, each in a savepoint. A failing unit is rolled back without affecting the others, and no
caller gets a result before the shared commit. A read runs at once if the connection is free, otherwise on the
thread; it sees only committed data.

Cancelling a caller drops its unit while queued; a unit that has begun runs to its commit.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar, cast

from attrs import frozen
from sqlalchemy import MetaData

from agentpay_server.database.connection import Connection
from agentpay_server.database.runner import (
    DatabaseClosedError,
    DatabaseInUseError,
    DatabaseUnavailableError,
)
from agentpay_server.database.sqlite import CACHED_STATEMENTS, SqliteConnection, create_missing

P = ParamSpec("P")
T = TypeVar("T")

_LOCK_WAIT_SECONDS: Final = 1.0
"""How long a start waits for a previous server to release the file."""

_MAX_GROUP: Final = 64
"""Maximum units per transaction, because the first waits for the last."""


class _Kind(Enum):
    READ = "read"
    WRITE = "write"
    EXCLUSIVE = "exclusive"


@frozen(eq=False)
class _Job:
    """A queued call, and the future that receives its result."""

    kind: _Kind
    work: Callable[[], Any]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop


_Outcome = tuple[_Job, Any, BaseException | None]


class FileDatabase:
    """Runs units of work on a SQLite file.

    Args:
        path: the file, created if missing in an existing directory.

    Raises:
        DatabaseInUseError: another server holds the file.
        DatabaseUnavailableError: the file cannot be opened, or is not a SQLite database.
    """

    is_inline: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_open = True
        # Held by the thread that uses the connection.
        self._in_use = threading.Lock()
        self._driver = _opened(path)
        self._connection = SqliteConnection(self._driver)
        self._thread = threading.Thread(target=self._serve, name=f"agentpay-{path.stem}", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._path

    async def run(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See `Database.run`: returns once the commit is on disk.

        Raises:
            DatabaseUnavailableError: the disk is full or fails; nothing is committed.
            DatabaseClosedError: `close` was called.
        """
        return await self._on_thread(_Kind.WRITE, lambda: unit(self._connection, *args, **kwargs))

    async def read(
        self, unit: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """See `Database.read`. No other unit runs meanwhile.

        Raises:
            DatabaseUnavailableError: the disk fails.
            DatabaseClosedError: `close` was called.
        """

        def transaction() -> T:
            self._driver.execute("BEGIN")
            try:
                return unit(self._connection, *args, **kwargs)
            finally:
                if self._driver.in_transaction:
                    self._driver.execute("ROLLBACK")

        if not self._in_use.acquire(blocking=False):
            return await self._on_thread(_Kind.READ, transaction)
        try:
            self._check_open()
            result, failure = _attempt(transaction)
        finally:
            self._in_use.release()
        if failure is not None:
            raise failure
        return cast("T", result)

    async def create_missing(self, tables: MetaData) -> None:
        await self._on_thread(_Kind.EXCLUSIVE, lambda: create_missing(self._driver, tables))

    async def with_driver(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the raw connection, outside any transaction, for migrations and copies."""
        return await self._on_thread(_Kind.EXCLUSIVE, lambda: work(self._driver))

    async def close(self) -> None:
        """Finish all queued units and release the file. Closing twice is allowed."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
            if not was_open:
                return
            closing = self._submit(_Kind.EXCLUSIVE, self._driver.close)
            self._jobs.put(None)
        await asyncio.shield(closing)
        self._thread.join()

    async def _on_thread(self, kind: _Kind, work: Callable[[], T]) -> T:
        with self._lock:
            self._check_open()
            future = self._submit(kind, work)
        return await future

    def _check_open(self) -> None:
        if not self._is_open:
            raise DatabaseClosedError(f"the database {self._path.name} is closed")

    def _submit(self, kind: _Kind, work: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(kind, work, future, loop))
        return future

    # --- On the thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (first := self._jobs.get()) is not None:
            jobs: list[_Job] = [first]
            while jobs[-1].kind is not _Kind.EXCLUSIVE and len(jobs) < _MAX_GROUP:
                try:
                    following = self._jobs.get_nowait()
                except Empty:
                    break
                # The closing job comes last. It is EXCLUSIVE, so it ends this loop.
                assert following is not None  # noqa: S101
                jobs.append(following)
            with self._in_use:
                self._run_all(jobs)

    def _run_all(self, jobs: "list[_Job]") -> None:
        # Reads first: they see only committed data, so they need not wait for the writes.
        for job in jobs:
            if job.kind is _Kind.READ:
                self._run_one(job, job.work)
        writes = [job for job in jobs if job.kind is _Kind.WRITE]
        outcomes = self._commit_group(writes) if len(writes) > 1 else None
        if outcomes is not None:
            _deliver(outcomes)
        else:
            for job in writes:
                self._run_one(job, partial(self._transaction, job.work))
        if jobs[-1].kind is _Kind.EXCLUSIVE:
            self._run_one(jobs[-1], jobs[-1].work)

    def _run_one(self, job: _Job, work: Callable[[], Any]) -> None:
        if not job.future.cancelled():
            _deliver([(job, *_attempt(work))])

    def _transaction(self, work: Callable[[], T]) -> T:
        self._driver.execute("BEGIN IMMEDIATE")
        try:
            result = work()
            self._driver.execute("COMMIT")
        except BaseException:
            # Some SQLite failures end the transaction on their own.
            if self._driver.in_transaction:
                self._driver.execute("ROLLBACK")
            raise
        return result

    def _commit_group(self, jobs: "list[_Job]") -> "list[_Outcome] | None":
        """Run units in one transaction. None if it was rolled back: each then needs its own."""
        outcomes: list[_Outcome] = []

        def units() -> None:
            for job in jobs:
                if job.future.cancelled():
                    continue
                self._driver.execute("SAVEPOINT unit")
                result, failure = _attempt(job.work)
                if failure is not None:
                    # Raises if the failure ended the whole transaction, including earlier units.
                    self._driver.execute("ROLLBACK TO unit")
                self._driver.execute("RELEASE unit")
                outcomes.append((job, result, failure))

        _, failure = _attempt(lambda: self._transaction(units))
        return outcomes if failure is None else None


def _attempt(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except sqlite3.OperationalError as error:
        failure = DatabaseUnavailableError(f"the database file cannot be used: {error}")
        failure.__cause__ = error
        return None, failure
    except BaseException as error:  # noqa: BLE001 - it is the caller's, who waits on another thread
        return None, error


def _deliver(outcomes: "list[_Outcome]") -> None:
    """Deliver the results to the callers, grouped by event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, its in by_loop.items():
        # The loop may be closed, and its callers with it.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, its)


def _resolve(outcomes: "list[_Outcome]") -> None:
    for job, result, failure in outcomes:
        if job.future.cancelled():
            continue
        if failure is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(failure)


def _opened(path: Path) -> sqlite3.Connection:
    try:
        # Memos and names are private. SQLite gives its -wal and -shm files the same permissions.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        driver = sqlite3.connect(
            path,
            timeout=_LOCK_WAIT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=CACHED_STATEMENTS,
        )
    except (sqlite3.OperationalError, OSError) as error:
        raise DatabaseUnavailableError(f"{path} cannot be opened: {error}") from error
    try:
        # Set before the first access, so that the lock is held until the connection closes.
        driver.execute("PRAGMA locking_mode=EXCLUSIVE")
        driver.execute("PRAGMA journal_mode=WAL")
        driver.execute("PRAGMA synchronous=FULL")
        # Acquire the lock; a read would not.
        driver.execute("BEGIN IMMEDIATE")
        driver.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        driver.close()
        if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise DatabaseInUseError(f"{path} is in use by another server; stop that one first") from error
        raise DatabaseUnavailableError(f"{path} cannot be used as a database: {error}") from error
    return driver
