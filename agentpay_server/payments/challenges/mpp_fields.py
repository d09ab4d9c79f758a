"""Fields that all intents of MPP have: the network and the token."""

from collections.abc import Mapping
from typing import Any, Final

from agentpay_server.chain.instructions import TOKEN_PROGRAM
from agentpay_server.payments.challenges import fields
from agentpay_server.payments.challenges.terms import Network, UnreadableChallengeError

USDC: Final = "USDC"
"""Name that a challenge may use instead of the mint's address."""

_USDC_DECIMALS: Final = 6
_NETWORKS: Final = {
    "mainnet-beta": Network.MAINNET,
    "mainnet": Network.MAINNET,
    "devnet": Network.DEVNET,
    "testnet": Network.TESTNET,
    "localnet": Network.LOCALNET,
}


def network_of(details: Mapping[str, Any]) -> Network:
    """Return the network that a challenge names.

    Raises:
        UnreadableChallengeError: it is not a network of Solana.
    """
    network = _NETWORKS.get(fields.text(details, "network") or "mainnet-beta")
    if network is None:
        raise UnreadableChallengeError("network is not a Solana network")
    return network


def token_fault(details: Mapping[str, Any]) -> str | None:
    """Return what decimals or a token program say that USDC does not have; None without a fault."""
    decimals = fields.optional(details, "decimals", int)
    if decimals not in (None, _USDC_DECIMALS):
        return f"decimals must be {_USDC_DECIMALS}, as for USDC"
    if fields.text(details, "tokenProgram") not in (None, str(TOKEN_PROGRAM)):
        return "tokenProgram must be that of USDC"
    return None
