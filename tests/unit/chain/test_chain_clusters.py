"""On which cluster a server runs, and on which it refuses to."""

import pytest

from agentpay_server.chain.clusters import Cluster, ClusterRefusedError, choose_cluster
from agentpay_server.chain.instructions import USDC_MINTS

MAINNET = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"
DEVNET = "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG"
TESTNET = "4uhcVJyU9pJkvQyS88uRDiswHXSCkY3zQawwpjk2NsNY"
OURS = "FHFZTCTtChMD5pgZC3hv9WZCYMDqJNJ5roob7rKrL8Df"
A_MINT = USDC_MINTS["devnet"]


def choose(
    genesis_hash: str, *, stored: str | None = None, usdc_mint: str | None = None, allow_mainnet: bool = False
) -> Cluster:
    return choose_cluster(
        genesis_hash, stored_genesis_hash=stored, usdc_mint=usdc_mint, allow_mainnet=allow_mainnet
    )


def test_mainnet_requires_allow_mainnet_and_uses_circles_usdc() -> None:
    with pytest.raises(ClusterRefusedError, match="money is real"):
        choose(MAINNET)
    cluster = choose(MAINNET, allow_mainnet=True)
    assert (cluster.name, cluster.usdc_mint) == ("mainnet-beta", USDC_MINTS["mainnet-beta"])
    assert cluster.is_public


def test_devnet_is_public_and_uses_circles_usdc() -> None:
    cluster = choose(DEVNET)
    assert (cluster.name, cluster.usdc_mint, cluster.is_public) == ("devnet", USDC_MINTS["devnet"], True)


def test_a_private_cluster_uses_the_mainnet_mint_address_or_the_configured_one() -> None:
    assert choose(OURS) == Cluster(genesis_hash=OURS, name=None, usdc_mint=USDC_MINTS["mainnet-beta"])
    assert choose(OURS, usdc_mint=A_MINT).usdc_mint == A_MINT
    assert not choose(OURS).is_public


def test_testnet_requires_a_configured_mint() -> None:
    with pytest.raises(ClusterRefusedError, match="no USDC on testnet"):
        choose(TESTNET)
    cluster = choose(TESTNET, usdc_mint=A_MINT)
    assert (cluster.usdc_mint, cluster.is_public) == (A_MINT, True)


@pytest.mark.parametrize("genesis_hash", [MAINNET, DEVNET])
def test_a_configured_mint_other_than_circles_is_refused_on_mainnet_and_devnet(genesis_hash: str) -> None:
    with pytest.raises(ClusterRefusedError, match="remove --usdc-mint"):
        choose(genesis_hash, usdc_mint=OURS, allow_mainnet=True)
    right = choose(genesis_hash, allow_mainnet=True).usdc_mint
    assert choose(genesis_hash, usdc_mint=right, allow_mainnet=True).usdc_mint == right


@pytest.mark.parametrize("genesis_hash", [MAINNET, DEVNET, OURS])
def test_a_database_of_another_cluster_is_refused(genesis_hash: str) -> None:
    assert choose(genesis_hash, stored=genesis_hash, allow_mainnet=True).genesis_hash == genesis_hash
    with pytest.raises(ClusterRefusedError, match=f"database belongs to {TESTNET}"):
        choose(genesis_hash, stored=TESTNET, allow_mainnet=True)
