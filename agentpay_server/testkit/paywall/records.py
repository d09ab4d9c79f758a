"""Records of a paywall: sales and requests."""

from datetime import datetime
from decimal import Decimal
from typing import Literal

from attrs import field, frozen

from agentpay_server.payments.challenges.terms import Protocol

SaleStatus = Literal["held", "settled", "failed"]


@frozen(kw_only=True)
class Sale:
    """A payment that the seller accepted: one for each signed message, however often it was presented.

    Attributes:
        path: path of the product.
        protocol: protocol in which the payment was presented.
        amount_usdc: total of all legs, in USDC.
        payer: address of the owner who paid.
        recipient: address of the primary recipient.
        status: `held` if the seller has the signed bytes, and has not broadcast them or does not know whether
            they landed; `settled` if the payment landed; `failed` if the chain refused it.
        tx_signature: signature under which it was broadcast; None before.
        at: the seller's time at which it was accepted.
        message_hash: identifies the signed message.
    """

    path: str
    protocol: Protocol
    amount_usdc: Decimal
    payer: str
    recipient: str
    status: SaleStatus
    tx_signature: str | None
    at: datetime
    message_hash: str = field(repr=False)


@frozen(kw_only=True)
class PaywallRequest:
    """One request that reached the seller, with its response.

    Attributes:
        method: such as `GET`.
        url: the whole URL.
        protocol: protocol of the presented payment, if any.
        status: HTTP status of the response; None if the connection was dropped.
        reason: why the payment was refused, as an x402 error code; None if it was not.
        message: the same as a sentence, which the body of the 402 has too.
        at: the seller's time at which it arrived.
    """

    method: str
    url: str
    protocol: Protocol | None
    status: int | None
    reason: str | None
    message: str | None
    at: datetime


ChannelStatus = Literal["open", "sealed", "settled", "lost"]


@frozen(kw_only=True)
class PaywallChannel:
    """A channel that a payer opened with the seller, by a session of MPP or for one x402 `upto` payment.

    Attributes:
        protocol: `session` or `upto`.
        path: path of the product for which it was opened.
        channel: address of the channel.
        payer: address of the owner who paid.
        deposit_usdc: USDC in the channel.
        accepted_usdc: cumulative amount of the highest voucher that the seller holds.
        spent_usdc: how much of that the seller has served for.
        served: how many requests it has served.
        status: `open`; `sealed` if the seller ended it early; `settled` if it was paid out; `lost` if it
            ended on chain without the seller.
        settled_usdc: what the seller took; 0 until it is settled.
        tx_signature: signature of the opening.
        settlement_tx_signature: signature of the payout; None before, and if the node did not respond to it.
        at: the seller's time at which it was opened.
    """

    protocol: Literal["session", "upto"]
    path: str
    channel: str
    payer: str
    deposit_usdc: Decimal
    accepted_usdc: Decimal
    spent_usdc: Decimal
    served: int
    status: ChannelStatus
    settled_usdc: Decimal
    tx_signature: str
    settlement_tx_signature: str | None
    at: datetime
