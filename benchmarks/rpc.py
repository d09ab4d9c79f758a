"""Transfers on a real validator with slots of 50 ms: overhead over a bare loop, and scaling.

The bare loop builds, signs and sends a transaction and polls until it is confirmed, with raw RPC calls and
without storage. Also measured: RPC calls per settled transfer, including the server's own, and concurrent
callers of one and of two servers on one durable PostgreSQL, compared with one caller. A test validator
executes transactions one after the other, and slows down with age: each round has a new one, and as many
bare loops in the same round show its own limit. The CPU time of a transfer shows the servers' limit.
"""

import asyncio
import base64
import itertools
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import httpx
import postgres
import rpc_processes
import rpc_proxy
import rpc_service
import rpc_world
import surfpool as surfpools
from attrs import Factory, frozen
from harness import Result, print_table
from rpc_processes import Server
from surfpool import Surfpool

from agentpay_server.chain import transactions
from agentpay_server.chain.custody import spending_key
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.chain.protocol import Blockhash
from agentpay_server.plugins.cluster.settings import RpcSettings

ROUNDS = 8
CALLS = 5
CALLERS = (1, 64, 16)  # In this order: the validator is young where it counts.
PAYERS = 16
ROUNDS_TOGETHER = 3
_DEFAULTS = RpcSettings(url="http://node.example")
_keys = itertools.count()

Work = Callable[[], Awaitable[object]]


class BareLoop:
    """Build, sign, send, ask until it is confirmed: nothing else."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        world: rpc_world.RpcWorld,
        payer: int,
        recipient: str,
        pause_seconds: float,
    ) -> None:
        self._http = http
        self._custody = world.custody
        self._payer = payer
        self._recipient = recipient
        self._pause_seconds = pause_seconds

    async def _call(self, method: str, *params: object) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        return (await self._http.post("", json=body)).json()["result"]

    async def transfer(self) -> None:
        """Move a millionth of a USDC."""
        latest = (await self._call("getLatestBlockhash", {"commitment": "confirmed"}))["value"]
        signed = transactions.transfer(
            self._custody,
            Blockhash(value=latest["blockhash"], last_valid_block_height=latest["lastValidBlockHeight"]),
            usdc_mint=rpc_world.USDC,
            account_index=self._payer,
            source=associated_token_address(self._custody.address(spending_key(self._payer)), rpc_world.USDC),
            recipient=self._recipient,
            amount_micro=1,
            memo=f"bare {next(_keys)}",
        )
        options = {"encoding": "base64", "preflightCommitment": "confirmed", "maxRetries": 0}
        await self._call("sendTransaction", base64.b64encode(signed.raw).decode(), options)
        while True:
            (status,) = (await self._call("getSignatureStatuses", [signed.signature]))["value"]
            if status is not None and status["confirmationStatus"] != "processed":
                return
            await asyncio.sleep(self._pause_seconds)


@asynccontextmanager
async def _bare_loops(surfpool: Surfpool, count: int) -> AsyncIterator[list[BareLoop]]:
    """Generate load with as many loops, each with its own payer."""
    limits = httpx.Limits(max_connections=None)
    async with (
        rpc_world.world(surfpool) as world,
        httpx.AsyncClient(base_url=surfpool.url, trust_env=False, limits=limits, timeout=60) as http,
    ):
        recipient = await world.account(count + 1)
        for payer in range(1, count + 1):
            address = await world.account(payer)
            surfpool.call(
                "surfnet_setTokenAccount", world.owner(payer), rpc_world.USDC, {"amount": 1_000_000}
            )
            assert await world.balance(address) == 1_000_000
        pause_seconds = 0.01 if count == 1 else 0.05
        yield [BareLoop(http, world, payer, recipient, pause_seconds) for payer in range(1, count + 1)]


async def _latencies(work: Work, calls: int) -> list[float]:
    found = []
    for _ in range(calls):
        start = time.perf_counter()
        await work()
        found.append(time.perf_counter() - start)
    return found


async def _seconds_each(callers: Sequence[Work], count: int) -> float:
    """Return the seconds from the first to the last of `count` calls, divided by their number."""
    numbers = itertools.count()

    async def call(work: Work) -> None:
        while next(numbers) < count:
            await work()

    start = time.perf_counter()
    await asyncio.gather(*(call(work) for work in callers))
    return (time.perf_counter() - start) / count


def _served(service: rpc_service.Service, payer: rpc_service.Party, payee: rpc_service.Party) -> Work:
    async def call() -> None:
        answer = await service.transfer(f"{next(_keys)}", payer, payee, "0.000001")
        assert answer.status_code == 200, answer.text

    return call


async def _alone(surfpool: Surfpool) -> Result:
    """Compare the latency of one transfer after the other."""
    async with (
        _bare_loops(surfpool, 1) as (loop,),
        rpc_service.serving(surfpool, **_as_by_default()) as service,
    ):
        served = _served(service, await service.account("100"), await service.account())
        await _latencies(loop.transfer, 3)
        await _latencies(served, 3)
        floors: list[float] = []
        subjects: list[float] = []
        for _ in range(ROUNDS):
            floors += await _latencies(loop.transfer, CALLS)
            subjects += await _latencies(served, CALLS)
        floor, subject = statistics.median(floors), statistics.median(subjects)
        return Result(
            "settled on a validator, p50, to a bare loop", subject * 1e6, floor * 1e6, subject / floor, 1.5
        )


async def _calls(surfpool: Surfpool) -> list[Result]:
    """Count the RPC calls, from the first transfer until the last is irreversible and looked at."""
    results = []
    async with rpc_proxy.in_front_of(surfpool.url) as proxy:
        for callers, each, bound in ((1, 40, 5), (64, 8, 3)):
            settings = {**_as_by_default(), "url": proxy.url}
            async with rpc_service.serving(surfpool, **settings) as service:
                payers = [await service.account("100") for _ in range(callers)]
                payee = await service.account()

                await asyncio.sleep(2 * _DEFAULTS.deposit_interval_seconds)
                before = proxy.requests.copy()
                works = [_served(service, payer, payee) for payer in payers]
                await _seconds_each(works, callers * each)
                await asyncio.sleep(1.5 * _DEFAULTS.deposit_interval_seconds)
                made = proxy.requests - before
            calls = made.total() / (callers * each)
            words = ", ".join(f"{name} {count}" for name, count in made.most_common())
            print(f"{callers * each} transfers, {callers} at once: {words}", file=sys.stderr)
            results.append(Result(f"RPC calls for a transfer, {callers} at once", 0, 0, calls, bound))
    return results


def _as_by_default() -> dict[str, Any]:
    names = ("landing_seconds", "status_interval_seconds", "deposit_interval_seconds")
    return {name: getattr(_DEFAULTS, name) for name in names}


def _posted(server: Server, payer: dict[str, Any], payee: dict[str, Any]) -> Work:
    async def call() -> None:
        body = {
            "from": payer["account_id"],
            "to": payee["account_id"],
            "amount": "0.000001",
            "idempotency_key": f"{next(_keys)}",
        }
        answer = await server.post("/v1/transfers", body)
        assert answer.status_code == 200, answer.text

    return call


@frozen
class _Found:
    """Seconds for a transfer, one for each round, by the number of callers."""

    served: dict[int, list[float]] = Factory(lambda: defaultdict(list))
    cpu: dict[int, list[float]] = Factory(lambda: defaultdict(list))
    bare: dict[int, list[float]] = Factory(lambda: defaultdict(list))


def _cpu_seconds(servers: Sequence[Server]) -> float:
    """Return the CPU time that servers have taken until now."""
    seconds = 0.0
    for server in servers:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


async def _round(surfpool: Surfpool, database_url: str, count: int, found: _Found) -> None:
    """Measure callers at once, of `count` servers and of bare loops."""
    async with AsyncExitStack() as opened:
        loops = await opened.enter_async_context(_bare_loops(surfpool, PAYERS))
        servers = [
            await opened.enter_async_context(rpc_processes.started(surfpool, database_url))
            for _ in range(count)
        ]
        payee = await servers[0].account()
        payers = [await servers[0].account("100") for _ in range(PAYERS)]
        for callers in CALLERS:
            transfers = 10 if callers == 1 else 2 * callers
            works = [
                _posted(servers[number % count], payers[number % PAYERS], payee) for number in range(callers)
            ]
            cpu_seconds = _cpu_seconds(servers)
            found.served[callers].append(await _seconds_each(works, transfers))
            found.cpu[callers].append((_cpu_seconds(servers) - cpu_seconds) / transfers)
            works = [loops[number % PAYERS].transfer for number in range(callers)]
            found.bare[callers].append(await _seconds_each(works, transfers))


def _together(database_urls: Iterable[str], count: int) -> list[Result]:
    """Compare callers at once with one at a time."""
    found = _Found()
    for database_url in database_urls:
        with surfpools.running() as node:
            asyncio.run(_round(node, database_url, count, found))
    results = []
    name = f"{count} server{'s' * (count > 1)}"
    for title, seconds in ((name, found.served), ("bare loops", found.bare)):
        for callers in sorted(CALLERS):
            each, alone = statistics.median(seconds[callers]), statistics.median(seconds[1])
            ratio = statistics.median(
                many / one for many, one in zip(seconds[callers], seconds[1], strict=True)
            )
            bound = 0.125 if title == "1 server" and callers == max(CALLERS) else None
            rate = f"{title}, {callers} at once: {1 / each:.0f} transfers/s"
            results.append(Result(rate, each * 1e6, alone * 1e6, ratio, bound))
    for callers in sorted(CALLERS):
        cpu, each = statistics.median(found.cpu[callers]), statistics.median(found.served[callers])
        results.append(
            Result(f"{name}, {callers} at once: CPU of a transfer", cpu * 1e6, each * 1e6, cpu / each, None)
        )
    return results


def run() -> list[Result]:
    """Measure, each part on a separate validator, because validators slow down with age."""
    with surfpools.running() as node:
        results = [asyncio.run(_alone(node))]
    with surfpools.running() as node:
        results += asyncio.run(_calls(node))
    with postgres.server() as url:
        for count in (1, 2):
            urls = [postgres.new_database(url, f"rpc_{count}_{number}") for number in range(ROUNDS_TOGETHER)]
            results += _together(urls, count)
    return results


if __name__ == "__main__":
    print_table(run())
