"""SQLite in a file: committed data outlives the process, and no other process can open it."""

import asyncio
import sqlite3
import threading
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import BigInteger, Boolean, Column, LargeBinary, MetaData, Table, Text, insert, select

from agentpay_server.database.connection import ConstraintError
from agentpay_server.database.file import FileDatabase
from agentpay_server.database.runner import DatabaseClosedError, DatabaseInUseError, DatabaseUnavailableError

pytestmark = pytest.mark.anyio

metadata = MetaData()
things = Table(
    "things",
    metadata,
    Column("name", Text, primary_key=True),
    Column("size", BigInteger),
    Column("good", Boolean),
    Column("raw", LargeBinary),
)
INSERT = insert(things)
ALL = select(things).order_by(things.c.name)


def add(connection, name):
    return connection.execute(
        INSERT, {"name": name, "size": 2**62, "good": True, "raw": b"\x00\xff"}
    ).rowcount


def names(connection):
    return [row[0] for row in connection.execute(ALL)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "things.sqlite3"


@pytest.fixture
async def database(path):
    made = FileDatabase(path)
    await made.create_missing(metadata)
    yield made
    await made.close()


async def test_committed_rows_survive_reopening(database, path):
    assert await database.run(add, "one") == 1
    await database.close()

    again = FileDatabase(path)
    try:
        await again.create_missing(metadata)
        rows = await again.read(lambda connection: [tuple(row) for row in connection.execute(ALL)])
        assert rows == [("one", 2**62, True, b"\x00\xff")]
    finally:
        await again.close()


async def test_changes_within_a_read_are_discarded(database):
    await database.read(add, "one")

    assert await database.read(names) == []


async def test_units_run_one_after_the_other_on_a_separate_thread(database):
    threads = set()

    def unit(connection, name):
        threads.add(threading.get_ident())
        return add(connection, name)

    await asyncio.gather(*(database.run(unit, f"{number:03}") for number in range(50)))

    assert await database.read(names) == [f"{number:03}" for number in range(50)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_started_unit_commits_although_its_caller_is_cancelled(database):
    begun, go_on = threading.Event(), threading.Event()

    def slow(connection):
        begun.set()
        go_on.wait()
        add(connection, "begun")

    first = asyncio.ensure_future(database.run(slow))
    second = asyncio.ensure_future(database.run(add, "in line"))
    await asyncio.to_thread(begun.wait)
    first.cancel()
    second.cancel()
    await asyncio.wait([first, second])
    go_on.set()

    assert first.cancelled()
    assert await database.read(names) == ["begun"]


# --- Units that are one transaction ------------------------------------------------------------------------


@asynccontextmanager
async def held_up(database):
    """Queue units behind a running one; yields the statements that SQLite gets."""
    begun, go_on, told = threading.Event(), threading.Event(), []

    def first(connection):
        begun.set()
        go_on.wait()

    under_way = asyncio.ensure_future(database.run(first))
    await asyncio.to_thread(begun.wait)
    database._driver.set_trace_callback(told.append)
    try:
        yield told
    finally:
        await asyncio.sleep(0)
        go_on.set()
        # Queued units may be running by now, and are still traced.
        await under_way


async def test_queued_units_share_one_transaction_and_return_after_its_commit(database):
    answers = []

    async def added(name):
        await database.run(add, name)
        answers.append((name, "COMMIT" in told[1:]))

    async with held_up(database) as told:
        waiting = [asyncio.ensure_future(added(name)) for name in ("one", "two", "three")]
    await asyncio.gather(*waiting)

    # The first is of the unit that held them up.
    assert [statement for statement in told if statement in ("BEGIN IMMEDIATE", "COMMIT")] == [
        "COMMIT",
        "BEGIN IMMEDIATE",
        "COMMIT",
    ]
    assert answers == [("one", True), ("two", True), ("three", True)]
    assert await database.read(names) == ["one", "three", "two"]


def raising(database, connection):
    add(connection, "gone")
    raise LookupError("scripted")


def repeating(database, connection):
    add(connection, "gone")
    add(connection, "gone")


def too_much(database, connection):
    connection.execute(INSERT, {"name": "x" * 100_000})


def losing(database, connection):
    database._driver.execute("ROLLBACK")  # As SQLite itself does for some failures.
    raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize(
    ("failing", "error", "most_tries"),
    [
        (raising, LookupError, 1),
        (repeating, ConstraintError, 1),
        (too_much, DatabaseUnavailableError, 2),
        (losing, DatabaseUnavailableError, 2),
    ],
)
async def test_a_failed_unit_of_a_shared_transaction_is_rolled_back_alone(
    database, failing, error, most_tries
):
    await database.with_driver(lambda driver: driver.execute("PRAGMA max_page_count=8").fetchone())
    tries = []

    def unit(connection):
        tries.append(1)
        failing(database, connection)

    async with held_up(database):
        waiting = [
            asyncio.ensure_future(database.run(each, *arguments))
            for each, arguments in ((add, ["one"]), (unit, []), (add, ["two"]))
        ]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)

    assert [outcome if isinstance(outcome, int) else type(outcome) for outcome in outcomes] == [1, error, 1]
    assert len(tries) <= most_tries
    assert await database.read(names) == ["one", "two"]


async def test_a_unit_cancelled_in_the_queue_does_not_run(database):
    async with held_up(database):
        waiting = [asyncio.ensure_future(database.run(add, name)) for name in ("one", "two", "three")]
        await asyncio.sleep(0)
        waiting[1].cancel()
    await asyncio.wait(waiting)

    assert await database.read(names) == ["one", "three"]


async def test_a_read_runs_at_once_on_a_free_connection_and_sees_only_committed_rows(database):
    threads = []

    def noted(connection):
        threads.append(threading.get_ident())
        return names(connection)

    with database._in_use:
        # The opener has released the connection by now.
        pass
    assert await database.read(noted) == []
    async with held_up(database):
        writing = asyncio.ensure_future(database.run(add, "one"))
        reading = asyncio.ensure_future(database.read(noted))
    assert await reading == []
    assert await writing == 1
    assert await database.read(names) == ["one"]
    assert threads[0] == threading.get_ident() != threads[1]


async def test_closing_waits_for_the_running_unit(database, path):
    go_on = threading.Event()

    def slow(connection):
        go_on.wait()
        add(connection, "in progress")

    under_way = asyncio.ensure_future(database.run(slow))
    in_line = asyncio.ensure_future(database.run(add, "in line"))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(database.close())
    await asyncio.sleep(0)
    with pytest.raises(DatabaseClosedError, match="closed"):
        await database.run(add, "too late")
    go_on.set()
    await closing

    assert under_way.done()
    assert in_line.done()
    assert not [thread for thread in threading.enumerate() if thread.name == "agentpay-things"]
    with sqlite3.connect(path) as plain:
        assert plain.execute("SELECT name FROM things ORDER BY 1").fetchall() == [
            ("in line",),
            ("in progress",),
        ]
    plain.close()


async def test_a_commit_is_on_disk_when_it_is_reported(database):
    def pragmas(driver):
        return [
            driver.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "locking_mode")
        ]

    assert await database.with_driver(pragmas) == ["wal", 2, "exclusive"]


async def test_a_file_in_use_by_another_server_is_refused(database, path, monkeypatch):
    monkeypatch.setattr("agentpay_server.database.file._LOCK_WAIT_SECONDS", 0)

    with pytest.raises(DatabaseInUseError, match="another server"):
        FileDatabase(path)
    await database.run(add, "still here")


async def test_a_file_that_is_not_a_database_is_refused(path):
    path.write_text("a shopping list, and long enough to be looked at as a header" * 20)

    with pytest.raises(DatabaseUnavailableError, match="not a database"):
        FileDatabase(path)
