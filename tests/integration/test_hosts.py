"""`Host` on a port: a web page cannot reach a local server under its own host name (interface R19)."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from command_line import next_json, processing
from peers import Answered, Peer
from server_world import raw_client

from agentpay_server import AgentPayServer


@pytest.fixture(scope="module")
def local() -> Iterator[AgentPayServer]:
    with AgentPayServer() as server:
        server.listen(allowed_hosts=["Pay.Example", "2001:db8::7"])
        yield server


def ask(base_url: str, host: str | None, line: str = "GET /healthz HTTP/1.1", *headers: str) -> Answered:
    with Peer(base_url) as peer:
        named = [] if host is None else [f"Host: {host}"]
        return peer.send("\r\n".join((line, *named, *headers, "", "")).encode("latin-1")).answer()


def is_misdirected(answered: Answered, host: str) -> bool:
    if answered.status != 421:
        return False
    body = answered.json()
    assert set(body) == {"error", "message", "request_id"}
    assert body["error"] == "misdirected_request"
    assert f"for the host {host}" in body["message"]
    assert f"--allowed-host {host}" in body["message"]
    assert body["request_id"] == answered.headers["x-request-id"]
    assert answered.headers["content-type"] == "application/json"
    return True


UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


def test_a_websocket_for_another_host_is_refused_as_any_request() -> None:
    with AgentPayServer() as server:
        base_url, path = server.rpc_url.rsplit("/ext/v1/sandbox", 1)
        line = f"GET /ext/v1/sandbox{path} HTTP/1.1"
        assert ask(base_url, "evil.example", line, *UPGRADE).status == 421
        with Peer(base_url) as peer:
            head = "\r\n".join((line, "Host: localhost", *UPGRADE, "", ""))
            peer.send(head.encode("latin-1"))
            assert peer.wire.recv(65536).startswith(b"HTTP/1.1 101 ")


def test_a_local_port_accepts_loopback_and_allowed_hosts_and_no_others(local: AgentPayServer) -> None:
    """`unit/http/test_http_hosts.py` has more spellings of each."""
    for host in (
        "localhost:1",
        "x.localhost",
        "127.1.2.3:80",
        "[::1]:80",
        "PAY.example.:443",
        "[2001:DB8::7]",
    ):
        assert ask(local.base_url, host).status == 200
    for host, shown in (
        ("evil.example:8402", "evil.example"),
        ("192.168.0.1", "192.168.0.1"),
        ("[::]", "::"),
    ):
        assert is_misdirected(ask(local.base_url, host), shown)
    # HTTP/1.0 needs no host, but one that is sent is checked.
    assert ask(local.base_url, None, "GET /healthz HTTP/1.0").status == 200
    assert is_misdirected(ask(local.base_url, "evil.example", "GET /healthz HTTP/1.0"), "evil.example")
    with raw_client(local) as in_process:
        assert in_process.get("/v1/accounts", headers={"Host": "evil.example"}).status_code == 200


@pytest.mark.parametrize("host", ["", "localhost:x", "user@localhost", "é"])
def test_an_invalid_host_is_an_invalid_request(local: AgentPayServer, host: str) -> None:
    answered = ask(local.base_url, host)
    assert (answered.status, answered.json()["error"]) == (400, "invalid_request")
    assert answered.json()["details"][0]["field"] in ("host", "request")
    assert answered.json()["request_id"] == answered.headers["x-request-id"]


def test_http_1_1_needs_exactly_one_host(local: AgentPayServer) -> None:
    for answered in (
        ask(local.base_url, None),
        ask(local.base_url, "localhost", "GET /healthz HTTP/1.1", "Host: localhost"),
        ask(local.base_url, "localhost", "GET /healthz HTTP/1.1", "Host: evil.example"),
        ask(local.base_url, "localhost", "GET /healthz HTTP/1.0", "Host: localhost"),
    ):
        assert (answered.status, answered.json()["error"]) == (400, "invalid_request")
        assert answered.json()["request_id"] == answered.headers["x-request-id"]


@pytest.mark.parametrize(
    "line",
    [
        *["GET /healthz", "GET /metrics", "GET /openapi.json", "GET /nowhere"],
        *["PATCH /v1/accounts", "POST /v1/accounts", "OPTIONS *", "BREW /healthz"],
    ],
)
def test_the_host_is_checked_first(local: AgentPayServer, line: str) -> None:
    answered = ask(local.base_url, "evil.example", f"{line} HTTP/1.1", "Content-Length: 999999")
    if answered.status != 400:  # A parser may know fewer methods.
        assert is_misdirected(answered, "evil.example")


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/healthz", "localhost", 200),
        ("http://localhost:9/healthz", "evil.example", 200),
        ("HTTPS://[::1]/healthz", "localhost", 200),
        ("http://pay.example/healthz", "localhost", 200),
        ("http://localhost/v1/accounts?limit=1", "localhost", 200),
        ("http://localhost/v1/accounts?limit=0", "localhost", 400),
        ("http://localhost", "localhost", 303),
        ("http://localhost?limit=1", "localhost", 303),
        ("http://localhost/v1%2faccounts", "localhost", 404),
        ("http://evil.example/healthz", "localhost", 421),
        ("http://user@localhost/healthz", "localhost", 400),
        ("http:///healthz", "localhost", 400),
        ("http://localhost:x/healthz", "localhost", 400),
        ("ftp://localhost/healthz", "localhost", 400),
        ("localhost/healthz", "localhost", 400),
        ("healthz", "localhost", 400),
    ],
)
def test_the_authority_of_an_absolute_target_is_checked(
    local: AgentPayServer, target: str, host: str, status: int
) -> None:
    key = f"Authorization: Bearer {local.operator_key}"
    answered = ask(local.base_url, host, f"GET {target} HTTP/1.1", key)
    assert answered.status == status
    if status == 200:
        assert answered.json() in ({"status": "ok"}, {"data": [], "cursor": "", "has_more": False})


def test_an_invalid_allowed_host_prevents_listening(server: AgentPayServer) -> None:
    with pytest.raises(ValueError, match="'https://x' is not a host"):
        server.listen(allowed_hosts=["https://x"])
    # Without any, there are the names of loopback.
    assert statuses(server.listen(), *HOSTS) == [200, 200, 421, 421, 421]


# --- The command line -------------------------------------------------------------------------------------


@contextmanager
def serving(*options: str) -> Iterator[str]:
    with processing("serve", "--port", "0", *options) as process:
        yield next_json(process)["base_url"]


def statuses(base_url: str, *hosts: str) -> list[int]:
    reached = base_url.replace("0.0.0.0", "127.0.0.1")
    return [ask(reached, host).status for host in hosts]


HOSTS = ("localhost", "127.0.0.1", "pay.example:443", "10.0.0.7", "evil.example")


@pytest.fixture(scope="module")
def key() -> str:
    """An operator key, as one that was made elsewhere."""
    with AgentPayServer() as server:
        return server.operator_key


def test_a_public_port_accepts_every_host(key: str) -> None:
    with serving("--host", "0.0.0.0", "--allow-remote", "--operator-key", key) as base_url:
        assert statuses(base_url, *HOSTS) == [200] * 5


def test_a_public_port_accepts_only_allowed_hosts(key: str) -> None:
    remote = ("--host", "0.0.0.0", "--allow-remote", "--operator-key", key)
    with serving(*remote, "--allowed-host", "Pay.Example", "--allowed-host", "10.0.0.7") as base_url:
        assert statuses(base_url, *HOSTS) == [421, 421, 200, 200, 421]


# --- Writes from pages


def write(base_url: str, *headers: str) -> Answered:
    """Return the response to a write without a key, which is 401 if the host is accepted."""
    host = base_url.removeprefix("http://")
    with Peer(base_url) as peer:
        lines = ("POST /v1/accounts HTTP/1.1", f"Host: {host}", "Content-Length: 0", *headers, "", "")
        return peer.send("\r\n".join(lines).encode("latin-1")).answer()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Origin: {base_url}"],
        ["Sec-Fetch-Site: same-origin", "Origin: {base_url}"],
        # A proxy that ends TLS: the browser's own word counts.
        ["Sec-Fetch-Site: same-origin", "Origin: https://pay.example"],
        ["Sec-Fetch-Site: none"],
    ],
)
def test_programs_and_same_origin_pages_may_write(local: AgentPayServer, headers: list[str]) -> None:
    answered = write(local.base_url, *(header.format(base_url=local.base_url) for header in headers))
    assert answered.status == 401


@pytest.mark.parametrize(
    "headers",
    [
        ["Origin: https://evil.example"],
        ["Origin: http://localhost:1"],
        ["Origin: null"],
        ["Origin: "],
        ["Sec-Fetch-Site: cross-site", "Origin: {base_url}"],
        ["Sec-Fetch-Site: same-site"],
        ["Sec-Fetch-Site: "],
    ],
)
def test_pages_of_other_origins_may_not_write(local: AgentPayServer, headers: list[str]) -> None:
    answered = write(local.base_url, *(header.format(base_url=local.base_url) for header in headers))
    assert (answered.status, answered.json()["error"]) == (403, "forbidden")
    assert not any(name.lower().startswith("access-control") for name in answered.headers)
