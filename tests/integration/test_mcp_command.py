"""`agentpay-mcp` in the process of the test: its options, its checks of the key, and how it ends."""

import asyncio
import io
import json
import re
import socket
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from receivers import Receiver, answer

from agentpay import Identity, __version__, testing
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


OPERATOR = testing.make(Identity, kind="operator", account_id=None)
PLAIN_HTTP = "plain http to another machine"
INVALID: list[tuple[list[str], dict[str, str], str]] = [
    ([], {"AGENTPAY_API_KEY": ""}, "no API key"),
    ([], {"AGENTPAY_API_KEY": "ap_operator_x"}, "agent-scoped key"),
    ([], {"AGENTPAY_API_KEY": "ap_console_x"}, "agent-scoped key"),
    ([], {"AGENTPAY_API_KEY": AGENT_KEY}, "the service refuses AGENTPAY_API_KEY"),
    ([], {"AGENTPAY_BASE_URL": ""}, "no base URL"),
    # The client would only warn, on a standard error that nobody reads.
    ([], {"AGENTPAY_BASE_URL": "http://pay.example.com"}, f"http://pay.example.com, {PLAIN_HTTP}"),
    ([], {"AGENTPAY_BASE_URL": "http://192.0.2.1:8402"}, f"http://192.0.2.1:8402, {PLAIN_HTTP}"),
    ([], {"AGENTPAY_BASE_URL": "http://10.0.0.5"}, f"http://10.0.0.5, {PLAIN_HTTP}"),
    (["--allow-private-origin", "not an origin"], {}, "origin"),
    ([], {"AGENTPAY_MCP_PRIVATE_ORIGINS": "http://127.0.0.1:8000, ftp://a"}, "origin"),
    (["--http", "--port", "0"], {"AGENTPAY_MCP_TOKEN": "short"}, "at least 16 ASCII characters"),
    (
        [],
        {"AGENTPAY_BASE_URL": "https://pay.example.com", "HTTPS_PROXY": "ftp://a"},
        "HTTPS_PROXY cannot be used",
    ),
]


@pytest.mark.parametrize(("arguments", "variables", "words"), INVALID)
def test_an_invalid_configuration_exits_with_2_and_one_sentence(
    server: AgentPayServer,
    agent_key: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variables: dict[str, str],
    words: str,
) -> None:
    monkeypatch.setattr("agentpay.mcp.command.START_SECONDS", 0.5 if PLAIN_HTTP in words else 30)
    valid = {"AGENTPAY_BASE_URL": server.base_url, "AGENTPAY_API_KEY": agent_key}
    for name, value in {**valid, **variables}.items():
        monkeypatch.setenv(name, value)
    code, sentence = ended(capsys, *arguments)
    assert code == 2
    assert words in sentence


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (answer(200, "Content-Type: application/json\r\n", OPERATOR.to_json().encode()), "agent-scoped key"),
        (answer(404, "", b'"no such page"'), "GET /ext/v1/whoami"),
    ],
)
def test_a_key_of_another_form_that_is_no_agents_or_not_identified_exits_with_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reply: bytes, words: str
) -> None:
    with Receiver() as service:
        service.default = reply
        monkeypatch.setenv("AGENTPAY_BASE_URL", f"http://{service.host}:{service.port}")
        monkeypatch.setenv("AGENTPAY_API_KEY", "key-of-another-service")
        code, sentence = ended(capsys)
    assert code == 2
    assert words in sentence


@pytest.mark.parametrize("is_up", [True, False])
def test_it_serves_until_the_host_closes_the_connection_also_before_the_service_responds(
    server: AgentPayServer,
    agent_key: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_up: bool,
) -> None:
    """A host starts its tools at login; a service that is not there yet is asked again by the first call."""
    monkeypatch.setattr("agentpay.mcp.command.START_SECONDS", 30 if is_up else 0.5)
    if is_up:
        monkeypatch.setenv("AGENTPAY_BASE_URL", server.base_url)
    monkeypatch.setenv("AGENTPAY_API_KEY", agent_key)
    main([])
    assert ("the service does not respond yet" in caplog.text) is not is_up
    assert [request.path for request in server.requests].count("/ext/v1/whoami") == is_up


def test_a_missing_extra_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    code, said = ended(capsys)
    assert code == 1
    assert re.fullmatch(r"mcp is not installed: pip install .*\[mcp\]'?", said)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["--version"], 0, f"agentpay-mcp, version {__version__}\n"),
        (["--http", "--port", "65536"], 2, "argument --port: "),
        (["--http", "--port", "-1"], 2, "argument --port: "),
        (["--http", "--port", "x"], 2, "argument --port: "),
        # It would listen on every address.
        (["--http", "--host", ""], 2, "argument --host: must not be empty"),
    ],
)
def test_an_argument_that_cannot_be_parsed_exits_with_2(
    arguments: list[str], exit_code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == exit_code
    assert said in "".join(capsys.readouterr())


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
