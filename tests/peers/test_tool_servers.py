"""Tools of MCP servers made with the packages of the field, unchanged; their buyer dies at each step."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import environments
import httpx
import pytest
import validators
from attrs import frozen
from solders.keypair import Keypair

from agentpay_server import AgentPayServer

SHOPS = Path(__file__).parent / "shops"
X402_PYTHON = ("x402[svm,mcp]==2.25.0", "httpx>=0.28,<1", "mcp>=2.3,<3")
MCP_NODE = (
    "@solana/mpp@0.6.0",
    "mppx@0.11.0",
    "viem@2.56.0",
    "@solana/kit@6.5.0",
    "@modelcontextprotocol/sdk@1.32.2",
    "zod@4",
)

BUYER = """
import asyncio, json, os, sys
from mcp import Client, StdioServerParameters
from agentpay import AsyncAgentPay, errors
from agentpay.mcp import PaidTools

dies_at = sys.argv[1]

class Dying:
    calls = 0

    def __init__(self, session):
        self.session = session

    async def call_tool(self, *arguments, **options):
        self.calls += 1
        self.dies(f"before-{self.calls}")
        try:
            return await self.session.call_tool(*arguments, **options)
        finally:  # MPP asks by an error.
            self.dies(f"after-{self.calls}")

    def dies(self, point):
        if point == dies_at:
            os._exit(9)

async def buy():
    program, *args = sys.argv[2:]
    async with Client(StdioServerParameters(command=program, args=args, env=dict(os.environ))) as mcp:
        tools = PaidTools(Dying(mcp), AsyncAgentPay(), url="https://weather.example/mcp")
        try:
            ref = "order-" + os.environ["ORDER"]
            bought = await tools.call_tool("weather", {"city": "Oslo"}, payment_ref=ref)
            print(json.dumps([part.text for part in bought.result.content]), flush=True)
        except errors.PaymentRefusedError as error:
            print(type(error).__name__, flush=True)

asyncio.run(buy())
"""
DIED = 9
POINTS = ("never", "before-1", "after-1", "before-2", "after-2")


@pytest.fixture(params=["x402_python", "mpp_node"])
def seller(request: pytest.FixtureRequest) -> list[str]:
    """The command that starts a server."""
    if request.param == "x402_python":
        return [str(environments.python(*X402_PYTHON)), str(SHOPS / "mcp_x402_python.py")]
    directory = environments.node(*MCP_NODE)
    text = (SHOPS / "mcp_mpp_node.mjs").read_text("utf-8")
    return ["node", str(environments.placed(directory, "mcp_mpp_node.mjs", text))]


@frozen
class World:
    """A server, the accounts of a buyer and a seller, and what their programs read."""

    server: AgentPayServer
    payer: str
    seller: str
    environment: dict[str, str]


@pytest.fixture
def world() -> Iterator[World]:
    validators.embedded_only("the peers work on its chain")
    with AgentPayServer(clock="system") as server:
        server.listen()
        client, fee_payer = server.client(), Keypair()
        payer, seller = (client.accounts.create(name=name) for name in ("Payer", "Seller"))
        server.sandbox.fund(payer.account_id, 10)
        drop = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "requestAirdrop",
            "params": [str(fee_payer.pubkey()), 10**10],
        }
        assert "result" in httpx.post(server.rpc_url, json=drop).json()
        environment = {
            "FACILITATOR_URL": server.facilitator_url,
            "RPC_URL": server.rpc_url,
            "PAY_TO": seller.chain_address,
            # The same after a restart: a stored payment names it.
            "FEE_PAYER": json.dumps(list(bytes(fee_payer))),
            "AGENTPAY_BASE_URL": server.base_url,
            "AGENTPAY_API_KEY": server.agent_keys.create(payer.account_id).key,
        }
        yield World(server, payer.account_id, seller.account_id, environment)


def bought(world: World, seller: list[str], order: str, point: str) -> tuple[int, str]:
    """Run the buyer until it has bought, or died; return its exit code and what it said last."""
    ran = subprocess.run(
        [sys.executable, "-c", BUYER, point, *seller],
        env={**os.environ, **world.environment, "ORDER": order},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(seller[-1]).parent,
    )
    if ran.returncode not in (0, DIED):
        raise AssertionError(ran.stderr[-2000:])
    return ran.returncode, (ran.stdout.splitlines() or [""])[-1]


@pytest.mark.peers
def test_a_tool_is_paid_once_however_its_buyer_dies(world: World, seller: list[str]) -> None:
    for point in POINTS:
        code, said = bought(world, seller, point, point)
        if point != "never":
            assert (code, said) == (DIED, "")
            code, said = bought(world, seller, point, "never")
        # Neither package serves a payment again that it has settled; it must not be paid again for that.
        if point != "after-2":
            assert said == json.dumps(["rain"])
    payments = world.server.client().payments.list(account_id=world.payer).data
    assert sorted(each.idempotency_key for each in payments) == sorted(f"order-{point}" for point in POINTS)
    assert {str(each.status) for each in payments} == {"settled"}
    received = world.server.client().accounts.balance(world.seller).balance_usdc
    assert int(received * 10**6) == 1_000 * len(POINTS)
