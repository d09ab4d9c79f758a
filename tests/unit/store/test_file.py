"""SQLite in a file: what is committed is there after the end, and nobody else is let in."""

import asyncio
import sqlite3
import threading

import pytest
from sqlalchemy import BigInteger, Boolean, Column, LargeBinary, MetaData, Table, Text, insert, select

from agentpay_server.store.connection import ConflictError
from agentpay_server.store.database import DatabaseInUseError, DatabaseUnavailableError
from agentpay_server.store.file import FileDatabase

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


async def test_what_was_committed_is_there_when_it_is_opened_again(database, path):
    assert await database.run(add, "one") == 1
    await database.close()

    again = FileDatabase(path)
    try:
        await again.create_missing(metadata)
        rows = await again.read(lambda connection: [tuple(row) for row in connection.execute(ALL)])
        assert rows == [("one", 2**62, True, b"\x00\xff")]
    finally:
        await again.close()


async def test_a_unit_that_fails_leaves_nothing_behind(database):
    def unit(connection):
        add(connection, "one")
        raise LookupError("never mind")

    with pytest.raises(LookupError, match="never mind"):
        await database.run(unit)
    assert await database.read(names) == []


async def test_a_row_that_breaks_a_constraint_is_a_conflict_and_undoes_the_unit(database):
    def unit(connection):
        add(connection, "one")
        add(connection, "one")

    with pytest.raises(ConflictError):
        await database.run(unit)
    assert await database.read(names) == []


async def test_a_read_changes_nothing(database):
    await database.read(add, "one")

    assert await database.read(names) == []


async def test_units_run_one_after_the_other_on_a_thread_of_their_own(database):
    threads = set()

    def unit(connection, name):
        threads.add(threading.get_ident())
        return add(connection, name)

    await asyncio.gather(*(database.run(unit, f"{number:03}") for number in range(50)))

    assert await database.read(names) == [f"{number:03}" for number in range(50)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_unit_that_has_begun_runs_to_its_commit_though_its_caller_is_cancelled(database):
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


async def test_closing_waits_for_what_is_under_way(database, path):
    go_on = threading.Event()

    def slow(connection):
        go_on.wait()
        add(connection, "under way")

    under_way = asyncio.ensure_future(database.run(slow))
    in_line = asyncio.ensure_future(database.run(add, "in line"))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(database.close())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="closed"):
        await database.run(add, "too late")
    go_on.set()
    await closing

    assert under_way.done()
    assert in_line.done()
    assert not [thread for thread in threading.enumerate() if thread.name == "agentpay-things"]
    with sqlite3.connect(path) as plain:
        assert plain.execute("SELECT name FROM things ORDER BY 1").fetchall() == [
            ("in line",),
            ("under way",),
        ]
    plain.close()


async def test_closing_twice_is_closing_once(database):
    await database.close()
    await database.close()


async def test_a_commit_is_on_disk_when_it_is_reported(database):
    def pragmas(driver):
        return [
            driver.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "locking_mode")
        ]

    assert await database.with_driver(pragmas) == ["wal", 2, "exclusive"]


async def test_a_file_belongs_to_one_server(database, path, monkeypatch):
    monkeypatch.setattr("agentpay_server.store.file._LOCK_WAIT_SECONDS", 0)

    with pytest.raises(DatabaseInUseError, match="another server"):
        FileDatabase(path)
    await database.run(add, "still here")


async def test_what_is_no_database_is_refused(path):
    path.write_text("a shopping list, and long enough to be looked at as a header" * 20)

    with pytest.raises(DatabaseUnavailableError, match="not a database"):
        FileDatabase(path)


async def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DatabaseUnavailableError, match="nowhere"):
        FileDatabase(tmp_path / "nowhere" / "things.sqlite3")


async def test_a_failing_disk_is_the_declared_error(database):
    await database.with_driver(lambda driver: driver.execute("PRAGMA max_page_count=8").fetchone())

    def unit(connection):
        connection.execute(INSERT, {"name": "x" * 100_000})

    with pytest.raises(DatabaseUnavailableError, match="full"):
        await database.run(unit)
    assert await database.run(add, "small") == 1
