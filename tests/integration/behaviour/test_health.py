"""`/healthz` and `/readyz`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import bounds
import pytest
from outages import chain_silent, database_away, database_silent
from server_world import START, raw_client, refused

from agentpay_server import AgentPayServer, Settings

SECRET = "password=hunter2"
PATHS = ("/healthz", "/readyz", "/metrics")


@pytest.fixture(autouse=True)
def probed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request read the chain, not the first one of a second for all."""
    bounds.shorten(monkeypatch, probed_every_seconds=0)


@pytest.fixture
def running() -> Iterator[AgentPayServer]:
    """A server on a running clock."""
    with AgentPayServer(clock="system") as made:
        yield made


def not_ready(server: AgentPayServer) -> list[str]:
    with raw_client(server, "") as http:
        answer = http.get("/readyz")
    if answer.status_code == 200:
        assert answer.json() == {"status": "ready"}
        return []
    assert answer.status_code == 503
    assert set(answer.json()) == {"status", "not_ready"}
    assert SECRET not in answer.text
    return list(answer.json()["not_ready"])


def assert_healthy(server: AgentPayServer) -> None:
    with raw_client(server, "") as http:
        assert http.get("/healthz").status_code == 200


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
@pytest.mark.parametrize("method", ["POST", "HEAD", "OPTIONS", "BREW"])
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


def test_an_unavailable_dependency_is_named_and_the_server_is_healthy(running: AgentPayServer) -> None:
    for away, name in (
        (running.sandbox.fault("chain_down"), "chain"),
        (database_away(running, SECRET), "database"),
    ):
        with away:
            assert name in not_ready(running)
            assert_healthy(running)
    assert not_ready(running) == []


def test_any_number_of_callers_read_the_chain_once_a_second(
    monkeypatch: pytest.MonkeyPatch, server: AgentPayServer
) -> None:
    """Each request to these paths, which need no key, cost a call of the RPC endpoint."""
    bounds.shorten(monkeypatch, probed_every_seconds=3600)
    runtime, calls = server._running.server, []
    for chain, name in ((runtime.context.chain, "block_height"), (runtime.chain, "account_size")):

        async def counted(read: Any, *given: Any, name: str = name) -> object:
            calls.append(name)
            return await read(*given)

        monkeypatch.setattr(chain, name, partial(counted, getattr(chain, name)))
    with raw_client(server, "") as http, ThreadPoolExecutor(8) as callers:
        answers = callers.map(lambda number: http.get(PATHS[1 + number % 2]).status_code, range(40))
        assert set(answers) == {200}
        assert sorted(calls) == ["account_size", "block_height"]
        bounds.shorten(monkeypatch, probed_every_seconds=0)
        assert http.get("/readyz").status_code == 200
        assert sorted(calls) == ["account_size"] * 2 + ["block_height"] * 2


def test_a_slow_dependency_is_not_ready(monkeypatch: pytest.MonkeyPatch, running: AgentPayServer) -> None:
    bounds.shorten(monkeypatch, probe_seconds=0.01)
    with chain_silent(running), database_silent(running):
        assert not_ready(running)[:2] == ["database", "chain"]


def test_workers_that_fail_for_longer_than_the_bound_are_named() -> None:
    settings = Settings(ready_lag_seconds=1e-9)
    with AgentPayServer(clock="system", settings=settings) as server, database_away(server) as has_failed:
        server._running.server.context.wakeup.set()
        assert has_failed.wait(60)
        # The embedded chain's ledger may be in the database that is away.
        assert [part for part in not_ready(server) if part != "chain"] == ["database", "workers"]
