"""`agentpay-mcp` in the process of the test: its options, its checks of the key, and how it ends."""

import asyncio
import io
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agentpay import __version__
from agentpay.mcp.__main__ import main
from agentpay_server import AgentPayServer

AGENT_KEY = "ap_agent_" + "x" * 49
TOKEN = "a-token-of-32-characters-or-more"


@pytest.fixture
def server() -> Iterator[AgentPayServer]:
    with AgentPayServer() as running:
        running.listen()
        yield running


@pytest.fixture
def agent_key(server: AgentPayServer) -> str:
    account = server.client().accounts.create(name="Model")
    return server.agent_keys.create(account.account_id).key


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set variables that no service has, and a host that has closed the connection already."""
    for name in ("AGENTPAY_MCP_TOKEN", "AGENTPAY_MCP_PRIVATE_ORIGINS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENTPAY_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AGENTPAY_API_KEY", AGENT_KEY)
    # The MCP SDK wraps the buffers of both, and closes them with its wrappers.
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(io.BytesIO()))


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run the command, which must exit; return its code and its one sentence on standard error."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert isinstance(exit_.value.code, int)
    output = capsys.readouterr()
    assert output.out == ""
    (sentence,) = output.err.splitlines()
    return exit_.value.code, sentence.removeprefix("agentpay-mcp: ")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"agentpay-mcp, version {__version__}\n"


@pytest.mark.parametrize("key", ["ap_operator_x", "ap_console_x"])
def test_an_operator_key_exits_with_2_before_any_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("AGENTPAY_API_KEY", key)
    code, sentence = ended(capsys)
    assert code == 2
    assert "agent-scoped key" in sentence


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        ([], {"AGENTPAY_API_KEY": ""}, "no API key"),
        ([], {"AGENTPAY_BASE_URL": ""}, "no base URL"),
        (["--allow-private-origin", "not an origin"], {}, "origin"),
        ([], {"AGENTPAY_MCP_PRIVATE_ORIGINS": "http://127.0.0.1:8000, ftp://a"}, "origin"),
        (["--http", "--port", "0"], {"AGENTPAY_MCP_TOKEN": "short"}, "at least 16 ASCII characters"),
        (
            [],
            {"AGENTPAY_BASE_URL": "https://pay.example.com", "HTTPS_PROXY": "ftp://a"},
            "HTTPS_PROXY cannot be used",
        ),
    ],
)
def test_an_invalid_configuration_exits_with_2_and_one_sentence(
    server: AgentPayServer,
    agent_key: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variables: dict[str, str],
    words: str,
) -> None:
    valid = {"AGENTPAY_BASE_URL": server.base_url, "AGENTPAY_API_KEY": agent_key}
    for name, value in {**valid, **variables}.items():
        monkeypatch.setenv(name, value)
    code, sentence = ended(capsys, *arguments)
    assert code == 2
    assert words in sentence


@pytest.mark.parametrize("address", ["http://pay.example.com", "http://192.0.2.1:8402", "http://10.0.0.5"])
def test_plain_http_to_another_machine_exits_with_2_before_any_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """The client would only warn, on a standard error that nobody reads."""
    monkeypatch.setenv("AGENTPAY_BASE_URL", address)
    monkeypatch.setattr("agentpay.mcp.command.START_SECONDS", 0.5)
    code, sentence = ended(capsys)
    assert code == 2
    assert f"AGENTPAY_BASE_URL is {address}, plain http to another machine" in sentence
    assert "https" in sentence


def test_a_key_that_the_service_refuses_exits_with_2(
    server: AgentPayServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTPAY_BASE_URL", server.base_url)
    code, sentence = ended(capsys)
    assert code == 2
    assert "the service refuses AGENTPAY_API_KEY" in sentence


def test_an_operator_key_without_the_usual_prefix_exits_with_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, other_service: str
) -> None:
    monkeypatch.setenv("AGENTPAY_BASE_URL", other_service)
    monkeypatch.setenv("AGENTPAY_API_KEY", "key-of-another-service")
    code, sentence = ended(capsys)
    assert code == 2
    assert "agent-scoped key" in sentence


class _OtherService(BaseHTTPRequestHandler):
    """A service whose keys look different, or which has no `GET /ext/v1/whoami`."""

    identity: ClassVar[dict[str, Any] | None] = None

    def do_GET(self) -> None:
        body = json.dumps(self.identity or "no such page").encode()
        self.send_response(200 if self.identity else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Write nothing."""


@pytest.fixture
def other_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    identity = {
        "key_id": "key_1",
        "kind": "operator",
        "operator_id": "op_1",
        "account_id": None,
        "cluster": "embedded",
        "is_test_money": True,
        "expires_at": None,
        "max_total_usdc": None,
        "spent_total_usdc": None,
    }
    monkeypatch.setattr(_OtherService, "identity", identity)
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherService) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{service.server_port}"
        service.shutdown()


def test_a_service_that_cannot_identify_the_key_exits_with_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, other_service: str
) -> None:
    monkeypatch.setattr(_OtherService, "identity", None)
    monkeypatch.setenv("AGENTPAY_BASE_URL", other_service)
    code, sentence = ended(capsys)
    assert code == 2
    assert "GET /ext/v1/whoami" in sentence


def test_it_serves_until_the_host_closes_the_connection(
    server: AgentPayServer, agent_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTPAY_BASE_URL", server.base_url)
    monkeypatch.setenv("AGENTPAY_API_KEY", agent_key)
    main([])
    assert [request.path for request in server.requests][-1] == "/ext/v1/whoami"


def test_the_server_starts_while_the_service_does_not_respond(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentpay.mcp.command.START_SECONDS", 0.5)
    main([])
    assert "the service does not respond yet" in caplog.text


def test_a_missing_extra_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    code, said = ended(capsys)
    assert code == 1
    assert re.fullmatch(r"mcp is not installed: pip install .*\[mcp\]'?", said)


@pytest.mark.parametrize("port", ["65536", "-1", "x"])
def test_an_invalid_port_exits_with_2(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--http", "--port", port])
    assert end.value.code == 2
    assert "argument --port: " in capsys.readouterr().err


def test_an_empty_host_exits_with_2_instead_of_listening_on_every_address(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--http", "--host", ""])
    assert end.value.code == 2
    assert "argument --host: must not be empty" in capsys.readouterr().err


def test_a_port_in_use_exits_with_1(
    server: AgentPayServer,
    agent_key: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTPAY_BASE_URL", server.base_url)
    monkeypatch.setenv("AGENTPAY_API_KEY", agent_key)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, sentence = ended(capsys, "--http", "--port", str(port))
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in sentence


@pytest.mark.usefixtures("uvicorn_logs")
@pytest.mark.parametrize("given", [None, TOKEN])
def test_it_serves_http_with_the_token_that_is_given_or_printed(
    server: AgentPayServer,
    agent_key: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
) -> None:
    monkeypatch.setenv("AGENTPAY_BASE_URL", server.base_url)
    monkeypatch.setenv("AGENTPAY_API_KEY", agent_key)
    if given is not None:
        monkeypatch.setenv("AGENTPAY_MCP_TOKEN", given)
    told: dict[str, Any] = {}

    class Once(uvicorn.Server):
        """Serves one model, then ends as after a signal."""

        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            serving = asyncio.ensure_future(super().serve(sockets))
            told.update(json.loads(capsys.readouterr().out))
            token = told["token"] or given
            async with (
                httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
                Client(streamable_http_client(told["url"], http_client=http)) as model,
            ):
                result: Any = await model.call_tool("get_budget", {})
                told["budget"] = result.structured_content
            self.should_exit = True
            await serving

    monkeypatch.setattr(uvicorn, "Server", Once)
    main(["--http", "--port", "0"])
    assert told["token"] is None if given else len(told["token"]) >= 32
    assert told["budget"]["balance_usdc"] == "0.000000"
