"""Chooses the offer of a 402 to pay. Pure functions."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from agentpay.contract.payments import MAX_HEADERS
from agentpay_server.payments import mpp, x402
from agentpay_server.payments.terms import Network, Offer, Protocol

_PREFERRED: Final = (Protocol.MPP, Protocol.X402_V2, Protocol.X402_V1)


def read_challenge(headers: Iterable[tuple[str, str]], body: bytes) -> list[Offer]:
    """Return the Solana offers of a 402: the preferred protocol first, in the seller's order within each.

    Args:
        headers: of the response, names in any case; only the first `MAX_HEADERS` are read.
        body: of the response; may be truncated at 64 KiB.

    Raises:
        UnreadableChallengeError: a challenge, or a Solana offer in it, cannot be read.
    """
    found: list[Offer] = []
    is_v2 = False
    for _, (name, value) in zip(range(MAX_HEADERS), headers, strict=False):
        if name.lower() == mpp.CHALLENGE_HEADER:
            found += mpp.read_header(value)
        elif name.lower() == x402.CHALLENGE_HEADER:
            is_v2 = True
            found += x402.read_header(value)
    if not is_v2:
        # A seller of version 2 may repeat its offers in the body, for clients of version 1.
        found += x402.read_body(body)
    return sorted(found, key=lambda offer: _PREFERRED.index(offer.terms.protocol))


def networks_of(cluster: str | None) -> Collection[Network]:
    """Return the networks whose money a chain has. Mainnet money never counts elsewhere, nor the reverse.

    `cluster` is None for a private chain, which sellers know as devnet, or as localnet if their protocol
    names it.
    """
    return {Network.DEVNET, Network.LOCALNET} if cluster is None else {Network(cluster)}


def payable(
    offers: Sequence[Offer],
    *,
    cluster: str | None,
    usdc_mint: str,
    now_us: int,
    max_amount_micro: int | None = None,
) -> list[Offer]:
    """Return the offers that can be paid, in their order.

    Args:
        offers: from `read_challenge`.
        cluster: the cluster of the service; None for a private chain.
        usdc_mint: the mint of USDC there.
        now_us: the current time.
        max_amount_micro: the caller's maximum, if any.
    """
    networks = networks_of(cluster)
    return [
        offer
        for offer in offers
        if offer.terms.network in networks
        and offer.terms.mint in (usdc_mint, mpp.USDC)
        and (max_amount_micro is None or offer.terms.amount_micro <= max_amount_micro)
        and (offer.expires_us is None or offer.expires_us > now_us)
    ]


def wrap(offer: Offer, transaction: bytes, *, payment_id: str) -> tuple[str, str]:
    """Return name and value of the header that presents a payment, by its protocol."""
    if offer.terms.protocol is Protocol.MPP:
        return mpp.wrap(offer, transaction)
    return x402.wrap(offer, transaction, payment_id=payment_id)
