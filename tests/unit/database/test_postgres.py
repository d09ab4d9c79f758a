"""PostgreSQL: what is retried, what is declared, and two servers' databases side by side."""

import asyncio
import contextlib
import tempfile

import asyncpg
import attrs
import pytest
from postgres_rows import KILL_OTHERS, new_claim, put_account, until_waiting
from sqlalchemy import bindparam, insert, make_url, select, text, update
from sqlalchemy.util import await_only
from statements import STATEMENTS, columns_of, parameters_of

from agentpay_server.database.connection import ConstraintError
from agentpay_server.database.runner import DatabaseClosedError, DatabaseInUseError, DatabaseUnavailableError
from agentpay_server.database.tables import counters
from agentpay_server.ledger import deliveries, idempotency
from agentpay_server.ledger.deliveries import LEASE_US
from agentpay_server.plugins.postgres import database as postgres
from agentpay_server.plugins.postgres.connections import _PREPARER, PreparedConnection, UndoneError
from agentpay_server.plugins.postgres.database import POOL_SIZE, PostgresDatabase

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("postgres")]

INSERT = insert(counters)
ADD = (
    update(counters)
    .where(counters.c.name == bindparam("of_name"))
    .values(value=counters.c.value + 1)
    .returning(counters.c.value)
)
VALUES = select(counters.c.name, counters.c.value).order_by(counters.c.name)


def add(connection, name):
    return connection.execute(ADD, {"of_name": name}).scalar_one_or_none()


def put(connection, *names):
    connection.execute(INSERT, [{"name": name, "value": 0} for name in names])


def values(connection):
    return {row[0]: row[1] for row in connection.execute(VALUES)}


@pytest.fixture
async def database(url):
    made = PostgresDatabase(url)
    yield made
    await made.close()


async def test_a_read_of_several_statements_sees_one_snapshot(database, other, holder):
    await database.run(put, "one", "two")
    loop = asyncio.get_running_loop()

    def twice(connection):
        # No plain SELECT: from here on it is a transaction.
        connection.execute(text("SELECT 1"))
        before = values(connection)
        asyncio.run_coroutine_threadsafe(changed(), loop)
        connection.execute(text("SELECT pg_advisory_lock(77)"))
        return before, values(connection)

    async def changed():
        await other.run(add, "one")
        await holder.execute("SELECT pg_advisory_unlock(77)")

    await holder.execute("SELECT pg_advisory_lock(77)")
    first, second = await database.read(twice)
    assert first == second == {"one": 0, "two": 0}
    assert await database.read(values) == {"one": 1, "two": 0}


async def test_a_unit_that_continues_after_a_rollback_raises_undone(database):
    def unit(connection):
        put(connection, "one")
        with contextlib.suppress(ConstraintError):
            # Reading the count sends the inserts.
            _ = connection.execute(INSERT, {"name": "one", "value": 0}).rowcount

    with pytest.raises(UndoneError):
        await database.run(unit)
    assert await database.read(values) == {}


async def test_inserts_are_sent_as_one_statement_before_the_commit(database, monkeypatch):
    sent = []
    fetch = PreparedConnection.fetch

    async def noted(session, text, values):
        sent.append(text)
        return await fetch(session, text, values)

    monkeypatch.setattr(PreparedConnection, "fetch", noted)

    def unit(connection):
        put(connection, "b", "a")
        put_account(connection)
        put(connection, "c")
        return list(sent)

    assert await database.run(unit) == []
    assert [text.count("INSERT INTO") for text in sent] == [2]
    assert await database.read(values) == {"a": 0, "b": 0, "c": 0}


async def test_held_inserts_are_sent_before_a_statement_that_names_their_table(database):
    def unit(connection):
        put(connection, "one")
        return add(connection, "one"), connection.execute(INSERT, {"name": "two", "value": 0}).rowcount

    assert await database.run(unit) == (1, 1)
    assert await database.read(values) == {"one": 1, "two": 0}


async def test_a_read_that_writes_is_refused(database):
    with pytest.raises(Exception, match="read-only transaction"):
        await database.read(put, "one")


async def test_a_deadlocked_unit_is_retried(database, other, holder):
    await database.run(put, "one", "two")
    tries = []

    def crossing(connection, first, second):
        tries.append(first)
        add(connection, first)
        # Both hold their first row when they ask for the second.
        connection.execute(text("SELECT pg_advisory_xact_lock_shared(88)"))
        add(connection, second)

    await holder.execute("SELECT pg_advisory_lock(88)")
    racers = [
        asyncio.ensure_future(database.run(crossing, "one", "two")),
        asyncio.ensure_future(other.run(crossing, "two", "one")),
    ]
    waiting = (
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database "
        "WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
    )
    while await holder.fetchval(waiting) < 2:
        pass
    await holder.execute("SELECT pg_advisory_unlock(88)")
    await asyncio.gather(*racers)
    assert await database.read(values) == {"one": 2, "two": 2}
    # The aborted one may deadlock once more.
    assert len(tries) >= 3


async def test_a_cancelled_caller_leaves_no_transaction_open(database, other, holder):
    await database.run(put, "one")
    async with holder.transaction():
        await holder.execute("UPDATE counters SET value = value + 1")
        waiting = asyncio.ensure_future(database.run(add, "one"))
        while not await holder.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            pass
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    # A unit that has begun runs to its commit, and closing waits for it.
    await database.close()
    assert await other.read(values) == {"one": 2}


async def test_a_unit_does_not_spend_its_retries_on_lost_pool_connections(database, monkeypatch):
    await database.run(put, "one")
    lost = set()
    execute = asyncpg.Connection.execute

    async def remembered(driver, statement):
        lost.add(driver)
        return await execute(driver, statement)

    async def executed(driver, statement):
        if driver in lost:
            # asyncpg raises this between the server's last message and the end of the connection.
            raise asyncpg.InternalClientError(
                "cannot switch to state 15; another operation (2) is in progress"
            )
        return await execute(driver, statement)

    monkeypatch.setattr(asyncpg.Connection, "execute", remembered)
    await asyncio.gather(*(database.run(add, "one") for _ in range(40)))
    assert len(lost) == POOL_SIZE
    monkeypatch.setattr(asyncpg.Connection, "execute", executed)

    assert await database.run(add, "one") == 41


async def test_a_read_whose_connection_is_lost_is_retried(database, other):
    await database.run(put, "one")
    tries = []
    loop = asyncio.get_running_loop()

    def unit(connection):
        tries.append(1)
        if len(tries) == 1:
            killed = other.run(lambda connection: list(connection.execute(KILL_OTHERS)))
            await_only(asyncio.ensure_future(killed, loop=loop))
        return values(connection)

    assert await database.read(unit) == {"one": 0}
    assert tries == [1, 1]


async def test_a_connection_lost_at_the_commit_is_reported_and_not_retried(database, other):
    await database.run(put, "one")
    tries = []

    def unit(connection):
        tries.append(1)
        return add(connection, "one")

    execute = asyncpg.Connection.execute

    async def executed(driver, statement):
        if statement == "COMMIT":
            patch.undo()
            await other.run(lambda connection: list(connection.execute(KILL_OTHERS)))
        return await execute(driver, statement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncpg.Connection, "execute", executed)
        with pytest.raises(DatabaseUnavailableError):
            await database.run(unit)
    assert tries == [1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("postgresql://postgres@localhost:1/postgres", "did not respond"),
        ("postgresql://postgres@/postgres?host=/nowhere", "did not respond"),
    ],
)
async def test_an_unreachable_server_raises_database_unavailable(given, says):
    database = PostgresDatabase(given)
    with pytest.raises(DatabaseUnavailableError, match=says):
        await database.run(add, "one")
    with pytest.raises(DatabaseUnavailableError, match=says):
        await database.hold_alone()
    await database.close()


@pytest.mark.parametrize("given", ["", "store.sqlite3", "sqlite:///store.sqlite3", "mysql://localhost/a"])
def test_urls_of_other_databases_are_refused(given):
    with pytest.raises(ValueError, match="postgresql://"):
        PostgresDatabase(given)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
async def test_common_url_schemes_are_accepted(url, scheme):
    database = PostgresDatabase(url.replace("postgresql", scheme, 1) + "&sslmode=disable")
    assert await database.read(values) == {}
    await database.close()


async def test_a_database_is_held_by_one_server_until_it_closes(database, other):
    await database.hold_alone()
    await database.hold_alone()

    with pytest.raises(DatabaseInUseError, match="another server"):
        await other.hold_alone()
    await other.run(put, "not held back")
    await database.close()
    await other.hold_alone()


async def test_a_server_that_loses_its_hold_stops_using_the_database(database, other):
    lost = asyncio.Event()
    await database.run(put, "one")
    await database.hold_alone(lost.set)
    await other.run(lambda connection: list(connection.execute(KILL_OTHERS)))
    await lost.wait()

    await other.hold_alone()
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError, match="kept other servers away"):
            await database.run(add, "one")
    await other.close()
    with pytest.raises(DatabaseUnavailableError, match="kept other servers away"):
        await database.run(add, "one")


class Wire:
    """A way to the server on which everything can vanish without a word."""

    def __init__(self, url):
        self._url = url
        self.swallows = False

    async def joined(self, reader, writer):
        there_reader, there_writer = await self._connected()
        await asyncio.gather(self._carry(reader, there_writer), self._carry(there_reader, writer))

    async def _connected(self):
        port = self._url.port or 5432
        if self._url.host:
            return await asyncio.open_connection(self._url.host, port)
        return await asyncio.open_unix_connection(f"{self._url.query['host']}/.s.PGSQL.{port}")

    async def _carry(self, source, to):
        while data := await source.read(65536):
            if not self.swallows:
                to.write(data)
        to.close()


async def test_a_hold_is_lost_when_the_network_drops_all_packets(url, other, monkeypatch):
    monkeypatch.setattr(postgres, "_PROBE_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(postgres, "_PROBE_ANSWER_SECONDS", 0.2)
    parsed = make_url(url)
    with tempfile.TemporaryDirectory(prefix="agentpay-wire-") as directory:
        wire = Wire(parsed)
        listening = await asyncio.start_unix_server(wire.joined, f"{directory}/.s.PGSQL.5432")
        database = PostgresDatabase(
            parsed._replace(host=None, port=None)
            .set(query={"host": directory})
            .render_as_string(hide_password=False)
        )
        lost = asyncio.Event()
        await database.hold_alone(lost.set)
        assert await database.read(values) == {}
        wire.swallows = True
        # Of this one the network will never tell.
        asking = asyncio.ensure_future(database.read(values))
        await lost.wait()
        with pytest.raises(DatabaseUnavailableError):
            await asking

        wire.swallows = False
        with pytest.raises(DatabaseUnavailableError, match="kept other servers away"):
            await database.run(put, "one")
        await database.close()
        await other.hold_alone()
        listening.close()
        await listening.wait_closed()


LOCK_ONE = "BEGIN; UPDATE counters SET value = 7 WHERE name = 'one'"


async def test_a_unit_running_when_the_hold_is_lost_is_not_committed(database, other, holder):
    lost = asyncio.Event()
    await database.run(put, "one")
    await database.hold_alone(lost.set)
    pid = database._holder.driver.get_server_pid()

    await holder.execute(LOCK_ONE)
    running = asyncio.ensure_future(database.run(add, "one"))
    await until_waiting(holder, 1)
    await holder.execute("SELECT pg_terminate_backend($1)", pid)
    await lost.wait()
    with pytest.raises(DatabaseUnavailableError):
        await running
    await other.hold_alone()
    await holder.execute("ROLLBACK")
    await until_waiting(holder, 0)
    assert await other.run(add, "one") == 1


async def test_closing_aborts_units_that_do_not_end(database, other, holder, monkeypatch):
    monkeypatch.setattr(postgres, "_LAST_UNITS_SECONDS", 0.05)
    await database.run(put, "one")

    await holder.execute(LOCK_ONE)
    # More than there are connections: the last has none, and waits for one.
    running = [asyncio.ensure_future(database.run(add, "one")) for _ in range(POOL_SIZE + 1)]
    await until_waiting(holder, POOL_SIZE)
    await database.close()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert {type(end) for end in ends} <= {DatabaseUnavailableError, asyncio.CancelledError}
    await holder.execute("ROLLBACK")
    await until_waiting(holder, 0)
    assert await other.run(add, "one") == 1


async def test_errors_do_not_show_parameters(database):
    await database.run(put, "one")
    with pytest.raises(ConstraintError) as conflict:
        await database.run(put, "two", "one")
    with pytest.raises(Exception, match="invalid input") as fault:
        await database.run(lambda c: c.execute(INSERT, {"name": "planted-secret", "value": "x"}))
    assert "planted-secret" not in f"{conflict.value}{fault.value}"


# --- Two servers' databases over one PostgreSQL -------------------------------------------------------------


@pytest.mark.parametrize("by_operator", [False, True])
async def test_racing_claims_for_many_accounts_give_operators_one_winner_and_agents_all(
    database, other, by_operator
):
    def claim(connection, number):
        new = new_claim(number, by_operator=by_operator)
        idempotency.CLAIMS.insert(connection, attrs.evolve(new, account_id=f"acct_{number}"))

    results = await asyncio.gather(
        *(
            store.run(claim, f"{number}")
            for store, number in zip([database, other] * 10, range(20), strict=True)
        ),
        return_exceptions=True,
    )
    assert results.count(None) == (1 if by_operator else 20)
    assert all(result is None or isinstance(result, ConstraintError) for result in results)


FILLED = """
    INSERT INTO webhooks (webhook_id, operator_id, url, url_since_us, events, account_ids, secret, created_us)
    SELECT 'wh_' || i, 'op_1', 'http://receiver', 0, '[]', '[]', '', 0 FROM generate_series(1, 50) i;
    INSERT INTO deliveries (delivery_id, operator_id, event_id, event_type, webhook_id, status, attempts,
        due_us, leased_until_us, created_us)
    SELECT 'dlv_' || i, 'op_1', 'evt_' || i, 'transfer.settled', 'wh_' || (1 + i % 50), 'pending', 0,
        i, 0, 0 FROM generate_series(1, {0}) i;
    INSERT INTO events (event_id, operator_id, account_id, type, body, created_us)
    SELECT 'evt_' || i, 'op_1', 'acct_1', 'transfer.settled', '{{}}', 0 FROM generate_series(1, {0}) i;
    """


@pytest.mark.parametrize("is_fair", [False, True])
async def test_concurrent_claims_of_due_deliveries_never_overlap(database, other, holder, is_fair):
    await holder.execute(FILLED.format(40))

    def claim(connection):
        found = deliveries.due(connection, 100, 100, 3, is_fair=is_fair)
        for delivery in found:
            deliveries.lease(connection, delivery.delivery_id, 100 + LEASE_US)
        return [delivery.delivery_id for delivery in found]

    claimed = await asyncio.gather(*(store.run(claim) for _ in range(40) for store in (database, other)))
    everything = [delivery_id for some in claimed for delivery_id in some]
    assert len(everything) == len(set(everything)) == (deliveries.OF_ONE_OPERATOR_AT_ONCE if is_fair else 40)


async def test_postgresql_prepares_every_statement(database, holder):
    for name, statement in STATEMENTS.items():
        columns = columns_of(statement)
        parameters = dict.fromkeys(parameters_of(statement) if columns is None else columns)
        prepared = _PREPARER.prepared(statement, parameters)
        taken = await holder.prepare(prepared.text)
        assert len(taken.get_parameters()) == len(prepared.positional(parameters)), name


@pytest.mark.parametrize("is_analyzed", [False, True])
async def test_a_fair_claim_finds_deliveries_by_the_webhook_index(database, holder, is_analyzed):
    await holder.execute(FILLED.format(20_000))
    if is_analyzed:
        await holder.execute("ANALYZE")
    parameters = {"now_us": 10**6, "real_now_us": 10**6, "count": 32}
    claim = _PREPARER.prepared(deliveries._FAIR, parameters)

    rows = await holder.fetch(f"EXPLAIN {claim.text}", *claim.positional(parameters))

    plan = "\n".join(row[0] for row in rows)
    assert "ix_deliveries_webhook_due on deliveries waiting" in plan
    assert "Index Cond: (seq = ANY (ARRAY(" in plan


async def test_a_conflict_of_a_held_insert_undoes_the_unit(database):
    def unit(connection):
        put(connection, "one")
        put_account(connection)
        put(connection, "one")

    with pytest.raises(ConstraintError):
        await database.run(unit)

    assert await database.read(values) == {}
    await database.run(put, "one")


async def test_all_lost_connections_are_replaced(database, other):
    await database.run(put, "one")
    await asyncio.gather(*(database.run(add, "one") for _ in range(40)))
    await other.run(lambda connection: list(connection.execute(KILL_OTHERS)))

    await asyncio.gather(*(database.run(add, "one") for _ in range(40)))
    assert await database.read(values) == {"one": 80}


async def test_hold_alone_waits_for_a_server_that_is_closing(database, other):
    await database.hold_alone()
    waiting = asyncio.ensure_future(other.hold_alone())
    await asyncio.sleep(0)
    assert not waiting.done()
    await database.close()

    await waiting
    await other.run(put, "held")


async def test_a_closed_database_refuses_units(database):
    await database.close()
    await database.close()

    with pytest.raises(DatabaseClosedError, match="closed"):
        await database.run(put, "one")
