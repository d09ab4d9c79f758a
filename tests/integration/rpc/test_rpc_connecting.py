"""Starting on a cluster: what is refused, and what is only told."""

import logging

import pytest
import rpc_world
from rpc_world import USDC
from solders.keypair import Keypair
from surfpool import Surfpool

from agentpay_server import RpcSettings
from agentpay_server.chain.clusters import ClusterRefusedError
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY
from agentpay_server.plugins.cluster.chain import RpcChain, connect

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]


async def connected(
    surfpool: Surfpool, *, genesis_hash: str | None = None, usdc_mint: str | None = None
) -> RpcChain:
    custody = rpc_world.new_custody()
    return await connect(
        RpcSettings(url=surfpool.url, usdc_mint=usdc_mint),
        stored_genesis_hash=genesis_hash,
        treasury=custody.address(TREASURY),
        mint_authority=custody.address(TEST_MINT_AUTHORITY),
    )


@pytest.fixture(autouse=True)
async def seeded(surfpool: Surfpool) -> None:
    async with rpc_world.world(surfpool):
        pass


async def test_a_private_cluster_is_a_test_chain_with_the_mint_at_its_address(surfpool: Surfpool) -> None:
    chain = await connected(surfpool)
    assert chain.is_test_chain
    assert chain.usdc_mint == USDC
    assert chain.genesis_hash == surfpool.call("getGenesisHash")
    await chain.close()


async def test_the_cluster_of_the_database_is_accepted_and_another_is_refused(surfpool: Surfpool) -> None:
    chain = await connected(surfpool, genesis_hash=surfpool.call("getGenesisHash"))
    await chain.close()
    with pytest.raises(ClusterRefusedError, match="database belongs to"):
        await connected(surfpool, genesis_hash=str(Keypair().pubkey()))


async def test_a_missing_or_invalid_mint_is_refused(surfpool: Surfpool) -> None:
    missing = str(Keypair().pubkey())
    with pytest.raises(ClusterRefusedError, match="has no USDC mint"):
        await connected(surfpool, usdc_mint=missing)
    with pytest.raises(ClusterRefusedError, match="not a mint of the Token program"):
        await connected(surfpool, usdc_mint=rpc_world.new_custody().address(TREASURY))
    async with rpc_world.world(surfpool) as world:
        with pytest.raises(ClusterRefusedError, match="is not a mint"):
            await connected(surfpool, usdc_mint=await world.account(1))


async def test_a_mint_without_six_decimals_is_refused(surfpool: Surfpool) -> None:
    mint = str(Keypair().pubkey())
    rpc_world.put_mint(surfpool, mint, address=mint, decimals=9)
    with pytest.raises(ClusterRefusedError, match="has 9 decimals"):
        await connected(surfpool, usdc_mint=mint)


async def test_a_foreign_mint_and_a_fee_payer_without_sol_are_logged(
    surfpool: Surfpool, caplog: pytest.LogCaptureFixture
) -> None:
    mint = str(Keypair().pubkey())
    rpc_world.put_mint(surfpool, mint, address=mint)
    with caplog.at_level(logging.WARNING):
        chain = await connect(
            RpcSettings(url=surfpool.url, usdc_mint=mint),
            stored_genesis_hash=None,
            treasury=str(Keypair().pubkey()),
            mint_authority=str(Keypair().pubkey()),
        )
    await chain.close()
    assert "holds no SOL" in caplog.text
    assert "the sandbox cannot fund accounts" in caplog.text
