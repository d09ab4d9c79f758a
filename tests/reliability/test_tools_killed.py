"""SIGKILL of the MCP server under a call: paid once. The kill matrix kills the service at every step.

The model knows its reference, and calls again.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from loaded_python import LoadedPython
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agentpay import AsyncAgentPay
from agentpay.mcp import server as mcp_server
from agentpay.tools import AsyncAgentTools
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall

pytestmark = pytest.mark.unmeasured

ORDER = {"payment_ref": "order-0001", "amount_usdc": "7"}
TOKEN = "a-token-of-32-characters-or-more"
LOOPBACK = "http://127.0.0.1:*"
FETCH = {"payment_ref": "forecast-0001", "max_usdc": "7"}


@contextmanager
def mcp_process(base_url: str, key: str) -> Iterator[tuple[str, LoadedPython]]:
    """Run the MCP server over HTTP, and yield its URL and process; it is killed in the end if it lives."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("AGENTPAY")}
    own = {"AGENTPAY_BASE_URL": base_url, "AGENTPAY_API_KEY": key, "AGENTPAY_MCP_TOKEN": TOKEN}
    with LoadedPython(
        *("-m", "agentpay.mcp", "--http", "--port", "0", "--allow-private-origin", LOOPBACK),
        environment={**others, **own},
        loads=("agentpay.mcp.serving", "anyio._backends._asyncio", "uvicorn.protocols.http.h11_impl"),
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"], process
        finally:
            process.kill()
            assert process.wait() == -signal.SIGKILL


async def asked(url: str, tool: str, order: dict[str, str]) -> dict[str, Any]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http,
        Client(streamable_http_client(url, http_client=http)) as model,
    ):
        return dict((await model.call_tool(tool, order)).structured_content)


async def asked_again(base_url: str, key: str, tool: str, order: dict[str, str]) -> dict[str, Any]:
    """Ask the next MCP server, which knows nothing of the one that was killed: it needs no process."""
    async with AsyncAgentPay(base_url=base_url, api_key=key) as agent:
        tools = AsyncAgentTools(agent, private_origins=[LOOPBACK])
        async with Client(mcp_server(tools)) as model:
            result: Any = await model.call_tool(tool, order)
            return dict(result.structured_content)


@pytest.mark.parametrize(
    ("tool", "answered", "held"),
    [
        ("pay", "/ext/v1/whoami", "GET /ext/v1/transfers"),
        ("pay", "/ext/v1/transfers", "POST /v1/transfers"),
        ("pay", "/v1/transfers", "GET /ext/v1/accounts/{account_id}/budget"),
        ("fetch_paid", "/ext/v1/transfers", "POST /ext/v1/payments"),
        ("fetch_paid", "/ext/v1/payments", "GET /v1/transfers/{transfer_id}"),
    ],
)
def test_a_tool_payment_pays_once_when_the_mcp_server_is_killed(tool: str, answered: str, held: str) -> None:
    # The killed process may have presented the payment: this seller serves it again, and sells it once.
    with AgentPayServer() as server, Paywall(server, {"/forecast": "7"}, serves_again=True) as paywall:
        server.listen()
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
        server.sandbox.fund(payer, 100)
        key = server.agent_keys.create(payer).key
        orders = {
            "pay": {**ORDER, "to": payee},
            "fetch_paid": {**FETCH, "url": f"{paywall.listen()}/forecast"},
        }
        order, begun = orders[tool], len(server.requests)

        async def kill(process: LoadedPython) -> None:
            # Until it has the answer before the one that is held.
            while not any(each.path.startswith(answered) for each in server.requests[begun:]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            process.kill()

        async def interrupted() -> None:
            with mcp_process(server.base_url, key) as (url, process):
                calling = asyncio.ensure_future(asked(url, tool, order))
                await kill(process)
                with pytest.raises(BaseException):  # noqa: B017 - of the MCP client: no answer came
                    await calling

        with server.sandbox.fault(f"http:{held}", times=1, effect="delay", delay_ms=500):
            asyncio.run(interrupted())
        paid = asyncio.run(asked_again(server.base_url, key, tool, order))
        for _ in range(100):
            if paid["status"] != "paid_not_delivered":
                break
            # The seller still works on the request of the killed process, and refuses a second one.
            assert paid["may_retry_with_same_ref"]
            paid = asyncio.run(asked_again(server.base_url, key, tool, order))
        assert (paid["status"], paid["money_moved"]) == ("settled", "yes")
        assert client.accounts.balance(payer).balance_usdc == 93
        assert [each.status for each in client.transfers.list(account_id=payer)] == ["settled"]
