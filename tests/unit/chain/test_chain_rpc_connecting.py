"""The first words with a cluster, over a real port to a node in memory."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import json_rpc_server
import pytest
from json_rpc_server import Answer
from rpc_node import GENESIS_HASH, OWNER, SENDER, USDC, FakeNode, account_json, token_account
from solders.account import Account
from solders.pubkey import Pubkey
from solders.token.state import Mint

from agentpay_server import Finality, RpcSettings
from agentpay_server.chain.clusters import ClusterRefusedError
from agentpay_server.chain.instructions import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from agentpay_server.plugins.cluster.chain import RpcChain, connect

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]

AUTHORITY = OWNER
TREASURY = SENDER
MAINNET = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"


def mint_json(*, decimals: int = 6, program: Pubkey = TOKEN_PROGRAM) -> dict[str, Any]:
    authority = Pubkey.from_string(AUTHORITY)
    mint = Mint(authority, 0, decimals, is_initialized=True, freeze_authority=None)
    return account_json(Account(1, bytes(mint), program))


@pytest.fixture
def accounts() -> dict[str, Any]:
    return {USDC: mint_json(), TREASURY: account_json(Account(1, b"", SYSTEM_PROGRAM))}


@pytest.fixture
def node(accounts: dict[str, Any]) -> FakeNode:
    fake = FakeNode()
    fake.answers["getMultipleAccounts"] = lambda addresses, options: {
        "value": [accounts.get(address) for address in addresses]
    }
    return fake


@pytest.fixture
async def url(node: FakeNode) -> AsyncIterator[str]:
    async def handle(body: bytes) -> Answer:
        request = json.loads(body)
        return json_rpc_server.result(await node.call(request["method"], *request["params"]))

    async with json_rpc_server.serving(handle) as served:
        yield served


async def connected(url: str, stored: str | None = None, **settings: Any) -> RpcChain:
    return await connect(
        RpcSettings(url=url, **settings),
        stored_genesis_hash=stored,
        treasury=TREASURY,
        mint_authority=AUTHORITY,
    )


async def test_a_private_cluster_connects_without_warnings(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    chain = await connected(url, stored=GENESIS_HASH)
    assert (chain.genesis_hash, chain.usdc_mint, chain.is_test_chain) == (GENESIS_HASH, USDC, True)
    assert await chain.block_height() == 800
    await chain.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_mainnet_requires_allow_mainnet_and_is_no_test_chain(url: str, node: FakeNode) -> None:
    node.answers["getGenesisHash"] = lambda: MAINNET
    with pytest.raises(ClusterRefusedError, match="money is real"):
        await connected(url)
    assert set(node.calls) == {"getGenesisHash"}
    chain = await connected(url, allow_mainnet=True)
    assert not chain.is_test_chain
    await chain.close()


@pytest.mark.parametrize(
    ("told", "match"),
    [
        (None, "has no USDC mint"),
        (mint_json(program=TOKEN_2022_PROGRAM), "not a mint of the Token program"),
        (account_json(token_account(1)), "is not a mint"),
        (mint_json(decimals=9), "has 9 decimals"),
    ],
)
async def test_an_account_that_is_not_the_usdc_mint_is_refused(
    url: str, accounts: dict[str, Any], told: Any, match: str
) -> None:
    accounts[USDC] = told
    with pytest.raises(ClusterRefusedError, match=match):
        await connected(url)


async def test_a_fee_payer_without_sol_and_a_foreign_mint_authority_are_logged(
    url: str, accounts: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    accounts[TREASURY] = None
    chain = await connect(
        RpcSettings(url=url), stored_genesis_hash=None, treasury=TREASURY, mint_authority=TREASURY
    )
    await chain.close()
    assert f"the fee payer {TREASURY} holds no SOL" in caplog.text
    assert f"the authority of the mint {USDC} is {AUTHORITY}, not {TREASURY}" in caplog.text


def test_invalid_settings_are_refused() -> None:
    for wrong in ({"finality": "processed"}, {"blockhash_seconds": 60}, {"compute_unit_limit": 1_400_001}):
        with pytest.raises(ValueError):
            RpcSettings(url="http://node.example", **wrong)  # type: ignore[arg-type]
    for url in ("", "rpc.example/SECRET", "ftp://rpc.example/SECRET", "http:///SECRET", "http://\x00/SECRET"):
        with pytest.raises(ValueError) as caught:
            RpcSettings(url=url)
        assert "SECRET" not in str(caught.value)
        assert caught.value.__context__ is None
    with pytest.raises(ValueError):
        RpcSettings(url="http://node.example", websocket_url="http://node.example")
    chosen = RpcSettings(url="http://node.example", finality="finalized")  # type: ignore[arg-type]
    assert chosen.finality is Finality.FINALIZED


@pytest.mark.parametrize(
    ("more", "is_believed"),
    [({}, False), ({"surfnet-version": "1.5.0"}, True), ({"emulator": "another"}, False)],
)
async def test_only_surfpool_proves_an_expiry_without_its_blocks(
    url: str, node: FakeNode, more: dict[str, str], is_believed: bool
) -> None:
    node.answers["getVersion"] = lambda: {"solana-core": "2.3.0", "feature-set": 1, **more}
    node.answers["getFirstAvailableBlock"] = lambda: 0
    node.answers["getBlock"] = lambda slot, options: {"blockHeight": slot}
    node.answers["getBlocksWithLimit"] = lambda slot, most, options: []
    chain = await connected(url)
    assert await chain.knows_blocks(10, 160) is is_believed
    await chain.close()
