"""Reads 402s and their payments, chooses the offer to pay, and judges repeated requests. Pure functions."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.payments import MAX_HEADERS
from agentpay.contract.fields import format_timestamp
from agentpay.contract.transfers import TransferStatus
from agentpay.contract.usdc import MAX_MICRO
from agentpay_server.database.tables import PaymentRow, TransferRecord
from agentpay_server.engine.policy import usdc_text
from agentpay_server.ledger.idempotency import Verdict
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import named, quote
from agentpay_server.plugins.pay402.challenges import mpp, x402
from agentpay_server.plugins.pay402.challenges.terms import (
    ChallengeTerms,
    Network,
    Offer,
    Presented,
    Protocol,
    Skipped,
    UnreadableChallengeError,
)
from agentpay_server.transfers.store import splits_of

_PREFERRED: Final = (Protocol.X402_V2, Protocol.X402_V1, Protocol.MPP, Protocol.X402_UPTO)

MAX_OFFERS: Final = 32
"""How many offers of a 402 are judged."""

MAX_GRACE_SECONDS: Final = 3_600
"""The longest grace period of a channel: for so long a forced close keeps the money locked."""

_FORMS: Final = {True: "intent is session", False: "scheme is upto"}
"""The form of an offer that sells through a channel, by whether it sells by session."""


@frozen(kw_only=True)
class Sifted:
    """The offers of a 402.

    Attributes:
        payable: those that can be paid, by their position in the 402; the one to prefer first.
        reasons: why the others cannot be paid, by their position.
        too_dear_micro: the lowest price of those that only the caller's maximum forbids.
        needs_session_cap: one can be paid with a `session_cap`, or with a higher one.
    """

    payable: Mapping[int, Offer]
    reasons: Mapping[int, str]
    too_dear_micro: int | None
    needs_session_cap: bool


def read_challenge(headers: Iterable[tuple[str, str]], body: bytes) -> list[Offer | Skipped]:
    """Return the offers of a 402, in its order: those of its headers, then those of its body.

    Each challenge, and each offer in it, is read alone. One that cannot be read has its place among the
    offers, with the reason. Only the first `MAX_OFFERS` are read; one more place stands for the others.

    Args:
        headers: of the response, names in any case; only the first `MAX_HEADERS` are read.
        body: of the response; may be truncated at 64 KiB.

    Raises:
        UnreadableChallengeError: none of the challenges and offers can be read; it says why of the first.
    """
    offers = _offers(headers, body)
    found = list(islice(offers, MAX_OFFERS))
    if found and all(isinstance(each, Skipped) and not each.is_read for each in found):
        first = found[0]
        raise UnreadableChallengeError(first.reason if isinstance(first, Skipped) else "")
    if next(offers, None) is not None:
        found.append(Skipped(f"it comes after {MAX_OFFERS} others, and no more offers of a 402 are judged"))
    return found


def _offers(headers: Iterable[tuple[str, str]], body: bytes) -> Iterator[Offer | Skipped]:
    is_v2 = False
    for name, value in islice(headers, MAX_HEADERS):
        try:
            if name.lower() == mpp.CHALLENGE_HEADER:
                yield from mpp.read_header(value)
            elif name.lower() == x402.CHALLENGE_HEADER:
                offers = x402.read_header(value)
                is_v2 = True
                yield from offers
        except UnreadableChallengeError as error:
            yield Skipped(str(error), is_read=False)
    if is_v2:
        # A seller of version 2 may repeat its offers in the body, for clients of version 1.
        return
    try:
        yield from x402.read_body(body)
    except UnreadableChallengeError as error:
        yield Skipped(str(error), is_read=False)


def networks_of(cluster: str | None) -> Collection[Network]:
    """Return the networks whose money a chain has. Mainnet money never counts elsewhere, nor the reverse.

    `cluster` is None for a private chain, which sellers know as devnet, or as localnet if their protocol
    names it.
    """
    return {Network.DEVNET, Network.LOCALNET} if cluster is None else {Network(cluster)}


def sift(
    offers: Sequence[Offer | Skipped],
    *,
    cluster: str | None,
    usdc_mint: str,
    now_us: int,
    max_amount_micro: int | None = None,
    session_cap_micro: int | None = None,
) -> Sifted:
    """Separate the offers that can be paid.

    Sessions come first, then single payments, then those of which the seller names the amount afterwards
    (`upto`). Of each, the cheapest first; at one price x402 version 2, version 1, MPP.

    Args:
        offers: from `read_challenge`.
        cluster: the cluster of the service; None for a private chain.
        usdc_mint: the mint of USDC there.
        now_us: the current time.
        max_amount_micro: the caller's maximum, if any.
        session_cap_micro: what the caller locks in a session at most; None if it pays no sessions.
    """
    networks = networks_of(cluster)
    payable, reasons = {}, {}
    too_dear: list[int] = []
    needs_session_cap = False
    for position, offer in enumerate(offers):
        if isinstance(offer, Skipped):
            reasons[position] = offer.reason
            continue
        reason = _money_reason(offer, networks, usdc_mint) or _reason(offer, now_us)
        micro = offer.terms.amount_micro
        if reason is None and max_amount_micro is not None and micro > max_amount_micro:
            too_dear.append(micro)
            reason = f"price is {usdc_text(micro)} USDC and max_amount {usdc_text(max_amount_micro)} USDC"
        elif reason is None:
            reason = _cap_reason(offer, session_cap_micro)
            needs_session_cap |= reason is not None
        if reason is None:
            payable[position] = offer
        else:
            reasons[position] = reason
    return Sifted(
        payable=dict(sorted(payable.items(), key=_preference)),
        reasons=reasons,
        too_dear_micro=min(too_dear, default=None),
        needs_session_cap=needs_session_cap,
    )


def _money_reason(offer: Offer, networks: Collection[Network], usdc_mint: str) -> str | None:
    terms = offer.terms
    if terms.network not in networks:
        return f"network is {terms.network}; this service pays on {' or '.join(sorted(networks))}"
    if terms.mint not in (usdc_mint, mpp.USDC):
        return f"token is {named(terms.mint)}; this service pays only USDC, {usdc_mint}"
    if offer.fault is not None:
        form = "" if offer.channel is None else _FORMS[offer.is_session] + ", and "
        return form + offer.fault
    return None


def _reason(offer: Offer, now_us: int) -> str | None:
    terms = offer.terms
    if terms.amount_micro > MAX_MICRO:
        return f"price is above {usdc_text(MAX_MICRO)} USDC, the most that this service pays"
    if offer.expires_us is not None and offer.expires_us <= now_us:
        return f"expired at {format_timestamp(from_us(offer.expires_us))}; request the resource again"
    if offer.channel is not None and not 0 < offer.channel.grace_seconds <= MAX_GRACE_SECONDS:
        bounds = f"its grace period is not between 1 and {MAX_GRACE_SECONDS} seconds"
        return f"{_FORMS[offer.is_session]}, and {bounds}"
    return None


def _cap_reason(offer: Offer, session_cap_micro: int | None) -> str | None:
    channel = offer.channel
    if channel is None or not offer.is_session:
        return None
    if session_cap_micro is None:
        return "intent is session, which is paid only with session_cap: the USDC to lock in a channel"
    for name, micro in (("minimumDeposit", channel.minimum_micro), ("price", offer.terms.amount_micro)):
        if micro > session_cap_micro:
            cap = usdc_text(session_cap_micro)
            return f"{name} is {usdc_text(micro)} USDC and session_cap {cap} USDC"
    return None


def _preference(placed: tuple[int, Offer]) -> tuple[int, int, int]:
    offer = placed[1]
    kind = 1 if offer.channel is None else 0 if offer.is_session else 2
    return kind, offer.terms.amount_micro, _PREFERRED.index(offer.terms.protocol)


def wrap(offer: Offer, transaction: bytes, *, payment_id: str) -> tuple[str, str]:
    """Return name and value of the header that presents a payment of an exact price, by its protocol."""
    if offer.terms.protocol is Protocol.MPP:
        return mpp.wrap(offer, transaction)
    return x402.wrap(offer, transaction, payment_id=payment_id)


def read_payment(headers: Iterable[tuple[str, str]]) -> Presented | None:
    """Return the payment that a request presents, of any protocol; None without one.

    Raises:
        UnreadableChallengeError: the first header of a payment cannot be read.
    """
    for name, value in headers:
        lower = name.lower()
        try:
            if lower in mpp.PAYMENT_HEADERS and value.lower().startswith(mpp.SCHEME):
                return mpp.read_payment(value)
            if lower in x402.PAYMENT_HEADERS:
                return x402.read_payment(lower, value)
        except UnreadableChallengeError as error:
            raise UnreadableChallengeError(f"{name} cannot be read: {error}") from None
    return None


# --- Repeated requests


def verdict_if_equal(status: str, error: str | None) -> Verdict:
    """Return how to treat a request that equals the payment that holds its key.

    An approved payment is in progress: it is signed for the request. A signed one is never signed again.
    """
    if error == ErrorCode.INSUFFICIENT_BALANCE:
        return Verdict.RETRY
    return Verdict.RESUME if status == TransferStatus.APPROVED else Verdict.REPLAY


def differences(
    transfer: TransferRecord, payment: PaymentRow, terms: ChallengeTerms, *, origin: str, memo: str | None
) -> list[str]:
    """Return the terms in which a purchase differs from a stored payment, with both values where they fit.

    Args:
        transfer: the transfer of the stored payment.
        payment: the stored payment.
        terms: the terms of the new challenge.
        origin: the new seller.
        memo: the memo of the new request.
    """
    found = []
    if payment.origin != origin:
        found.append(f"origin was {quote(payment.origin)} and is {quote(origin)}")
    if payment.protocol != terms.protocol.value:
        found.append(f"protocol was {payment.protocol} and is {terms.protocol.value}")
    if transfer.amount != terms.amount_micro:
        was, now = usdc_text(transfer.amount), usdc_text(terms.amount_micro)
        found.append(f"amount was {was} USDC and is {now} USDC")
    if payment.recipient != terms.recipient:
        found.append(f"recipient was {payment.recipient} and is {terms.recipient}")
    splits = [(split.recipient, split.amount_micro) for split in splits_of(transfer)]
    if splits != [(leg.recipient, leg.amount_micro) for leg in terms.legs[1:]]:
        found.append("splits differ")
    if (payment.fee_payer is None) != (terms.fee_payer is None):
        payers = ("this service", "the seller")
        was, now = (payers[payer is not None] for payer in (payment.fee_payer, terms.fee_payer))
        found.append(f"the network fee was to be paid by {was} and now by {now}")
    if transfer.memo != memo:
        found.append("memo differs")
    # What no column holds: the network, and the name of the token.
    return found or ["its network or token was another"]
