"""500 concurrent calls of 200 ms each, against what 100 connections could do at best.

The service is another process that takes 200 ms for every response, on a real port.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType

import httpx
import httpx2
from harness import Result

from agentpay import AgentPay, AsyncAgentPay

CALLS, SECONDS, CONNECTIONS, ROUNDS, BOUND = 500, 0.2, 100, 3, 2.0
IDEAL = CALLS / CONNECTIONS * SECONDS
KEY = "ap_operator_x"
BALANCE = json.dumps(
    {"account_id": "acct_1", "balance_usdc": "1.000000", "last_updated": "2026-01-01T00:00:00.000Z"}
).encode()


def run() -> list[Result]:
    """Return the ratios of both clients to the ideal, and of the async one on the caller's HTTP clients."""
    service = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    base_url = f"http://127.0.0.1:{int(service.stdout.readline())}"
    try:
        return [
            _result("async", lambda: asyncio.run(_together(base_url))),
            _result("sync, in as many threads", lambda: _in_threads(base_url)),
            *(
                _result(f"async, own {library.__name__}", partial(_on_own, library, base_url))
                for library in (httpx, httpx2)
            ),
        ]
    finally:
        service.terminate()
        service.wait()


def _result(name: str, work: Callable[[], float]) -> Result:
    taken = min(work() for _ in range(ROUNDS))
    return Result(
        f"{CALLS} calls of {SECONDS * 1000:.0f} ms at a time, {name}",
        taken * 1e6,
        IDEAL * 1e6,
        taken / IDEAL,
        BOUND,
    )


def _on_own(library: ModuleType, base_url: str) -> float:
    return asyncio.run(_together(base_url, library))


async def _together(base_url: str, library: ModuleType | None = None) -> float:
    """Time all calls, with an HTTP client of the caller's if a library is given."""
    given = None if library is None else library.AsyncClient()
    async with AsyncAgentPay(api_key=KEY, base_url=base_url, http_client=given) as client:
        await client.accounts.balance("acct_1")
        started = time.perf_counter()
        await asyncio.gather(*(client.accounts.balance("acct_1") for _ in range(CALLS)))
        return time.perf_counter() - started


def _in_threads(base_url: str) -> float:
    ready = threading.Barrier(CALLS + 1)

    def call(client: AgentPay) -> None:
        ready.wait()
        client.accounts.balance("acct_1")

    with AgentPay(api_key=KEY, base_url=base_url) as client, ThreadPoolExecutor(CALLS) as pool:
        client.accounts.balance("acct_1")
        waiting = [pool.submit(call, client) for _ in range(CALLS)]
        ready.wait()
        started = time.perf_counter()
        for one in waiting:
            one.result()
        return time.perf_counter() - started


async def serve() -> None:
    """Answer every request after its time, and print the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(SECONDS)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BALANCE), BALANCE))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
