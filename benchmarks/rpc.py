"""Transfers on a real validator with slots of 50 ms: what the service adds to a bare loop, and how it scales.

The bare loop builds, signs, sends and asks until the transaction is confirmed, in raw RPC calls, and keeps
nothing. Then: 64 callers against one at a time, and one and two servers on one PostgreSQL that waits for its
disk, at 1, 16 and 64 callers; each of these against one server with one caller.
"""

import asyncio
import base64
import itertools
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
import postgres
import rpc_processes
import rpc_service
import rpc_world
import surfpool as surfpools
from harness import Result
from rpc_processes import Server
from surfpool import Surfpool

from agentpay_server.chain import transactions
from agentpay_server.chain.base import Blockhash
from agentpay_server.chain.custody import spending_key
from agentpay_server.chain.instructions import associated_token_address

ROUNDS = 8
CALLS = 5
_keys = itertools.count()


class BareLoop:
    """Build, sign, send, ask until it is confirmed: nothing else."""

    def __init__(self, url: str, world: rpc_world.RpcWorld, recipient: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, trust_env=False)
        self._custody = world.custody
        self._recipient = recipient

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
            account_index=1,
            source=associated_token_address(self._custody.address(spending_key(1)), rpc_world.USDC),
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
            await asyncio.sleep(0.01)


async def _latencies(work: Callable[[], Awaitable[object]], calls: int) -> list[float]:
    found = []
    for _ in range(calls):
        start = time.perf_counter()
        await work()
        found.append(time.perf_counter() - start)
    return found


async def _alone(surfpool: Surfpool) -> Result:
    async with (
        rpc_world.world(surfpool) as world,
        rpc_service.serving(surfpool, landing_seconds=0.4) as service,
    ):
        await world.account(1, 10_000)
        loop = BareLoop(surfpool.url, world, await world.account(2))
        payer, payee = await service.account("100"), await service.account()

        async def served() -> None:
            answer = await service.transfer(f"{next(_keys)}", payer, payee, "0.000001")
            assert answer.status_code == 200, answer.text

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


async def _seconds_each(servers: list[Server], callers: int, count: int) -> float:
    """Return the seconds from the first to the last transfer, divided by their number."""
    payers = await asyncio.gather(*(servers[0].account("100") for _ in range(callers)))
    payee = await servers[0].account()
    numbers = itertools.count()

    async def call(caller: int) -> None:
        server = servers[caller % len(servers)]
        while next(numbers) < count:
            body = {
                "from": payers[caller]["account_id"],
                "to": payee["account_id"],
                "amount": "0.000001",
                "idempotency_key": f"{next(_keys)}",
            }
            answer = await server.post("/v1/transfers", body)
            assert answer.status_code == 200, answer.text

    start = time.perf_counter()
    await asyncio.gather(*(call(caller) for caller in range(callers)))
    return (time.perf_counter() - start) / count


async def _together(surfpool: Surfpool, database_url: str) -> list[Result]:
    results: list[Result] = []
    async with AsyncExitStack() as opened:
        servers: list[Server] = []
        alone = 0.0
        for number in (1, 2):
            servers.append(await opened.enter_async_context(rpc_processes.started(surfpool, database_url)))
            for callers in (1, 16, 64):
                each = await _seconds_each(servers, callers, 20 if callers == 1 else 2 * callers)
                alone = alone or each
                name = f"{number} server{'s' * (number > 1)}, {callers} callers: {1 / each:.0f} transfers/s"
                bound = 0.125 if (number, callers) == (1, 64) else None
                results.append(Result(name, each * 1e6, alone * 1e6, each / alone, bound))
    return results


def run() -> list[Result]:
    """Measure."""
    with surfpools.running() as node:
        results = [asyncio.run(_alone(node))]
    with surfpools.running() as node, postgres.server() as url:
        return results + asyncio.run(_together(node, postgres.new_database(url, "rpc")))
