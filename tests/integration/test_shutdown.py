"""SIGTERM and SIGINT: work in progress is finished or handed over, and nothing is lost."""

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import stores
from command_line import Process as CommandProcess
from command_line import next_json, processing
from server_world import raw_client

from agentpay_server import AgentPayServer, Settings

pytestmark = pytest.mark.unmeasured

WAIT_SECONDS = 120


class Process:
    """A server in a separate process, and an operator's client of it."""

    def __init__(self, process: CommandProcess, key: str | None) -> None:
        self.process = process
        announcement = next_json(process)
        self.key = key or announcement["operator_key"]
        self.http = httpx.Client(
            base_url=announcement["base_url"],
            headers={"Authorization": f"Bearer {self.key}"},
            trust_env=False,
            timeout=WAIT_SECONDS,
        )

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    def accounts(self) -> tuple[str, str]:
        """Return a payer with 10 USDC, and a payee."""
        payer, payee = (self.post("/v1/accounts", name=name).json()["account_id"] for name in "ab")
        assert self.post(f"/ext/v1/sandbox/accounts/{payer}/fund", amount="10").status_code == 200
        return payer, payee

    def wait_for(self, event: str) -> dict[str, Any]:
        """Read the log up to an event."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            line = json.loads(text)
            if line["event"] == event:
                return dict(line)
        raise AssertionError(f"the server ended without {event}")

    def ended(self) -> int:
        return self.process.wait(WAIT_SECONDS)


@contextmanager
def serving(
    *options: str, key: str | None = None, environment: dict[str, str] | None = None
) -> Iterator[Process]:
    with processing("serve", "--port", "0", *options, environment=environment) as process:
        server = Process(process, key)
        with server.http:
            yield server


@contextmanager
def asked(server: Process, path: str, body: dict[str, object]) -> Iterator[list[httpx.Response | None]]:
    """A request in progress within the block; its response is in the list afterwards, None without one."""
    answers: list[httpx.Response | None] = []

    def ask() -> None:
        try:
            answers.append(server.post(path, **body))
        except httpx.TransportError:
            answers.append(None)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        thread.join(WAIT_SECONDS)


@contextmanager
def next_server(key: str, **where: Any) -> Iterator[httpx.Client]:
    """Start on the data of an ended process, in this one; gives a client of its first operator."""
    with AgentPayServer(clock="system", **where) as server, raw_client(server, key) as http:
        yield http


def wait_until_submitted(server: Process, answers: list[httpx.Response | None]) -> None:
    """Return once a transfer is in flight, according to `/metrics`, or has its response."""
    submitted = 'agentpay_queue_depth{queue="transfers_submitted"} 1.0'
    while not answers and submitted not in server.http.get("/metrics").text:
        assert server.process.poll() is None


def assert_ended_cleanly(server: Process, number: signal.Signals) -> None:
    assert server.ended() == 0
    assert server.wait_for("server.stopping")["signal"] == number.name
    assert server.wait_for("server.stopped")
    assert server.process.stdout is not None
    assert server.process.stdout.read() == ""


def test_sigint_ends_an_idle_server_cleanly() -> None:
    with serving("--shutdown-wait", "60") as server:
        assert server.http.get("/healthz").status_code == 200  # the connection stays open, idle
        server.process.send_signal(signal.SIGINT)
        assert_ended_cleanly(server, signal.SIGINT)


def test_a_transfer_that_settles_within_the_bound_is_answered(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path), "--shutdown-wait", "60") as server:
        payer, payee = server.accounts()
        assert server.http.put("/ext/v1/sandbox/faults/chain_slow", json={"times": 1}).status_code == 200
        body: dict[str, object] = {"from": payer, "to": payee, "amount": "1", "idempotency_key": "k"}
        with asked(server, "/v1/transfers", body) as answers:
            wait_until_submitted(server, answers)
            server.process.send_signal(signal.SIGTERM)
        answer = answers[0]
        assert answer is not None
        assert (answer.status_code, answer.json()["status"]) == (200, "settled")
        assert_ended_cleanly(server, signal.SIGTERM)


def test_a_transfer_in_flight_at_shutdown_is_resumed_at_the_next_start(
    tmp_path: Path,
) -> None:
    body: dict[str, object] = {"amount": "1", "idempotency_key": "k"}
    with serving("--data-dir", str(tmp_path), "--shutdown-wait", "0.2") as server:
        body["from"], body["to"] = server.accounts()
        assert server.http.put("/ext/v1/sandbox/faults/chain_never_lands", json={}).status_code == 200
        with asked(server, "/v1/transfers", body) as answers:
            wait_until_submitted(server, answers)
            server.process.send_signal(signal.SIGTERM)
        answer = answers[0]
        assert answer is not None
        assert answer.status_code == 503
        assert answer.json()["status"] == "submitted"
        transfer_id = answer.json()["transfer_id"]
        assert server.ended() == 0
        key = server.key
    with next_server(key, data_dir=tmp_path) as http:
        answer = http.post("/v1/transfers", json=body)
        assert (answer.status_code, answer.json()["transfer_id"]) == (200, transfer_id)
        assert answer.json()["status"] == "settled"
        history = http.get(f"/v1/accounts/{body['from']}/transactions").json()["data"]
        assert [entry["transfer_id"] for entry in history if entry["type"] == "transfer"] == [transfer_id]
        balance = http.get(f"/v1/accounts/{body['to']}/balance").json()["balance_usdc"]
        assert balance == "1.000000"


def test_an_incomplete_request_is_aborted_at_shutdown() -> None:
    with serving("--shutdown-wait", "0.1") as server:
        url = server.http.base_url
        with socket.create_connection((url.host, url.port or 80), WAIT_SECONDS) as sock:
            head = f"POST /v1/accounts HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.key}\r\n"
            sock.sendall(f"{head}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode())
            assert sock.recv(1024).startswith(b"HTTP/1.1 100")  # the handler reads the body by now
            sock.sendall(b'{"name":')
            server.process.send_signal(signal.SIGTERM)
            with suppress(ConnectionResetError):
                assert sock.recv(1024) == b""
        assert server.ended() == 0
        assert server.wait_for("server.stopped")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_server_at_once_without_losing_a_transfer(
    tmp_path: Path, second: signal.Signals
) -> None:
    body: dict[str, object] = {"amount": "1", "idempotency_key": "k"}
    with serving("--data-dir", str(tmp_path), "--shutdown-wait", "600") as server:
        body["from"], body["to"] = server.accounts()
        assert server.http.put("/ext/v1/sandbox/faults/chain_never_lands", json={}).status_code == 200
        with asked(server, "/v1/transfers", body) as answers:
            wait_until_submitted(server, answers)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("server.stopping")
            server.process.send_signal(second)
            assert server.ended() == -second
        assert answers == [None]
        key = server.key
    with next_server(key, data_dir=tmp_path) as http:
        answer = http.post("/v1/transfers", json=body)
        assert (answer.status_code, answer.json()["status"]) == (200, "settled")


def test_a_server_that_loses_its_postgresql_signs_nothing_until_it_is_restarted() -> None:
    url = asyncio.run(stores.fresh_url())
    environment = {"AGENTPAY_SERVER_ENCRYPTION_KEY": stores.KEY.hex()}
    with serving("--database-url", url, environment=environment) as server:
        payer, payee = server.accounts()
        key = server.key
        ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        asyncio.run(stores.administer(url, f"{ends} AND pid <> pg_backend_pid()"))
        assert server.wait_for("database.lost")["level"] == "error"
        body = {"from": payer, "to": payee, "amount": "1", "idempotency_key": "k"}
        refused = server.post("/v1/transfers", **body)
        assert (refused.status_code, refused.json()["error"]) == (503, "service_unavailable")
        assert "database" in server.http.get("/readyz").json()["not_ready"]
        assert server.http.get("/healthz").status_code == 503
        server.process.send_signal(signal.SIGTERM)
        assert_ended_cleanly(server, signal.SIGTERM)
    with next_server(key, database_url=url, settings=Settings(encryption_key=stores.KEY)) as http:
        body = {"from": payer, "to": payee, "amount": "1", "idempotency_key": "k"}
        assert http.post("/v1/transfers", json=body).status_code == 200
    stores.run.free.append(url)
