"""The Solana clusters: where a server may run, whether money is real there, and explorer links. Pure.

A cluster is identified by its genesis hash, because an endpoint's URL can be misleading.
"""

from functools import lru_cache
from typing import Final
from urllib.parse import quote, urlsplit

from attrs import frozen

from agentpay_server.chain.instructions import USDC_MINTS

MAINNET: Final = "mainnet-beta"

_PUBLIC_CLUSTERS: Final = {
    "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d": MAINNET,
    "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG": "devnet",
    "4uhcVJyU9pJkvQyS88uRDiswHXSCkY3zQawwpjk2NsNY": "testnet",
}


class ClusterRefusedError(Exception):
    """The server must not run on this cluster with these settings; the text says what to change."""


@frozen(kw_only=True)
class Cluster:
    """A Solana cluster. `name` is `mainnet-beta`, `devnet` or `testnet`; None for a private one."""

    genesis_hash: str
    name: str | None
    usdc_mint: str

    @property
    def is_public(self) -> bool:
        """Whether it is one of Solana's own clusters. The sandbox is disabled there."""
        return self.name is not None


def choose_cluster(
    genesis_hash: str, *, stored_genesis_hash: str | None, usdc_mint: str | None, allow_mainnet: bool
) -> Cluster:
    """Return the cluster that a genesis hash identifies, if a server may run on it.

    Args:
        genesis_hash: as the node reports it.
        stored_genesis_hash: the cluster that the database belongs to; None for a new database.
        usdc_mint: the mint on a cluster without Circle's USDC; None for mainnet's address.
        allow_mainnet: whether the operator allows real money.

    Raises:
        ClusterRefusedError: the cluster has changed, is mainnet without permission, or has a different USDC.
    """
    name = _PUBLIC_CLUSTERS.get(genesis_hash)
    if stored_genesis_hash not in (None, genesis_hash):
        raise ClusterRefusedError(
            f"the RPC endpoint serves the cluster with genesis hash {genesis_hash}, but the database "
            f"belongs to {stored_genesis_hash}. Use an endpoint of that cluster, or a new database"
        )
    if name == MAINNET and not allow_mainnet:
        raise ClusterRefusedError(
            "the RPC endpoint serves Solana's mainnet, where money is real. Confirm with --allow-mainnet "
            "(allow_mainnet=True), or use another endpoint"
        )
    circles_mint = USDC_MINTS.get(name or "")
    if circles_mint is not None:
        if usdc_mint not in (None, circles_mint):
            raise ClusterRefusedError(
                f"USDC on {name} is {circles_mint}, not {usdc_mint}: remove --usdc-mint"
            )
        return Cluster(genesis_hash=genesis_hash, name=name, usdc_mint=circles_mint)
    if name is not None and usdc_mint is None:
        raise ClusterRefusedError(f"Circle issues no USDC on {name}: set the mint to use, or use devnet")
    return Cluster(genesis_hash=genesis_hash, name=name, usdc_mint=usdc_mint or USDC_MINTS[MAINNET])


_EXPLORER: Final = "https://explorer.solana.com/tx/"
_NAMED_BY_EXPLORER: Final = frozenset({"devnet", "testnet"})


def explorer_url(signature: str, cluster: str) -> str:
    """Return the explorer's page of a transaction.

    Args:
        signature: base58 text.
        cluster: `mainnet-beta`, `devnet`, `testnet`, or the RPC URL of any other cluster. Only the URL's
            scheme, host and port are included, because providers put keys into the rest.
    """
    if cluster == "mainnet-beta":
        return _EXPLORER + signature
    if cluster in _NAMED_BY_EXPLORER:
        return f"{_EXPLORER}{signature}?cluster={cluster}"
    parts = urlsplit(cluster)
    return custom_explorer_url(signature, f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")


def custom_explorer_url(signature: str, rpc_url: str) -> str:
    """Return the explorer's page of a transaction on the cluster of an RPC URL, which contains no secret."""
    return f"{_EXPLORER}{signature}{_custom_query(rpc_url)}"


@lru_cache(maxsize=8)
def _custom_query(rpc_url: str) -> str:
    return f"?cluster=custom&customUrl={quote(rpc_url, safe='')}"
