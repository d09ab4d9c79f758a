"""`/healthz` and `/readyz`."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import stores
from server_world import START, raw_client, refused

from agentpay_server import AgentPayServer, Settings
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.server import Server, start_server
from agentpay_server.assembly.storage import Storage
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.database.runner import DatabaseUnavailableError
from agentpay_server.http import operations
from agentpay_server.http.app import Application
from agentpay_server.platform.clock import SystemClock

PATHS = ("/healthz", "/readyz", "/metrics")


class Ailing:
    """A database or a chain that can go away: `trouble` is awaited before each call."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.trouble: Callable[[], Any] = _none

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("run", "read", "block_height"):
            return found

        async def troubled(*args: Any, **kwargs: Any) -> Any:
            await self.trouble()
            return await found(*args, **kwargs)

        return troubled


async def _none() -> None:
    """Let the call through."""


def raising(error: Exception) -> Callable[[], Any]:
    async def trouble() -> None:
        raise error

    return trouble


async def silent() -> None:
    await asyncio.Event().wait()


class Watched:
    """A server whose parts can be made to fail, and an HTTP client of it without a key."""

    def __init__(self, runtime: Server, database: Ailing, chain: Ailing) -> None:
        self.runtime, self.database, self.chain = runtime, database, chain
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(Application(runtime)), base_url="http://agentpay.invalid"
        )

    async def not_ready(self) -> list[str]:
        answer = await self.http.get("/readyz")
        if answer.status_code == 200:
            assert answer.json() == {"status": "ready"}
            return []
        assert answer.status_code == 503
        assert set(answer.json()) == {"status", "not_ready"}
        return answer.json()["not_ready"]


@asynccontextmanager
async def watched(**settings: Any) -> AsyncIterator[Watched]:
    database = Ailing(await stores.new_database())
    chains: list[Ailing] = []

    def wrap(inner: Any) -> Any:
        chains.append(Ailing(inner))
        return chains[0]

    storage = Storage(database=database, ledger=None, settings=Settings(**settings))  # type: ignore[arg-type]
    runtime = await start_server(ServerConfig(clock=SystemClock(), wrap_chain=wrap), storage)
    made = Watched(runtime, database, chains[0])
    try:
        yield made
    finally:
        database.trouble = _none
        await made.http.aclose()
        await runtime.stop()


def test_a_working_server_is_healthy_and_ready_without_a_key(shared_server: AgentPayServer) -> None:
    with raw_client(shared_server, "") as http:
        health, ready = http.get("/healthz"), http.get("/readyz?verbose=1")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    for answer in (health, ready):
        assert answer.headers.get_list("content-type") == ["application/json"]
        assert answer.headers["x-request-id"].startswith("req_")
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", [*PATHS, "/openapi.json", "/openapi-extensions.json", "/dashboard"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW"])
def test_methods_other_than_get_are_405(shared_server: AgentPayServer, path: str, method: str) -> None:
    with raw_client(shared_server, "") as http:
        answer = http.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"
    request_id = answer.headers["x-request-id"]
    message = f"{path} supports only GET."
    assert answer.json() == {"error": "method_not_allowed", "message": message, "request_id": request_id}


@pytest.mark.parametrize("path", ["/healthz/", "/readyz/database", "//healthz", "/Healthz", "/metrics/"])
def test_every_other_path_still_needs_a_key(shared_server: AgentPayServer, path: str) -> None:
    with raw_client(shared_server, "") as http:
        refused(http.get(f"http://agentpay.invalid{path}"), "unauthorized")


def test_probes_do_not_consume_randomness() -> None:
    keys = []
    for probes in (0, 3):
        with AgentPayServer(clock=START, seed=1) as server, raw_client(server, "") as http:
            for path in PATHS * probes:
                assert http.get(path).status_code == 200
            keys.append(server.client().accounts.create(name="same").account_id)
    assert keys[0] == keys[1]


@pytest.mark.anyio
async def test_an_unavailable_chain_is_named() -> None:
    async with watched() as server:
        server.chain.trouble = raising(ChainUnreachableError("secret-node.internal refused"))
        assert await server.not_ready() == ["chain"]
        assert "secret-node" not in (await server.http.get("/readyz")).text
        assert (await server.http.get("/healthz")).status_code == 200
        server.chain.trouble = _none
        assert await server.not_ready() == []


@pytest.mark.anyio
async def test_an_unavailable_database_is_named() -> None:
    async with watched() as server:
        server.database.trouble = raising(DatabaseUnavailableError("password=hunter2"))
        answer = await server.http.get("/readyz")
        assert "hunter2" not in answer.text
        assert "database" in json.loads(answer.text)["not_ready"]
        assert (await server.http.get("/healthz")).status_code == 200


@pytest.mark.anyio
async def test_a_slow_dependency_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "PROBE_SECONDS", 0.01)
    async with watched() as server:
        server.chain.trouble = server.database.trouble = silent
        assert (await server.not_ready())[:2] == ["database", "chain"]


@pytest.mark.anyio
async def test_workers_that_fail_for_longer_than_the_bound_are_named() -> None:
    async with watched(ready_lag_seconds=1e-9) as server:
        is_tried = asyncio.Event()

        async def trouble() -> None:
            is_tried.set()
            raise DatabaseUnavailableError("gone")

        server.database.trouble = trouble
        server.runtime.context.wakeup.set()
        await is_tried.wait()
        assert await server.not_ready() == ["database", "workers"]
