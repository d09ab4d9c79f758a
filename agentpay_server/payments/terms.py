"""The terms of a seller's challenge, independent of its protocol."""

import hashlib
from enum import StrEnum
from typing import Any, Final

from attrs import field, frozen

from agentpay.contract import json_text

MOST_LEGS: Final = 9
"""The primary recipient, and the splits of MPP, of which there are at most 8."""

MOST_MICRO: Final = 10**15 - 1
"""The largest payment in micro-USDC, as for transfers."""


class UnreadableChallengeError(ValueError):
    """The challenge cannot be read; the text names the field and the fault."""


class Protocol(StrEnum):
    """How a challenge is written and answered."""

    MPP = "mpp"
    X402_V2 = "x402_v2"
    X402_V1 = "x402_v1"


class Network(StrEnum):
    """Which money a challenge asks for."""

    MAINNET = "mainnet-beta"
    DEVNET = "devnet"
    TESTNET = "testnet"
    LOCALNET = "localnet"


@frozen(kw_only=True)
class Leg:
    """One of the transfers that make up a payment.

    Attributes:
        recipient: address of the owner who is paid, not of the token account.
        amount_micro: how much, in micro-USDC, at least 1.
        memo: text that must follow it on chain; None for none.
    """

    recipient: str
    amount_micro: int
    memo: str | None = None


@frozen(kw_only=True)
class Terms:
    """Everything in a challenge that decides what is signed. Equal terms are one payment.

    Attributes:
        protocol: of the challenge.
        network: which money.
        mint: address of the mint, or `USDC` for that of the network.
        legs: who is paid, the primary recipient first.
        fee_payer: address that pays the fee and signs first; None where the payer does.
    """

    protocol: Protocol
    network: Network
    mint: str
    legs: tuple[Leg, ...]
    fee_payer: str | None

    @property
    def amount_micro(self) -> int:
        """All that leaves the payer, in micro-USDC."""
        return sum(leg.amount_micro for leg in self.legs)

    @property
    def recipient(self) -> str:
        """Address of the primary recipient."""
        return self.legs[0].recipient

    def digest(self, *, origin: str, memo: str | None) -> str:
        """Return what is equal for equal terms of one seller, as 64 hexadecimal digits.

        Args:
            origin: of the seller, such as `https://api.example.com`.
            memo: of the caller.
        """
        # MPP lets a seller change the key that pays its fees; with x402 it is part of what was agreed.
        payer = self.fee_payer is not None if self.protocol is Protocol.MPP else self.fee_payer
        legs = [[leg.recipient, leg.amount_micro, leg.memo] for leg in self.legs]
        parts = [origin, self.protocol.value, self.network.value, self.mint, legs, payer, memo]
        return hashlib.sha256(json_text.print_canonical_json(parts)).hexdigest()


@frozen(kw_only=True)
class Offer:
    """One way to pay that a challenge offers.

    Attributes:
        terms: what it asks for.
        expires_us: until when the seller takes it, in microseconds since 1970; None where it does not say.
        category: what the seller calls it; None where it does not say.
        resource_url: what is sold, as the seller says; a claim.
        echo: what the answer must repeat, as it came.
    """

    terms: Terms
    expires_us: int | None = None
    category: str | None = None
    resource_url: str | None = None
    echo: dict[str, Any] = field(factory=dict, repr=False)
