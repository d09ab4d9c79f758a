"""The database in memory: units of work are whole or not at all, and belong to one thread."""

import asyncio
import sqlite3
import threading

import pytest
from sqlalchemy import func, insert, select

from agentpay_server.database.connection import ConstraintError
from agentpay_server.database.runner import DatabaseClosedError
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.database.tables import OperatorRecord, operators
from agentpay_server.operators import store as keys

pytestmark = pytest.mark.anyio

_COUNT = select(func.count()).select_from(operators)
_INSERT = insert(operators)


@pytest.fixture
async def database():
    made = MemoryDatabase()
    yield made
    await made.close()


def count(connection):
    return connection.execute(_COUNT).scalar_one()


def add(connection, name, error=None):
    keys.OPERATORS.insert(connection, OperatorRecord(seq=0, operator_id=name, name=name, created_us=0))
    if error is not None:
        raise error
    return count(connection)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        ConstraintError(),
        KeyError(),
        KeyboardInterrupt(),
        SystemExit(),
        GeneratorExit(),
        asyncio.CancelledError(),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_any_exception_rolls_the_unit_back(database, error):
    with pytest.raises(type(error)) as raised:
        await database.run(add, "a", error)

    assert raised.value is error
    assert await database.read(count) == 0
    assert await database.run(add, "a") == 1, "the next unit begins a new transaction"


async def test_a_conflict_among_many_rows_rolls_all_back(database):
    def many(connection):
        connection.execute(
            _INSERT, [{"operator_id": n, "name": n, "created_us": 0} for n in ("a", "b", "a", "c")]
        )

    with pytest.raises(ConstraintError):
        await database.run(many)

    assert await database.read(count) == 0


async def test_reading_and_running_never_suspend(database):
    for work in (database.run(add, "a"), database.read(count)):
        with pytest.raises(StopIteration):
            work.send(None)


async def test_a_nested_unit_is_refused(database):
    def nested(connection):
        add(connection, "outer")
        database.run(add, "inner").send(None)

    with pytest.raises(sqlite3.OperationalError):
        await database.run(nested)

    assert await database.read(count) == 0


async def test_use_from_another_thread_is_refused(database):
    refusals = []

    def elsewhere():
        for work in (database.run(add, "a"), database.read(count)):
            try:
                work.send(None)
            except RuntimeError as error:
                refusals.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

    assert len(refusals) == 2
    assert all("outside the thread" in text for text in refusals)
    assert await database.read(count) == 0


async def test_a_closed_database_refuses_all_work():
    database = MemoryDatabase()
    await database.run(add, "a")
    await database.close()
    await database.close()

    for work in (database.run(add, "b"), database.read(count)):
        with pytest.raises(DatabaseClosedError, match="closed"):
            await work
