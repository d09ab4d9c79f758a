"""The MCP server, driven by the official client over stdio and HTTP, in both protocol eras."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx2
import mcp_types as types
import pytest
from attrs import frozen
from command_line import WAIT_SECONDS
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from server_world import START

from agentpay import Budget
from agentpay.mcp import server as mcp_server
from agentpay.tools import TOOLS, AsyncAgentTools
from agentpay.tools.results import (
    CheckResult,
    FetchResult,
    ListedPayment,
    PaymentList,
    PaymentResult,
    SessionResult,
    UntrustedContent,
)
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall

pytestmark = pytest.mark.anyio

TOKEN = "a-token-of-32-characters-or-more"
ERAS = {"legacy": LATEST_HANDSHAKE_VERSION, "auto": LATEST_MODERN_VERSION}

HINTS = {
    "get_budget": (True, False, True, False),
    "check_payment": (True, False, True, False),
    "pay": (False, True, True, True),
    "get_payment": (True, False, True, False),
    "list_payments": (True, False, True, False),
    "fetch_paid": (False, True, False, True),
    "call_paid_tool": (False, True, False, True),
    "close_session": (False, True, True, True),
}
"""Read-only, destructive, idempotent, open world."""


@frozen
class Place:
    """A service on a port, an account with an agent's key, and a payee."""

    server: AgentPayServer
    payer: str
    payee: str
    key: str
    paywall: str

    @property
    def env(self) -> dict[str, str]:
        return {
            "AGENTPAY_BASE_URL": self.server.base_url,
            "AGENTPAY_API_KEY": self.key,
            "AGENTPAY_MCP_PRIVATE_ORIGINS": self.paywall,
        }


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with AgentPayServer(clock=START) as server, Paywall(server, {"/page": "0.1"}) as paywall:
        server.listen()
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
        server.sandbox.fund(payer, 100)
        client.policies.update(payer, max_single_transfer=10, escalation_threshold=5)
        key = server.agent_keys.create(payer).key
        yield Place(server, payer, payee, key, paywall.listen())


def command(*arguments: str, env: dict[str, str]) -> dict[str, Any]:
    """Starts a program in this environment, without the caller's AGENTPAY_ variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENTPAY")}
    return {"args": [sys.executable, "-m", "agentpay.mcp", *arguments], "env": {**inherited, **env}}


@pytest.fixture(scope="module")
def over_http(place: Place) -> Iterator[str]:
    """The address of the tools over HTTP."""
    started = command("--http", "--port", "0", env={**place.env, "AGENTPAY_MCP_TOKEN": TOKEN})
    with subprocess.Popen(**started, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["token"] is None
        yield told["url"]
        process.terminate()


@asynccontextmanager
async def connected(
    place: Place, url: str, transport: str, mode: str, **options: Any
) -> AsyncIterator[Client]:
    if transport == "stdio":
        program = StdioServerParameters(command=sys.executable, args=["-m", "agentpay.mcp"], env=place.env)
        async with Client(program, mode=mode, **options) as client:
            yield client
        return
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client,
    ):
        yield client


async def called(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool, which must not fail, and return its structured result, which its text repeats."""
    result = await client.call_tool(name, arguments)
    assert isinstance(result, types.CallToolResult)
    assert not result.is_error, result
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    assert json.loads(block.text) == result.structured_content
    return dict(result.structured_content)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_every_tool_is_listed_and_called(
    place: Place, over_http: str, transport: str, mode: str
) -> None:
    prefix = f"{transport}-{mode}"
    asked: list[types.ElicitRequestURLParams] = []

    async def show(_context: Any, params: Any) -> types.ElicitResult:
        asked.append(params)
        return types.ElicitResult(action="accept")

    async with connected(place, over_http, transport, mode, elicitation_callback=show) as client:
        assert client.session.protocol_version == ERAS[mode]
        listing = await client.list_tools()
        assert {tool.name for tool in listing.tools} == TOOLS.keys()

        assert (await called(client, "get_budget"))["account_id"] == place.payer
        check = await called(client, "check_payment", to=place.payee, amount_usdc="11")
        assert (check["decision"], check["error"]) == ("reject", "policy_violation")
        order = {"payment_ref": f"{prefix}-order", "to": place.payee, "amount_usdc": "0.25"}
        paid = await called(client, "pay", **order)
        assert (paid["status"], paid["money_moved"]) == ("settled", "yes")
        assert await called(client, "pay", **order) == paid
        assert await called(client, "get_payment", payment_ref=order["payment_ref"]) == paid
        page = await called(client, "list_payments", limit=1)
        assert page["payments"][0]["payment_ref"] == order["payment_ref"]
        url = f"{place.paywall}/page"
        page = await called(client, "fetch_paid", url=url, max_usdc="1", payment_ref=f"{prefix}-page")
        assert (page["status"], page["untrusted_content"]["http_status"]) == ("settled", 200)
        session = await place.server.async_agent_client(place.payer).sessions.open(
            account_id=place.payer, to=place.payee, cap_usdc="1", idempotency_key=f"{prefix}-session"
        )
        closed = await called(client, "close_session", session_id=session.session_id)
        assert (closed["status"], closed["returned_usdc"]) == ("settled", "1.000000")
        assert asked == []
        pending = await called(client, "pay", payment_ref=prefix, to=place.payee, amount_usdc="5")
        assert pending["status"] == "pending_approval"
        (params,) = asked
        page = f"{place.server.base_url}/dashboard#/transfers/{pending['transfer_id']}"
        assert (params.mode, params.url) == ("url", pending["approval_url"]) == ("url", page)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("action", ["accept", "decline", "cancel", "no dialogs", "approved meanwhile"])
async def test_only_the_console_approves_whatever_the_user_clicks(
    place: Place, mode: str, action: Any
) -> None:
    tools = mcp_server(AsyncAgentTools(place.server.async_agent_client(place.payer)))

    async def show(_context: Any, params: Any) -> types.ElicitResult:
        if action != "approved meanwhile":
            return types.ElicitResult(action=action)
        await place.server.async_client().approvals.approve(params.url.rpartition("/")[2])
        return types.ElicitResult(action="accept")

    options: dict[str, Any] = {} if action == "no dialogs" else {"elicitation_callback": show}
    ref = f"{mode}-{action}".replace(" ", "-")
    async with Client(tools, mode=mode, **options) as client:
        result = await called(client, "pay", payment_ref=ref, to=place.payee, amount_usdc="5")
        if action == "approved meanwhile":
            assert (result["status"], result["approval_url"]) == ("settled", None)
            return
        assert (result["status"], result["money_moved"]) == ("pending_approval", "no")
        assert result["approval_url"].endswith(f"/dashboard#/transfers/{result['transfer_id']}")
        assert (await called(client, "get_payment", payment_ref=ref))["status"] == "pending_approval"


async def test_the_tool_list_is_small_and_says_what_each_tool_may_do(place: Place) -> None:
    tools = mcp_server(AsyncAgentTools(place.server.async_agent_client(place.payer)))
    for mode in ERAS:
        async with Client(tools, mode=mode) as client:
            listing = await client.list_tools()
        plain = listing.model_dump(by_alias=True, exclude_none=True, mode="json")
        assert len(json.dumps(plain)) < 23_500
        for tool in plain["tools"]:
            del tool["outputSchema"]  # most hosts do not show it to a model
        assert len(json.dumps(plain)) < 8_000
        for tool in listing.tools:
            hints = tool.annotations
            assert hints is not None
            assert HINTS[tool.name] == (
                hints.read_only_hint,
                hints.destructive_hint,
                hints.idempotent_hint,
                hints.open_world_hint,
            )
            assert tool.input_schema == TOOLS[tool.name].input_schema
            for name, field in tool.input_schema["properties"].items():
                assert field["description"], (tool.name, name)
                if name.endswith("_usdc"):
                    assert field["type"] == "string"
                if name.endswith("_ref"):
                    assert field["pattern"] == "^[A-Za-z0-9._:-]{8,120}$"
        pay = str(next(tool.description for tool in listing.tools if tool.name == "pay"))
        for said in ("names the purchase, not the attempt", "SAME ref", "new ref is a new payment"):
            assert said in pay


def test_every_field_of_every_result_is_described() -> None:
    pay, pages, listed = (TOOLS[name].output_schema for name in ("pay", "fetch_paid", "list_payments"))
    described = {
        Budget: TOOLS["get_budget"].output_schema,
        CheckResult: TOOLS["check_payment"].output_schema,
        PaymentResult: pay,
        PaymentList: listed,
        FetchResult: pages,
        SessionResult: TOOLS["close_session"].output_schema,
        UntrustedContent: pages["properties"]["untrusted_content"]["anyOf"][0],
        ListedPayment: listed["properties"]["payments"]["items"],
    }
    assert TOOLS["get_payment"].output_schema == pay
    for kind, schema in described.items():
        assert set(schema["required"]) == set(schema["properties"]) == set(attrs.fields_dict(kind))
        # Fields of a budget that a later service adds are allowed, and not described.
        assert "additionalProperties" not in schema
        assert all(field["description"] for field in schema["properties"].values())


async def test_a_call_that_waits_reports_progress(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the wait ends only because progress was reported."""
    monkeypatch.setattr("agentpay.mcp.serving.PROGRESS_SECONDS", 0.01)
    tools = mcp_server(AsyncAgentTools(place.server.async_agent_client(place.payer)))
    reports: list[tuple[float, float | None, str | None]] = []
    for mode in ERAS:
        ref = f"progress-{mode}"
        async with Client(tools, mode=mode) as client:
            waiting = await called(client, "pay", payment_ref=ref, to=place.payee, amount_usdc="5")

            async def report(
                progress: float, total: float | None, message: str | None, pending: Any = waiting
            ) -> None:
                reports.append((progress, total, message))
                if len(reports) == 2:
                    await place.server.async_client().approvals.approve(pending["transfer_id"])

            reports.clear()
            arguments = {"payment_ref": ref, "wait_seconds": 50}
            result: Any = await client.call_tool("get_payment", arguments, progress_callback=report)
        assert result.structured_content["status"] == "settled"
        assert len(reports) >= 2
        assert [progress for progress, _, _ in reports] == sorted({progress for progress, _, _ in reports})
        assert {total for _, total, _ in reports} == {65.0}
        assert "Read a payment: still waiting" in str(reports[0][2])


async def test_refusals_are_results_and_invalid_arguments_are_errors(place: Place) -> None:
    tools = mcp_server(AsyncAgentTools(place.server.async_agent_client(place.payer)))
    async with Client(tools) as client:
        refused = await called(client, "pay", payment_ref="too-much", to=place.payee, amount_usdc="11")
        assert (refused["status"], refused["money_moved"]) == ("rejected", "no")
        wrong = await client.call_tool(
            "pay", {"payment_ref": "too-much", "to": place.payee, "amount_usdc": 1}
        )
        assert wrong.is_error
        assert "amount_usdc must be a string" in wrong.structured_content["message"]
        with pytest.raises(MCPError, match="unknown tool"):
            await client.call_tool("approve", {"transfer_id": "txn_1"})


# --- The process


@pytest.mark.parametrize(
    "authorization",
    [None, "Bearer", "Bearer wrong-token-of-32-characters-xx", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN],
)
def test_http_needs_the_token(over_http: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    response = httpx2.post(over_http, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"


def test_http_accepts_only_loopback_hosts(over_http: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "evil.example", "Accept": "application/json"}
    response = httpx2.post(over_http, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert response.status_code == 421


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "a host", "version": "1"},
    },
}


@pytest.mark.parametrize("moment", ["loading", "asking", "stdio", "http"])
def test_the_first_ctrl_c_ends_it(place: Place, tmp_path: Path, moment: str) -> None:
    env = {**place.env, "AGENTPAY_MCP_TOKEN": TOKEN}
    if moment == "loading":
        # Something that it imports says so, and does not return.
        (tmp_path / "anyio.py").write_text("import sys; print('loading', flush=True); sys.stdin.read()")
        env["PYTHONPATH"] = str(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if moment == "asking":
            env["AGENTPAY_BASE_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = ["--http", "--port", "0"] if moment == "http" else []
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(**command(*options, env=env), **pipes, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            if moment == "asking":
                waiting, _ = silent.accept()
            else:
                if moment == "stdio":
                    process.stdin.write(json.dumps(INITIALIZE) + "\n")
                    process.stdin.flush()
                said = process.stdout.readline()
                if moment == "http":
                    host = httpx2.URL(json.loads(said)["url"])
                    waiting = socket.create_connection((host.host, host.port))
                    waiting.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n")
                    waiting.sendall(f"Authorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n".encode())
                    waiting.sendall(b"Content-Type: application/json\r\nAccept: application/json\r\n\r\n")
                    assert waiting.recv(12) == b"HTTP/1.1 100"
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(WAIT_SECONDS) == -signal.SIGINT
            finally:
                process.kill()
            assert "Traceback" not in process.stderr.read()
            if moment in ("asking", "http"):
                waiting.close()


@pytest.mark.parametrize("options", [[], ["--http", "--port", "0"]])
def test_no_proxy_of_the_environment_gets_the_key(place: Place, options: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0)
        env = {**place.env, "HTTP_PROXY": f"http://127.0.0.1:{proxy.getsockname()[1]}"}
        with subprocess.Popen(
            **command(*options, env=env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(INITIALIZE) + "\n")
            process.stdin.flush()
            assert process.stdout.readline()
            process.kill()
        with pytest.raises(BlockingIOError):
            proxy.accept()
