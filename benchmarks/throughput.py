"""Transfers and charges on PostgreSQL by the whole path: what each costs in CPU time, and how many a second.

The server, PostgreSQL, the cluster and the callers are separate processes. CPU time is read from the kernel,
so that other work on the machine changes it less; rates are only comparable within one run. The last two
columns are computed: what a core of the server and one of PostgreSQL can do at most. Round trips are
counted by a proxy between the server and PostgreSQL: each time that the server sends after it has received.
The background work of the server counts in all figures. Two servers on one PostgreSQL are measured on a
cluster, against one of them with the same callers; the CPU time of both counts.

PostgreSQL waits for the disk, as in production. pgbench, if it is installed, runs TPC-B on the same server.
"""

import asyncio
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import asyncpg
import postgres
import rpc_world
from attrs import frozen
from harness import Result, print_table
from sqlalchemy import make_url

from agentpay_server.assembly.opening import KEY_VARIABLE
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY
from agentpay_server.platform.principals import KeyKind, new_key
from agentpay_server.plugins.cluster.settings import FEE_PAYER_VARIABLE, MINT_AUTHORITY_VARIABLE

KEY = new_key(KeyKind.OPERATOR, bytes(range(32)))
CALLERS = 64
TRANSFERS = int(os.environ.get("TRANSFERS", "2000"))
TRANSFERS_ALONE = TRANSFERS // 5
COUNTED = 200
PGBENCH_SECONDS = 5
TICKS = os.sysconf("SC_CLK_TCK")
SOCKET = ".s.PGSQL.5432"
SHARED = 8
"""Payers that the callers of two servers share."""

T = TypeVar("T")

_keys = itertools.count()

Pair = tuple[str, str]
"""Payer and payee."""


@frozen
class Measured:
    """One load: seconds for a call, of the wall and of two kinds of processes."""

    name: str
    wall: float
    server: float
    postgres: float
    p50: float

    def line(self) -> str:
        """Return it as a line of the table."""
        return (
            f"{self.name:44}  {1 / self.wall:>7.0f}/s  {self.server * 1e3:>7.2f} ms  "
            f"{self.postgres * 1e3:>7.2f} ms  {self.p50 * 1e3:>7.1f} ms  "
            f"{1 / self.server:>7.0f}/s  {1 / self.postgres:>7.0f}/s"
        )


def run() -> list[Result]:
    """Print the table, and return what is compared within the run."""
    print(f"load of the machine before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs")
    print(
        f"{'':44}  {'done':>9}  {'server CPU':>10}  {'PostgreSQL':>10}  {'p50':>10}  {'at most, a core':>20}"
    )
    results = []
    with postgres.server() as url:
        names = (f"throughput_{number}" for number in itertools.count())
        for world in ("embedded", "cluster"):
            with cluster(*(["cluster_process.py"] if world == "cluster" else [])) as options:
                _, spread, hot, *_ = asyncio.run(_loads(url, next(names), world, options))
                trips = asyncio.run(_round_trips(url, next(names), options))
                if world == "cluster":
                    results += asyncio.run(_two_servers(url, next(names), options))
            print(f"{world}, 1 caller: {trips:.1f} round trips to PostgreSQL for each transfer")
            name = f"{world}, {CALLERS} callers: one payer, against many"
            results.append(Result(name, hot.wall * 1e6, spread.wall * 1e6, hot.wall / spread.wall, 1.25))
        tpcb = pgbench(url)
        if tpcb is not None:
            name = f"cluster, {CALLERS} callers: a transfer, against TPC-B by pgbench"
            results.append(Result(name, spread.wall * 1e6, tpcb * 1e6, spread.wall / tpcb, 1 / 0.12))
    return results


# --- Processes --------------------------------------------------------------------------------------------


@contextmanager
def cluster(*program: str) -> Iterator[list[str]]:
    """Return the options of a server for a cluster that runs meanwhile; none for its embedded chain.

    `program` is the name of a script here that runs a cluster, with its arguments.
    """
    if not program:
        yield []
        return
    path = Path(__file__).with_name(program[0])
    process = subprocess.Popen(
        [sys.executable, str(path), *program[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None  # noqa: PT018
    try:
        told = json.loads(process.stdout.readline())
        websocket = ["--rpc-websocket-url", told["websocket_url"]] if "websocket_url" in told else []
        yield ["--rpc-url", told["url"], *websocket]
    finally:
        process.stdin.close()
        process.wait()


@asynccontextmanager
async def served(store: list[str], options: list[str]) -> AsyncIterator[tuple[int, int]]:
    """Return the process and the port of a server that runs meanwhile, with the options of its store."""
    environment = {KEY_VARIABLE: bytes(range(32)).hex()}
    if options:
        environment[FEE_PAYER_VARIABLE] = json.dumps(list(rpc_world.GIVEN[TREASURY]))
        environment[MINT_AUTHORITY_VARIABLE] = json.dumps(list(rpc_world.GIVEN[TEST_MINT_AUTHORITY]))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentpay_server", "serve", "--port", "0", "--log-level", "error"),
        *("--operator-key", KEY, *store, *options),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        told = json.loads(await process.stdout.readline())
        yield process.pid, int(told["base_url"].rpartition(":")[2])
    finally:
        process.terminate()
        await process.wait()


def cpu_seconds(root: int) -> float:
    """Return the CPU time of a process and its children, including ended ones."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        own, ended = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        if path.parent.name == str(root):
            total += own + ended
        elif fields[1] == str(root):
            total += own
    return total / TICKS


def postmaster(server_url: str) -> int:
    """Return the main process of PostgreSQL."""
    directory = Path(str(make_url(server_url).query["host"]))
    return int((directory / "data" / "postmaster.pid").read_text().split()[0])


def pgbench(server_url: str) -> float | None:
    """Return the seconds of one TPC-B transaction with as many clients; None without pgbench."""
    command = shutil.which("pgbench")
    if command is None:
        return None
    url = make_url(postgres.new_database(server_url, "pgbench"))
    connection = ["-h", str(url.query["host"]), "-U", str(url.username), str(url.database)]
    subprocess.run([command, "-i", "-q", "-s", "50", *connection], check=True, capture_output=True)
    load = ["-n", "-c", str(CALLERS), "-j", "2", "-T", str(PGBENCH_SECONDS), *connection]
    told = subprocess.run([command, *load], check=True, capture_output=True, text=True).stdout
    found = re.search(r"tps = ([\d.]+)", told)
    assert found is not None, told
    print(f"{f'pgbench TPC-B, {CALLERS} clients':44}  {float(found[1]):>7.0f}/s")
    return 1 / float(found[1])


# --- Callers ----------------------------------------------------------------------------------------------


class Caller:
    """One connection to the server: far cheaper than a client, because callers share the machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.key = KEY

    async def post(self, path: str, body: object) -> dict[str, str]:
        """Return the response, which must be a success."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        answered = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", answered)
        assert length is not None, answered
        content = await self._reader.readexactly(int(length[1]))
        assert answered.split()[1].startswith("2"), content
        found: dict[str, str] = json.loads(content)
        return found

    async def pair(self) -> Pair:
        """Return a new payer with money, and a new payee."""
        payer = (await self.post("/v1/accounts", {"name": "payer"}))["account_id"]
        payee = (await self.post("/v1/accounts", {"name": "payee"}))["account_id"]
        await self.post(f"/ext/v1/sandbox/accounts/{payer}/fund", {"amount": "10000"})
        return payer, payee

    async def pay(self, pair: Pair) -> float:
        """Make one transfer, and return how long it took."""
        body = {"from": pair[0], "to": pair[1], "amount": "0.01", "idempotency_key": f"key-{next(_keys)}"}
        start = time.perf_counter()
        transfer = await self.post("/v1/transfers", body)
        assert transfer["status"] == "settled", transfer
        return time.perf_counter() - start

    async def open(self, pair: Pair) -> str:
        """Return a new session."""
        body = {"account_id": pair[0], "to": pair[1], "cap_usdc": "100", "idempotency_key": f"{next(_keys)}"}
        return (await self.post("/ext/v1/sessions", body))["session_id"]

    async def charge(self, session_id: str) -> float:
        """Charge a session once, and return how long it took."""
        body = {"amount": "0.000001", "idempotency_key": f"key-{next(_keys)}"}
        start = time.perf_counter()
        await self.post(f"/ext/v1/sessions/{session_id}/charges", body)
        return time.perf_counter() - start

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


@asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[Caller]]:
    """Return callers with a connection each. The server closes connections that stay idle."""
    callers = [Caller(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]
    try:
        yield callers
    finally:
        for caller in callers:
            caller.close()


@frozen
class Load:
    """Servers on one database, measured together.

    Attributes:
        processes: of the servers and of PostgreSQL.
        ports: of the servers. Each has as many callers as the others.
    """

    world: str
    processes: Sequence[int]
    postgres: int
    ports: Sequence[int]

    async def measured(
        self, name: str, count: int, subjects: Sequence[T], call: "Callable[[Caller, T], Awaitable[float]]"
    ) -> Measured:
        """Let a caller for each subject call again and again, `count` times together, and print the costs."""
        async with AsyncExitStack() as stack:
            each = len(subjects) // len(self.ports)
            callers = [
                caller
                for port in self.ports
                for caller in await stack.enter_async_context(connected(port, each))
            ]
            await settled(callers, subjects, len(subjects) * 3, call)
            before = self._cpu_seconds()
            start = time.perf_counter()
            seconds = await settled(callers, subjects, count, call)
            wall = (time.perf_counter() - start) / count
            server, database = (
                (after - earlier) / count for after, earlier in zip(self._cpu_seconds(), before, strict=True)
            )
        found = Measured(f"{self.world}, {name}", wall, server, database, statistics.median(seconds))
        print(found.line(), flush=True)
        return found

    def _cpu_seconds(self) -> tuple[float, float]:
        return sum(map(cpu_seconds, self.processes)), cpu_seconds(self.postgres)


async def _loads(url: str, name: str, world: str, options: list[str]) -> list[Measured]:
    database_url = await asyncio.to_thread(postgres.new_database, url, name)
    async with served(["--database-url", database_url], options) as (process, port):
        async with connected(port, CALLERS) as callers:
            pairs = await asyncio.gather(*(caller.pair() for caller in callers))
        load = Load(world, [process], postmaster(url), [port])
        found = [
            await load.measured("1 caller", TRANSFERS_ALONE, pairs[:1], Caller.pay),
            await load.measured(f"{CALLERS} callers, a payer each", TRANSFERS, pairs, Caller.pay),
            await load.measured(f"{CALLERS} callers, one payer", TRANSFERS, pairs[:1] * CALLERS, Caller.pay),
        ]
        async with connected(port, CALLERS) as callers:
            sessions = await asyncio.gather(*map(Caller.open, callers, pairs))
        name = f"{CALLERS} callers, charges of a session each"
        found.append(await load.measured(name, TRANSFERS * 2, sessions, Caller.charge))
    return found


async def _two_servers(url: str, name: str, options: list[str]) -> list[Result]:
    database_url = await asyncio.to_thread(postgres.new_database, url, name)
    store = ["--database-url", database_url]
    async with served(store, options) as first, served(store, options) as second:
        processes, ports = zip(first, second, strict=True)
        async with connected(ports[0], CALLERS) as callers:
            pairs = await asyncio.gather(*(caller.pair() for caller in callers))
        one = Load("1 server", processes, postmaster(url), ports[:1])
        two = Load("2 servers", processes, postmaster(url), ports)
        results = []
        for kind, its_pairs in (("a payer each", pairs), (f"{SHARED} payers", pairs[:SHARED] * SHARED)):
            alone = await one.measured(f"{CALLERS} callers, {kind}", TRANSFERS, its_pairs, Caller.pay)
            both = await two.measured(f"{CALLERS} callers, {kind}", TRANSFERS, its_pairs, Caller.pay)
            name = f"2 servers, {CALLERS} callers, {kind}: server CPU, against one server"
            ratio = both.server / alone.server
            results.append(Result(name, both.server * 1e6, alone.server * 1e6, ratio, 1 / 0.9))
    print(f"2 servers: {await _deadlocks(database_url)} deadlocks")
    return results


async def _deadlocks(database_url: str) -> int:
    connection = await asyncpg.connect(database_url)
    try:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return int(await connection.fetchval(query))
    finally:
        await connection.close()


async def settled(
    callers: Sequence[Caller],
    subjects: Sequence[T],
    count: int,
    call: Callable[[Caller, T], Awaitable[float]],
) -> list[float]:
    """Return how long each of `count` calls took, each caller's one after the other."""
    left, seconds = iter(range(count)), []

    async def repeated(caller: Caller, subject: T) -> None:
        for _ in left:
            seconds.append(await call(caller, subject))  # noqa: PERF401 - of all callers

    await asyncio.gather(*map(repeated, callers, subjects))
    return seconds


# --- Round trips ------------------------------------------------------------------------------------------


class Turns:
    """Forwards connections to PostgreSQL, and counts how often the server sends after it has received."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.count = 0

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until either side closes it."""
        there = await asyncio.open_unix_connection(str(self._target))
        is_answered = True

        async def sent() -> None:
            nonlocal is_answered
            while data := await reader.read(65536):
                self.count += is_answered
                is_answered = False
                there[1].write(data)
            there[1].close()

        async def received() -> None:
            nonlocal is_answered
            while data := await there[0].read(65536):
                is_answered = True
                writer.write(data)
            writer.close()

        await asyncio.gather(sent(), received(), return_exceptions=True)


async def _round_trips(url: str, name: str, options: list[str]) -> float:
    """Return the round trips to PostgreSQL for a transfer by one caller."""
    database_url = make_url(await asyncio.to_thread(postgres.new_database, url, name))
    with tempfile.TemporaryDirectory(prefix="agentpay-turns-") as directory:
        turns = Turns(Path(str(make_url(url).query["host"])) / SOCKET)
        listening = await asyncio.start_unix_server(turns.forward, str(Path(directory) / SOCKET))
        by_proxy = database_url.set(query={"host": directory}).render_as_string(hide_password=False)
        async with served(["--database-url", by_proxy], options) as (_, port), connected(port, 1) as callers:
            pairs = [await callers[0].pair()]
            await settled(callers, pairs, 20, Caller.pay)
            before = turns.count
            await settled(callers, pairs, COUNTED, Caller.pay)
            counted = (turns.count - before) / COUNTED
        listening.close()
    return counted


if __name__ == "__main__":
    print_table(run())
