"""The terms of a seller's challenge, and a payment as it is presented, independent of the protocol."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal

from attrs import field, frozen
from solders.signature import Signature

from agentpay.contract import json_text
from agentpay_server.chain.channels.codecs import Voucher

MAX_LEGS: Final = 9
"""The primary recipient, and at most 8 splits of MPP."""


class UnreadableChallengeError(ValueError):
    """A challenge, or an offer in it, cannot be read; the message names the field and the fault."""


class Protocol(StrEnum):
    """The protocol of a challenge."""

    MPP = "mpp"
    X402_V2 = "x402_v2"
    X402_V1 = "x402_v1"
    X402_UPTO = "x402_upto"
    """Version 2, scheme `upto`."""


EXACT: Final = (Protocol.MPP, Protocol.X402_V2, Protocol.X402_V1)
"""The protocols of payments whose price is known before the purchase."""


class Network(StrEnum):
    """The network whose money a challenge asks for."""

    MAINNET = "mainnet-beta"
    DEVNET = "devnet"
    TESTNET = "testnet"
    LOCALNET = "localnet"


@frozen(kw_only=True)
class Leg:
    """One of the transfers that make up a payment.

    Attributes:
        recipient: address of the owner who is paid, not of the token account.
        amount_micro: micro-USDC, at least 1.
        memo: memo that must follow the transfer on chain, if any.
    """

    recipient: str
    amount_micro: int
    memo: str | None = None


@frozen(kw_only=True)
class ChallengeTerms:
    """The parts of a challenge that determine the transaction.

    Attributes:
        mint: address or name of the token; `USDC` is that of the network.
        legs: the transfers, the primary recipient's first.
        fee_payer: address that pays the fee and signs first; None if this service pays it.
    """

    protocol: Protocol
    network: Network
    mint: str
    legs: tuple[Leg, ...]
    fee_payer: str | None

    @property
    def amount_micro(self) -> int:
        """Total that leaves the payer, in micro-USDC."""
        return sum(leg.amount_micro for leg in self.legs)

    @property
    def recipient(self) -> str:
        """Address of the primary recipient."""
        return self.legs[0].recipient

    def digest(self, *, origin: str, memo: str | None) -> str:
        """Return what identifies the purchase, with the seller's origin and the caller's memo: 64 hex digits.

        Sellers name another key that pays their fees, or another memo, in each challenge for one purchase.
        Whether the seller pays the fee is part of the terms.
        """
        legs = [[leg.recipient, leg.amount_micro] for leg in self.legs]
        is_sponsored = self.fee_payer is not None
        parts = [origin, self.protocol.value, self.network.value, self.mint, legs, is_sponsored, memo]
        return hashlib.sha256(json_text.print_canonical_json(parts)).hexdigest()


@frozen(kw_only=True)
class ChannelTerms:
    """What an offer asks of a payment channel, which holds the money that vouchers claim.

    Attributes:
        payee: owner that the channel pays what the shares leave, and that can settle it.
        rent_payer: the seller's key that pays fee and rent of the opening, and signs it first.
        signer: key that signs the vouchers; None for a key of the paying account.
        shares: owners that get a share of what is settled, and its hundredths of a percent.
        grace_seconds: how long the payee can still settle after the payer's request to close.
        blockhash: the blockhash that the opening must use; None if the offer opens no channel.
        slot: slot of that blockhash.
        minimum_micro: the smallest deposit, in micro-USDC.
        timeout_seconds: how long after its signature the seller may settle it; None without a limit.
    """

    payee: str
    rent_payer: str | None
    signer: str | None
    shares: tuple[tuple[str, int], ...]
    grace_seconds: int
    blockhash: str | None
    slot: int | None
    minimum_micro: int = 0
    timeout_seconds: int | None = None

    def digest(self, terms: ChallengeTerms, *, origin: str, limited_key_id: str | None = None) -> str:
        """Return what vouchers of one channel have in common: 64 hex digits. The price may change.

        A key with a limited total shares its channels with no other key, since their caps count to it.
        """
        parts: list[Any] = [origin, terms.protocol.value, terms.network.value]
        parts += [self.payee, self.shares, self.signer]
        if limited_key_id is not None:
            parts.append(limited_key_id)
        return hashlib.sha256(json_text.print_canonical_json(parts)).hexdigest()


@frozen
class Skipped:
    """An offer that is not paid, whatever else its 402 offers.

    Attributes:
        reason: in which form of payment it is that the service does not know, or why it cannot be read.
        is_read: whether its form could be read.
    """

    reason: str
    is_read: bool = True


@frozen(kw_only=True)
class Offer:
    """One way to pay that a challenge offers.

    Attributes:
        expires_us: when the offer ends, if the seller says.
        category: the seller's category, if any.
        resource_url: URL of the purchase, as the seller claims.
        echo: the parts that the response must repeat unchanged.
        channel: what it asks of a channel; None for an offer of a single transfer.
        fault: why the service does not pay on these terms to any caller; None if it does.
    """

    terms: ChallengeTerms
    expires_us: int | None = None
    category: str | None = None
    resource_url: str | None = None
    echo: dict[str, Any] = field(factory=dict, repr=False)
    channel: ChannelTerms | None = None
    fault: str | None = None

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners that it pays, without duplicates, the primary recipient first."""
        shares = () if self.channel is None else self.channel.shares
        paid = [*(leg.recipient for leg in self.terms.legs), *(owner for owner, _ in shares)]
        return tuple(dict.fromkeys(paid))

    @property
    def is_session(self) -> bool:
        """Whether it sells by session: one channel for many requests."""
        return self.channel is not None and self.terms.protocol is Protocol.MPP


@frozen(kw_only=True)
class Presented:
    """A payment as a seller receives it; nothing of it is compared or verified yet.

    Attributes:
        channel: whether it is through a channel, and how: by session of MPP, or up to a maximum by x402.
        echo: the parts of the challenge that it repeats.
        payload: all its fields; those of a payment up to a maximum whatever form its numbers had.
        transaction: the signed bytes; empty for a payment that the payer broadcast, and for a voucher.
        signature: that of a payment that the payer broadcast, or of the voucher.
        voucher: that of the actions `voucher` and `close` of a session.
        payment_id: the payer's name of the payment; x402 only.
    """

    protocol: Protocol
    channel: Literal["session", "upto"] | None = None
    echo: Mapping[str, Any]
    payload: Mapping[str, Any] = field(factory=dict, repr=False)
    transaction: bytes = field(default=b"", repr=False)
    signature: Signature | None = None
    voucher: Voucher | None = None
    payment_id: str | None = None
