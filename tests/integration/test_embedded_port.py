"""A server in process over a port, and as an ASGI application."""

import httpx
import pytest
from ports import steady_port

from agentpay import AgentPay
from agentpay_server import AgentPayServer, CannotListenError

# --- A port -----------------------------------------------------------------------------------------------


def test_a_port_serves_the_same_state_as_in_process_clients(server: AgentPayServer, client: AgentPay):
    account = client.accounts.create(name="a")

    base_url = server.listen()

    assert server.base_url == base_url
    assert base_url.startswith("http://127.0.0.1:")
    headers = {"Authorization": f"Bearer {server.operator_key}"}
    answer = httpx.get(f"{base_url}/v1/accounts/{account.account_id}", headers=headers)
    assert answer.status_code == 200
    assert answer.json()["account_id"] == account.account_id
    assert answer.headers["x-request-id"].startswith("req_")
    with AgentPay(api_key=server.operator_key, base_url=base_url) as over_a_port:
        assert over_a_port.accounts.create(name="b").name == "b"
    assert len(client.accounts.list().data) == 2
    assert base_url in repr(server)


def test_a_server_listens_once_and_releases_the_port():
    port = steady_port()
    with AgentPayServer() as server:
        base_url = server.listen(port=port)
        with pytest.raises(RuntimeError, match="already listening"):
            server.listen()
    with pytest.raises(httpx.ConnectError):
        httpx.get(base_url)
    with AgentPayServer() as server:
        assert server.listen(port=port) == base_url


def test_a_port_that_is_taken_is_a_declared_error(server: AgentPayServer):
    port = int(server.listen().rpartition(":")[2])

    with AgentPayServer() as other:
        with pytest.raises(
            CannotListenError, match=f"^cannot listen on 127.0.0.1 port {port}: .*in use; pass"
        ):
            other.listen(port=port)
        assert other.client().accounts.create(name="a").name == "a"
        assert other.listen() != server.base_url


@pytest.mark.parametrize("port", [-1, 65536])
def test_an_invalid_port_is_a_declared_error(server: AgentPayServer, port: int):
    with pytest.raises(ValueError, match=f"port must be between 0 and 65535, not {port}"):
        server.listen(port=port)
    assert server.listen()


def test_errors_over_a_port_equal_errors_in_process(server: AgentPayServer):
    base_url = server.listen()
    headers = {"Authorization": f"Bearer {server.operator_key}"}
    key = headers["Authorization"]

    def chunks():
        yield from [b" " * 1024] * 65

    with (
        httpx.Client(base_url=base_url) as anonymous,
        httpx.Client(base_url=base_url, headers=headers) as http,
    ):
        expected = [
            (401, anonymous.get("/v1/accounts")),
            (401, anonymous.get("/v1/accounts", headers=[("Authorization", key)] * 2)),
            (404, http.get("/nowhere")),
            (404, http.get("/v1/accounts/%ff")),
            (405, http.delete("/v1/accounts")),
            (413, http.post("/v1/accounts", content=chunks())),
            (400, http.post("/v1/accounts", content=b"{")),
            (400, http.get("/v1/accounts?cursor=%ff")),
        ]
        for status, answer in expected:
            assert answer.status_code == status
            assert answer.headers["x-request-id"].startswith("req_")
            assert answer.json()["request_id"] == answer.headers["x-request-id"]
        assert http.get("/v1/accounts").json() == {"data": [], "cursor": "", "has_more": False}


# --- As an ASGI application -------------------------------------------------------------------------------


def asgi(server, scope, *received):
    """The messages that the application sends."""
    messages, sent = list(received), []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    world = server._running
    world._owner.call(world._app(scope, receive, send))
    return sent


def test_the_application_supports_the_asgi_lifespan(server: AgentPayServer):
    sent = asgi(server, {"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})

    assert sent == [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]


def test_a_websocket_is_refused(server: AgentPayServer):
    assert asgi(server, {"type": "websocket", "path": "/v1/accounts"}) == [
        {"type": "websocket.close", "code": 1000}
    ]


@pytest.mark.parametrize(
    ("method", "path", "part"),
    [
        ("POST", "/v1/accounts", b'{"name":"whole, but the caller says there is more"}'),
        ("POST", "/v1/accounts", b'{"na'),
        ("POST", "/ext/v1/sandbox/token-accounts", b""),
    ],
)
def test_an_incomplete_request_is_discarded(server: AgentPayServer, method: str, path: str, part: bytes):
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {server.operator_key}".encode())],
    }
    entries = [entry.action for entry in server.console.audit_log.list()]

    sent = asgi(
        server,
        scope,
        {"type": "http.request", "body": part, "more_body": True},
        {"type": "http.disconnect"},
    )

    assert sent == []
    assert [entry.action for entry in server.console.audit_log.list()] == entries
