"""Buyers that use the packages of others, unchanged, at our paywall."""

import json
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import environments
import httpx
import pytest
import validators
from solders.keypair import Keypair

from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall

HERE = Path(__file__).parent
MPP_NODE = ("@solana/mpp@0.6.0", "mppx@0.11.0", "viem@2.56.0", "@solana/kit@6.5.0")
X402_NODE = ("@x402/core@2.27.0", "@x402/fetch@2.27.0", "@x402/svm@2.27.0", "@solana/kit@5.5.1")

pytestmark = [pytest.mark.peers, pytest.mark.timeout(700)]


@pytest.fixture
def server() -> Iterator[AgentPayServer]:
    validators.embedded_only("the peers work on its chain")
    with AgentPayServer(clock="system") as running:
        running.listen()
        yield running


@pytest.fixture
def keypair(server: AgentPayServer) -> Keypair:
    """A wallet with SOL and USDC, whose key the buyer holds."""
    wallet = Keypair()
    token_account = server.sandbox.create_token_account(owner=str(wallet.pubkey())).usdc_token_account
    client = server.client()
    account = client.accounts.create(name="Donor")
    server.sandbox.fund(account.account_id, 10)
    client.transfers.create(from_=account.account_id, to=token_account, amount=10)
    airdrop = {"jsonrpc": "2.0", "id": 1, "method": "requestAirdrop", "params": [str(wallet.pubkey()), 10**9]}
    assert "result" in httpx.post(server.rpc_url, json=airdrop).json()
    return wallet


@pytest.mark.parametrize("broadcast", ["0", "1"], ids=["pull", "push"])
@pytest.mark.parametrize("path", ["/plain", "/split"])
def test_a_buyer_with_the_mpp_package_is_served(
    server: AgentPayServer, keypair: Keypair, path: str, broadcast: str
) -> None:
    with Paywall(server, {"/plain": "0.25"}, protocols=["mpp"]) as paywall:
        splits = {str(Keypair().pubkey()): "0.05"}
        paywall.sell("/split", "0.25", protocols=["mpp"], splits=splits, external_id="order-42")
        bought(server, paywall, keypair, path, "mpp_node.mjs", MPP_NODE, BROADCAST=broadcast)


def test_a_buyer_with_the_x402_package_is_served(server: AgentPayServer, keypair: Keypair) -> None:
    with Paywall(server, {"/plain": "0.25"}) as paywall:
        paywall.sell("/memo", "0.25", external_id="order-42", description="d" * 4_000)
        for path in ("/plain", "/memo"):
            bought(server, paywall, keypair, path, "x402_node.mjs", X402_NODE)


def test_a_buyer_with_the_x402_package_pays_up_to_a_maximum(server: AgentPayServer, keypair: Keypair) -> None:
    with Paywall(server) as paywall:
        for path, cost in (("/none", "0"), ("/some", "0.003777"), ("/all", "7")):
            paywall.sell_upto(path, "0.01", charge=cost)
            served = _bought(server, paywall, keypair, path, "x402_upto.mjs", X402_NODE)
            said = [request.message for request in paywall.requests]
            assert served["status"] == 200, said
        assert [str(channel.settled_usdc) for channel in paywall.channels] == [
            "0.000000",
            "0.003777",
            "0.010000",
        ]
        assert {channel.status for channel in paywall.channels} == {"settled"}
        assert paywall.received_usdc == Decimal("0.013777")


def bought(
    server: AgentPayServer,
    paywall: Paywall,
    keypair: Keypair,
    path: str,
    program: str,
    packages: tuple[str, ...],
    **environment: str,
) -> None:
    """Run a buyer's program for a path of 0.25 USDC; check what it got, and who paid."""
    served = _bought(server, paywall, keypair, path, program, packages, **environment)
    said = [request.message for request in paywall.requests]
    assert served == {"status": 200, "body": {"path": path, "paid_usdc": "0.250000"}}, said
    sale = paywall.sales.one(path=path)
    assert (sale.status, sale.payer) == ("settled", str(keypair.pubkey()))


def _bought(
    server: AgentPayServer,
    paywall: Paywall,
    keypair: Keypair,
    path: str,
    program: str,
    packages: tuple[str, ...],
    **environment: str,
) -> Any:
    directory = environments.node(*packages)
    copy = environments.placed(directory, program, (HERE / "buyers" / program).read_text("utf-8"))
    url = paywall.base_url if paywall.base_url.startswith("http://127") else paywall.listen()
    return _run(
        ["node", str(copy)],
        KEYPAIR=json.dumps(list(bytes(keypair))),
        RPC_URL=server.rpc_url,
        URL_TO_BUY=url + path,
        **environment,
    )


def _run(command: list[str], **environment: str) -> Any:
    with environments.running(command, environment=environment, directory=HERE) as process:
        try:
            said, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, said[-2_000:]
    return json.loads(said.splitlines()[-1])
