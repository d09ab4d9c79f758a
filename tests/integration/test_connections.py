"""Slow and silent peers of a port: no peer holds a connection forever, and many of them block no other.

Deadlines come from the settings: short where a test waits for one, long otherwise.
"""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from command_line import next_json
from loaded_python import LoadedPython
from peers import GET_HEALTH, WAIT_SECONDS, Peer
from prometheus_client.parser import text_string_to_metric_families
from receivers import eventually
from server_world import raw_client

from agentpay import AgentPay
from agentpay_server import AgentPayServer, Settings

resource = pytest.importorskip("resource")

# Only the bound under test is short, so that a busy machine meets all others.
SHORT_HEAD = Settings(head_timeout_seconds=2.0)
SHORT_IDLE = Settings(idle_timeout_seconds=0.2)
SHORT_BODY = Settings(body_timeout_seconds=0.2)
FOR_EVER = 366 * 24 * 3600.0


@pytest.fixture
def listening() -> Iterator[Callable[[Settings], AgentPayServer]]:
    """Starts servers that have a port."""
    with ExitStack() as started:

        def start(settings: Settings) -> AgentPayServer:
            server = started.enter_context(AgentPayServer(settings=settings))
            server.listen()
            return server

        yield start


Listening = Callable[[Settings], AgentPayServer]


def metric(server: AgentPayServer, name: str, **labels: str) -> float:
    """Read a metric, in process: no connection is needed for it."""
    with raw_client(server, "") as http:
        text = http.get("/metrics").text
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return found.get((name, tuple(sorted(labels.items()))), 0.0)


def is_healthy(base_url: str) -> bool:
    with Peer(base_url) as peer:
        return peer.send(GET_HEALTH).answer().status == 200


# --- One peer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", GET_HEALTH], ids=["at first", "on a kept connection"])
def test_a_slow_request_head_gets_408_and_the_connection_closes(listening: Listening, sent: bytes) -> None:
    server = listening(SHORT_HEAD)
    with Peer(server.base_url) as peer:
        if sent:
            assert peer.send(sent).answer().status == 200
        peer.dribble(b"GET /healthz HTTP/1.1\r\nX-Endless: " + b"x" * 100_000)
        answered = peer.answer()
        assert (answered.status, answered.json()["error"]) == (408, "request_timeout")
        assert answered.headers["connection"] == "close"
        assert answered.json()["request_id"] == answered.headers["x-request-id"]
        assert peer.rest() == b""


def test_an_idle_connection_is_closed_without_a_response(listening: Listening) -> None:
    server = listening(SHORT_IDLE)
    with Peer(server.base_url) as peer:
        assert peer.send(GET_HEALTH).answer().status == 200
        assert peer.rest() == b""
    assert metric(server, "agentpay_connections_dropped_total", reason="slow") == 0


def test_a_connection_without_a_request_is_closed_while_an_idle_one_is_kept(listening: Listening) -> None:
    server = listening(SHORT_HEAD)
    with Peer(server.base_url) as kept, Peer(server.base_url) as silent:
        assert kept.send(GET_HEALTH).answer().status == 200
        assert silent.rest() == b"", "its time is over, and without a request there is no response"
        assert kept.send(GET_HEALTH).answer().status == 200
    assert metric(server, "agentpay_connections_dropped_total", reason="slow") == 1


def post_of(length: int, key: str = "") -> bytes:
    """The head of a request to create an account."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST /v1/accounts HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    return f"{head}{authorization}\r\n".encode()


def test_a_slow_request_body_gets_408_and_the_connection_closes(listening: Listening) -> None:
    server = listening(SHORT_BODY)
    with Peer(server.base_url) as peer:
        peer.send(post_of(60_000, server.operator_key))
        peer.dribble(b" ")
        answered = peer.answer()
    assert (answered.status, answered.json()["error"]) == (408, "request_timeout")
    assert list(server.client().accounts.list()) == []


def test_the_rest_of_a_body_may_arrive_after_the_response_but_not_slowly(listening: Listening) -> None:
    with Peer(listening(Settings()).base_url) as peer:
        assert peer.send(post_of(9)).answer().status == 401
        assert peer.send(b"nine byte" + GET_HEALTH).answer().status == 200
    with Peer(listening(SHORT_BODY).base_url) as peer:
        assert peer.send(post_of(60_000)).answer().status == 401
        assert peer.dribble(b" ") == b""


@pytest.mark.parametrize("is_last", [False, True])
def test_a_peer_that_does_not_read_its_responses_is_dropped(listening: Listening, is_last: bool) -> None:
    server = listening(Settings(body_timeout_seconds=0.3))
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n"
    with Peer(server.base_url) as peer:
        peer.wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.send((ask + b"\r\n") * (19 if is_last else 100))
        if is_last:
            peer.send(ask + b"Connection: close\r\n\r\n")
        eventually(lambda: metric(server, "agentpay_connections") == 1)
        eventually(lambda: metric(server, "agentpay_connections") == 0, WAIT_SECONDS)
    assert is_last or metric(server, "agentpay_connections_dropped_total", reason="slow") == 1


def test_pipelined_requests_get_responses_in_order(listening: Listening) -> None:
    server = listening(Settings())
    with Peer(server.base_url) as peer:
        peer.send(
            GET_HEALTH
            + b"POST /v1/accounts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
            + b"GET /nowhere HTTP/1.1\r\nHost: evil.example\r\n\r\n"
            + GET_HEALTH * 50
        )
        assert [peer.answer().status for _ in range(53)] == [200, 401, 421, *[200] * 50]


def test_a_long_call_does_not_count_as_a_slow_peer(listening: Listening) -> None:
    server = listening(Settings(head_timeout_seconds=2.0, idle_timeout_seconds=2.0, body_timeout_seconds=2.0))
    server.sandbox.set_fault("http:GET /v1/accounts", effect="delay", delay_ms=2_500)
    with Peer(server.base_url) as peer:
        answered = peer.request("GET /v1/accounts", f"Authorization: Bearer {server.operator_key}")
    assert answered.status == 200


# --- Thousands of them ------------------------------------------------------------------------------------


@contextlib.contextmanager
def slow_connections(base_url: str, count: int) -> Iterator[list[socket.socket]]:
    """Hold many connections that send nothing, or half a head."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = hard if hard != resource.RLIM_INFINITY else max(soft, count + 1_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    held: list[socket.socket] = []
    try:
        for number in range(min(count, raised - 1_000)):
            held.append(Peer(base_url).wire)
            if number % 2:
                with contextlib.suppress(ConnectionError):
                    held[-1].send(b"GET /healthz HTTP/1.1\r\nHost: loc")
        yield held
    finally:
        for wire in held:
            wire.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.deep)])
def test_many_slow_connections_do_not_block_others(
    listening: Listening, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    limit = 100
    server = listening(Settings(max_connections=limit))
    client = AgentPay(api_key=server.operator_key, base_url=server.base_url)
    with caplog.at_level(logging.WARNING), client:
        with slow_connections(server.base_url, count):
            for number in range(20):
                assert is_healthy(server.base_url)
                assert client.accounts.create(name=f"n{number}").account_id
            assert metric(server, "agentpay_connections") <= limit
            assert (
                metric(server, "agentpay_connections_dropped_total", reason="crowded")
                >= min(count, 2_000) - limit
            )
        assert is_healthy(server.base_url)
    (line,) = [record for record in caplog.records if record.name.startswith("agentpay_server")]
    assert "connections.full reason=max_connections" in line.getMessage()
    assert "asyncio" not in {record.name for record in caplog.records}


def test_the_longest_idle_connection_is_closed_for_a_new_one(listening: Listening) -> None:
    server = listening(Settings(max_connections=3))
    with Peer(server.base_url) as first, Peer(server.base_url) as second, Peer(server.base_url) as third:
        for peer in (first, second, third, first):
            assert peer.send(GET_HEALTH).answer().status == 200
        with Peer(server.base_url) as fourth:
            assert fourth.send(GET_HEALTH).answer().status == 200
            assert second.rest() == b""
            for peer in (first, third, fourth):
                assert peer.send(GET_HEALTH).answer().status == 200


def test_requests_in_service_are_never_dropped(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    server = listening(Settings(max_connections=4, settlement_wait_seconds=FOR_EVER))
    other = server.sandbox.create_operator("other")
    keys = [server.operator_key] * 3 + [other.key]
    payments = [payment(server, key, number) for number, key in enumerate(keys)]
    server.sandbox.set_fault("chain_never_lands")
    with ExitStack() as open_ones, caplog.at_level(logging.WARNING):
        served = [open_ones.enter_context(Peer(server.base_url)).send(request) for request in payments]
        eventually(lambda: submitted(server) == 4, WAIT_SECONDS)
        newcomer = open_ones.enter_context(Peer(server.base_url)).send(GET_HEALTH)
        eventually(lambda: "connections.full" in caplog.text, WAIT_SECONDS)
        assert metric(server, "agentpay_connections") == 4
        newcomer.wire.setblocking(False)
        with pytest.raises(BlockingIOError):
            newcomer.wire.recv(1)
        newcomer.wire.settimeout(WAIT_SECONDS)

        server.sandbox.clear_faults()

        assert [peer.answer().json()["status"] for peer in served] == ["settled"] * 4
        assert newcomer.answer().status == 200


def test_slow_bodies_hold_no_place_of_work_and_are_bounded_for_each_key(listening: Listening) -> None:
    server = listening(Settings(max_connections=40, body_timeout_seconds=FOR_EVER))
    account_id = server.client().accounts.create(name="a").account_id
    agent = server.agent_keys.create(account_id).key
    head = f"POST /v1/transfers HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {agent}\r\n"
    slow = f"{head}Content-Length: 100\r\n\r\n{{".encode()
    pause = f"PUT /v1/accounts/{account_id}/policy"
    operator = f"Authorization: Bearer {server.operator_key}"
    with ExitStack() as open_ones:
        for _ in range(30):
            open_ones.enter_context(Peer(server.base_url)).send(slow)
        refused = {"method": "POST", "route": "/v1/transfers", "status": "429"}
        # The others still wait for their bodies.
        eventually(lambda: metric(server, "agentpay_requests_total", **refused) == 15, WAIT_SECONDS)
        with Peer(server.base_url) as peer:
            answered = peer.request(pause, operator, "Content-Length: 15", body=b'{"paused":true}')
        assert (answered.status, answered.json()["paused"]) == (200, True)


@pytest.mark.parametrize("are_agents", [True, False])
def test_neither_one_operator_nor_its_agents_can_occupy_every_connection(
    listening: Listening, are_agents: bool
) -> None:
    count = 4 if are_agents else 3
    server = listening(Settings(max_connections=8 if are_agents else 4, settlement_wait_seconds=FOR_EVER))
    other = server.operator_key if are_agents else server.sandbox.create_operator("other").key
    payments = [
        payment(server, server.operator_key, number, as_agent=are_agents) for number in range(count + 1)
    ]
    server.sandbox.set_fault("chain_never_lands")
    with ExitStack() as open_ones:
        served = [open_ones.enter_context(Peer(server.base_url)).send(request) for request in payments[:-1]]
        eventually(lambda: submitted(server) == count, WAIT_SECONDS)
        with Peer(server.base_url) as peer:
            refused = peer.send(payments[-1]).answer()
            assert (refused.status, refused.json()["error"]) == (429, "rate_limited")
            assert refused.headers["retry-after"] == "1"
            assert ("agent keys have 4 requests" in refused.json()["message"]) is are_agents
            assert peer.request("GET /v1/accounts", f"Authorization: Bearer {other}").status == 200
            assert peer.send(GET_HEALTH).answer().status == 200

            server.sandbox.clear_faults()

            assert [one.answer().status for one in served] == [200] * count
            assert peer.send(payments[-1]).answer().status == 200


def payment(server: AgentPayServer, key: str, number: int, *, as_agent: bool = False) -> bytes:
    """Return a request for a transfer that can be made."""
    client = server.client(api_key=key)
    payer, payee = (client.accounts.create(name=name).account_id for name in "ab")
    with raw_client(server, key) as http:
        assert http.post(f"/ext/v1/sandbox/accounts/{payer}/fund", json={"amount": "5"}).status_code == 200
    if as_agent:
        key = server.agent_keys.create(payer).key
    body = f'{{"from":"{payer}","to":"{payee}","amount":"1","idempotency_key":"k{number}"}}'
    head = f"POST /v1/transfers HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def submitted(server: AgentPayServer) -> float:
    return metric(server, "agentpay_queue_depth", queue="transfers_submitted")


# --- File descriptors -------------------------------------------------------------------------------------

CHILD = """
import logging, os, resource, sys
from agentpay_server import AgentPayServer
logging.basicConfig(level=logging.WARNING)
held, is_limited = [], False
with AgentPayServer() as server:
    print(server.listen(), flush=True)
    for line in sys.stdin:
        if line == "hold\\n":
            if not is_limited:
                resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20,) * 2)
                is_limited = True
            try:
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
        elif line == "release\\n":
            while held:
                os.close(held.pop())
        print(line, end="", flush=True)
"""


class Child:
    """A server in a separate process that uses up its file descriptors on request."""

    def __init__(self) -> None:
        theirs, ours = os.pipe()
        self.process = LoadedPython("-c", CHILD, stdin=theirs)
        os.close(theirs)
        self.orders = os.fdopen(ours, "w")
        assert self.process.stdout is not None
        self.base_url = self.process.stdout.readline().strip()

    def told(self, word: str) -> None:
        assert self.process.stdout is not None
        print(word, file=self.orders, flush=True)
        assert self.process.stdout.readline() == f"{word}\n"

    def next_line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def end(self) -> str:
        """End it, and return what it still had to say."""
        self.orders.close()
        return self.process.communicate(timeout=WAIT_SECONDS)[1]


@pytest.fixture
def child() -> Iterator[Child]:
    running = Child()
    with running.process as process, running.orders:
        try:
            yield running
        finally:
            process.kill()


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="it counts descriptors there")


@needs_proc
def test_without_file_descriptors_a_port_pauses_closes_idle_connections_and_logs_it_once(
    child: Child,
) -> None:
    child.told("hold")
    with ExitStack() as open_ones:
        waiting = [open_ones.enter_context(Peer(child.base_url)).send(GET_HEALTH) for _ in range(30)]
        assert "connections.full reason=" in child.next_line()
        child.told("release")
        assert [peer.answer().status for peer in waiting] == [200] * 30
    with ExitStack() as open_ones:
        idle = [open_ones.enter_context(Peer(child.base_url)) for _ in range(3)]
        for peer in idle:
            assert peer.send(GET_HEALTH).answer().status == 200
        child.told("hold")
        for _ in idle:
            assert is_healthy(child.base_url)
        assert idle[0].rest() == b"", "the longest idle one was closed"
    assert child.end() == ""


SERVE_WITH_FEW = """
import resource
from agentpay_server.cli import main
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
main(["serve", "--port", "0"])
"""


def test_a_process_with_few_descriptors_serves_under_many_slow_connections() -> None:
    with LoadedPython("-c", SERVE_WITH_FEW) as process:
        try:
            base_url = next_json(process)["base_url"]
            with slow_connections(base_url, 300):
                for _ in range(10):
                    assert is_healthy(base_url)
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=WAIT_SECONDS)[1]
        finally:
            process.kill()
    assert '"event":"connections.limited","limit":64,"max_connections":1000' in said
    assert said.count("connections.full") == 1
    assert "Traceback" not in said
