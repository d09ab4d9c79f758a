"""A database or an endpoint that is away: on the network between, at a start, and in the log."""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import json_rpc_server
import pytest
import rpc_world
import stores
from ports import steady_port
from rpc_processes import KEY
from sqlalchemy import bindparam, insert, literal_column, make_url, select, update
from surfpool import Surfpool

from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY
from agentpay_server.database.runner import DatabaseAwayError, DatabaseUnavailableError
from agentpay_server.database.tables import counters
from agentpay_server.platform.settings import KEY_VARIABLE
from agentpay_server.plugins.cluster.settings import FEE_PAYER_VARIABLE, MINT_AUTHORITY_VARIABLE
from agentpay_server.plugins.postgres import connections
from agentpay_server.plugins.postgres import database as postgres
from agentpay_server.plugins.postgres.connections import PreparedConnection
from agentpay_server.plugins.postgres.database import PostgresDatabase

pytestmark = pytest.mark.anyio

PUT = insert(counters)
ADD = (
    update(counters)
    .where(counters.c.name == bindparam("of_name"))
    .values(value=counters.c.value + 1)
    .returning(counters.c.value)
)
VALUES = select(counters.c.name, counters.c.value)
PATIENCE_SECONDS = 120


@pytest.fixture
def anyio_backend() -> str:
    """Real sockets need real time."""
    return "asyncio"


def put(connection: Any) -> None:
    connection.execute(PUT, {"name": "one", "value": 0})


def add(connection: Any) -> int:
    return int(connection.execute(ADD, {"of_name": "one"}).scalar_one())


def value(connection: Any) -> int:
    return {row[0]: row[1] for row in connection.execute(VALUES)}["one"]


Connected = Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


class Way:
    """A TCP port in front of a server, on which everything can vanish without a word.

    Attributes:
        port: where it listens.
        swallows: whether whatever is sent vanishes.
        connections: how many were made.
    """

    def __init__(self, connect: Callable[[], Connected]) -> None:
        self._connect = connect
        self.port = 0
        self.swallows = False
        self.connections = 0

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there = await self._connect()
        try:
            await asyncio.gather(self._carry(reader, there[1]), self._carry(there[0], writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for each in (writer, there[1]):
                each.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            if not self.swallows:
                to.write(data)
        to.close()


@asynccontextmanager
async def way_to(connect: Callable[[], Connected], port: int = 0) -> AsyncIterator[Way]:
    """Open a proxy to a server, on a free port unless one is given."""
    way, joining = Way(connect), set()

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        joining.add(task)
        await way.join(reader, writer)
        joining.discard(task)

    server = await asyncio.start_server(joined, "127.0.0.1", port)
    way.port = server.sockets[0].getsockname()[1]
    try:
        yield way
    finally:
        server.close()
        for task in list(joining):
            task.cancel()
        await asyncio.gather(*joining, return_exceptions=True)


def to_postgres(url: str) -> Callable[[], Connected]:
    parsed = make_url(url)
    port = parsed.port or 5432
    if parsed.host:
        return lambda: asyncio.open_connection(parsed.host, port)
    return lambda: asyncio.open_unix_connection(f"{parsed.query['host']}/.s.PGSQL.{port}")


def by_way_of(port: int, url: str) -> str:
    parsed = make_url(url)._replace(host="127.0.0.1", port=port).set(query={})
    return parsed.render_as_string(hide_password=False)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    made = await stores.fresh_url()
    yield made
    stores.run.free.append(made)


# --- The network between


@pytest.fixture
async def way(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Way]:
    monkeypatch.setattr(connections, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "CONNECTING_SECONDS", 0.5)
    monkeypatch.setattr(postgres, "_TRYING_SECONDS", 1.5)
    async with way_to(to_postgres(url)) as opened:
        yield opened


@pytest.fixture
async def database(way: Way, url: str) -> AsyncIterator[PostgresDatabase]:
    made = PostgresDatabase(by_way_of(way.port, url))
    await made.run(put)
    yield made
    await made.close()


async def test_dead_connections_are_replaced(way: Way, database: PostgresDatabase) -> None:
    # Several, all of which go dead.
    await asyncio.gather(*(database.run(add) for _ in range(8)))
    made = way.connections
    assert made > 1
    way.swallows = True
    asked = asyncio.ensure_future(database.run(add))
    while way.connections == made:
        await asyncio.sleep(0.01)
        if not database._pool._free:
            way.swallows = False
    # Uncommitted units are run again, on a new connection.
    assert await asked == 9
    assert await database.read(value) == 9


async def test_a_network_that_drops_all_packets_times_out(way: Way, database: PostgresDatabase) -> None:
    way.swallows = True
    for call in (lambda: database.read(value), lambda: database.run(add)):
        start = time.monotonic()
        with pytest.raises(DatabaseAwayError, match="PostgreSQL did not respond"):
            await call()
        # As long as its bounds add up to, and some for a busy machine: not for ever.
        assert time.monotonic() - start < PATIENCE_SECONDS
    way.swallows = False
    assert await database.run(add) == 1


async def test_a_commit_whose_reply_is_lost_is_reported_and_not_repeated(
    way: Way, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, tries = PreparedConnection.execute, []

    async def swallowed(session: PreparedConnection, text: str) -> str:
        way.swallows = text == "COMMIT"
        return await execute(session, text)

    def unit(connection: Any) -> int:
        tries.append(1)
        return add(connection)

    with monkeypatch.context() as patch:
        patch.setattr(PreparedConnection, "execute", swallowed)
        with pytest.raises(DatabaseUnavailableError):
            await database.run(unit)
    way.swallows = False
    assert tries == [1]


async def test_database_sessions_have_idle_and_keepalive_timeouts(
    way: Way, database: PostgresDatabase
) -> None:
    def settings(connection: Any) -> dict[str, str]:
        names = ("idle_in_transaction_session_timeout", "tcp_keepalives_idle", "tcp_user_timeout")
        shown = select(*(literal_column(f"current_setting('{name}')") for name in names))
        row = connection.execute(shown).one_or_none()
        return dict(zip(names, row, strict=True))

    # A transaction whose server has disappeared releases its locks.
    assert (await database.read(settings))["idle_in_transaction_session_timeout"] == "15s"
    session = await database._pool.connect()
    found = session.driver._transport.get_extra_info("socket")
    assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_KEEPIDLE"):
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
    await session.close()


# --- At a start


@asynccontextmanager
async def serving(*options: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a server in a separate process; it is killed if it still runs at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentpay_server", "serve", "--port", "0", "--operator-key", KEY, *options),
        env={**os.environ, KEY_VARIABLE: bytes(range(32)).hex(), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def until_waiting(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """Return what the server says once it waits for something."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            line = json.loads(await process.stderr.readline())
            if line["event"] == "server.waiting":
                return dict(line)


async def until_started(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        return str(json.loads(await process.stdout.readline())["base_url"])


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Return the exit code of a server that does not start, and what it says."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, said = await process.communicate()
    assert process.returncode is not None
    assert "Traceback" not in said.decode()
    return process.returncode, " ".join(said.decode().replace("\u2502", " ").split())


async def test_startup_waits_for_an_unreachable_database_and_then_for_the_rpc_endpoint(
    url: str, surfpool: Surfpool
) -> None:
    rpc_world.prepare(surfpool)
    there, database_port, rpc_port = urlsplit(surfpool.url), steady_port(), steady_port()
    keys = {
        FEE_PAYER_VARIABLE: json.dumps(list(rpc_world.GIVEN[TREASURY])),
        MINT_AUTHORITY_VARIABLE: json.dumps(list(rpc_world.GIVEN[TEST_MINT_AUTHORITY])),
    }
    options = ["--database-url", by_way_of(database_port, url)]
    options += ["--rpc-url", f"http://127.0.0.1:{rpc_port}/?api-key=hunter2"]
    async with serving(*options, **keys) as process:
        assert "PostgreSQL did not respond" in (await until_waiting(process))["detail"]
        async with way_to(to_postgres(url), database_port):
            waiting = await until_waiting(process)
            while "PostgreSQL" in waiting["detail"]:
                waiting = await until_waiting(process)
            assert "the RPC endpoint did not respond" in waiting["detail"]
            assert "hunter2" not in json.dumps(waiting)
            async with way_to(lambda: asyncio.open_connection(there.hostname, there.port), rpc_port):
                await until_started(process)


@pytest.mark.parametrize("wait_seconds", [0, 2])
async def test_startup_waits_no_longer_than_start_wait(url: str, wait_seconds: int) -> None:
    where = by_way_of(steady_port(), url)
    async with serving("--database-url", where, "--start-wait", f"{wait_seconds}") as process:
        code, said = await ended(process)
    assert code == 1
    assert ("server.waiting" in said) == (wait_seconds > 0)
    assert "PostgreSQL did not respond" in said


FAILING = """
CREATE SEQUENCE failures;
CREATE FUNCTION fail() RETURNS trigger AS $$
DECLARE
    states text[] := string_to_array(TG_ARGV[0], ' ');
    place integer := nextval('failures');
BEGIN
    IF TG_ARGV[1] = 'ever' THEN
        place := 1 + (place - 1) % cardinality(states);
    END IF;
    IF place <= cardinality(states) THEN
        RAISE EXCEPTION USING ERRCODE = states[place], MESSAGE = 'it cannot now';
    END IF;
    RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW
    EXECUTE FUNCTION fail('{states}', '{how_long}')
"""
PASSING = "57014 55P03 XX000 58030 25006"
"""A timeout, a lock, an internal error, a disk, a failover. Lost connections are replaced without a word."""


async def test_a_start_waits_for_every_error_of_a_database_that_can_pass(url: str) -> None:
    await stores.administer(url, FAILING.format(table="server_state", states=PASSING, how_long="once"))
    async with serving("--database-url", url) as process:
        for _ in PASSING.split():
            assert "it cannot now" in (await until_waiting(process))["detail"]
        await until_started(process)
    await stores.administer(url, "DROP FUNCTION fail CASCADE", "DROP SEQUENCE failures")


@pytest.mark.parametrize("state", ["57014", "55P03", "XX000", "57P01", "42P01"])
async def test_a_console_link_that_cannot_be_stored_ends_no_server(url: str, state: str) -> None:
    await stores.administer(url, FAILING.format(table="sign_in_codes", states=state, how_long="ever"))
    async with serving("--database-url", url, "--start-wait", "0") as process:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            announced = json.loads(await process.stdout.readline())
        assert "console_url" not in announced
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            base_url=announced["base_url"], headers=headers, trust_env=False
        ) as http:
            assert (await http.post("/v1/accounts", json={"name": "a"})).status_code == 201
        assert process.returncode is None
    await stores.administer(url, "DROP FUNCTION fail CASCADE", "DROP SEQUENCE failures")


async def test_startup_fails_at_once_on_errors_that_waiting_cannot_fix() -> None:
    async def forbidden(body: bytes) -> json_rpc_server.Answer:
        return 401, {}, b"no such key"

    async with json_rpc_server.serving(forbidden) as endpoint:
        for options, says in (
            (["--database-url", stores.url_of("nosuch")], "nosuch"),
            (["--rpc-url", endpoint], "refuses to be used"),
        ):
            # Not even the pause between two tries passes: it would be said.
            async with serving(*options, "--start-wait", "3600") as process:
                code, said = await ended(process)
            assert code == 1
            assert says in said
            assert "server.waiting" not in said
