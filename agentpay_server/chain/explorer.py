"""Where a person looks a transaction up (interface T11). Pure text; it asks no chain."""

from typing import Final
from urllib.parse import quote, urlsplit

_EXPLORER: Final = "https://explorer.solana.com/tx/"
_PUBLIC_CLUSTERS: Final = frozenset({"devnet", "testnet"})


def explorer_url(signature: str, cluster: str) -> str:
    """Return the explorer's page of a transaction.

    Args:
        signature: base58 text.
        cluster: `mainnet-beta`, `devnet`, `testnet`, or the RPC URL of any other cluster. Of a URL only
            scheme, host and port are shown: the rest is where providers put their keys.
    """
    if cluster == "mainnet-beta":
        return _EXPLORER + signature
    if cluster in _PUBLIC_CLUSTERS:
        return f"{_EXPLORER}{signature}?cluster={cluster}"
    parts = urlsplit(cluster)
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return f"{_EXPLORER}{signature}?cluster=custom&customUrl={quote(origin, safe='')}"
