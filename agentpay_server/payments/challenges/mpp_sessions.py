"""MPP, intent `session`: reads challenges, builds the payloads of openings, vouchers and closings. Pure.

Only the current generation of the protocol is paid, of which the seller broadcasts the opening and pays its
fee, and whose vouchers the paying account signs. An offer that cannot be read, or asks for anything else, is
not paid, with a reason: other offers of the same 402 may be payable.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final

from solders.pubkey import Pubkey

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelError, OnchainTerms, Share, Voucher
from agentpay_server.payments.challenges import fields
from agentpay_server.payments.challenges.mpp_fields import network_of, token_fault
from agentpay_server.payments.challenges.terms import (
    ChallengeTerms,
    ChannelTerms,
    Leg,
    Offer,
    Protocol,
    Skipped,
    UnreadableChallengeError,
)

MAX_SHARES: Final = 8
"""The most shares that a channel of this service has. Sellers of the protocol accept as many."""


def offer(
    request: Mapping[str, Any],
    *,
    details: Mapping[str, Any] | None,
    expires_us: int | None,
    category: str | None,
    echo: dict[str, Any],
) -> Offer | Skipped:
    """Return the offer of a challenge, given its decoded `request` and the `methodDetails` in it."""
    if details is None:
        if "cap" in request:
            return Skipped("it is a session of an older dialect of MPP, which has no methodDetails")
        return Skipped("it is a session without methodDetails")
    try:
        return _offer(request, details, expires_us=expires_us, category=category, echo=echo)
    except UnreadableChallengeError as error:
        return Skipped(f"intent is session, and its offer cannot be read: {error}")


def _offer(
    request: Mapping[str, Any],
    details: Mapping[str, Any],
    *,
    expires_us: int | None,
    category: str | None,
    echo: dict[str, Any],
) -> Offer:
    amount, recipient = fields.amount(request, "amount"), fields.address(request, "recipient")
    is_sponsored = bool(fields.optional(details, "feePayer", bool))
    sponsor = fields.address(details, "feePayerKey") if is_sponsored else None
    shares = _shares(details)
    channel = ChannelTerms(
        payee=recipient,
        rent_payer=sponsor,
        signer=None,
        shares=shares,
        grace_seconds=fields.member(details, "gracePeriodSeconds", int),
        blockhash=fields.blockhash(details, "recentBlockhash"),
        slot=fields.slot(details, "recentSlot"),
        minimum_micro=_amount_or_zero(request, "minimumDeposit"),
    )
    return Offer(
        terms=ChallengeTerms(
            protocol=Protocol.MPP,
            network=network_of(details),
            mint=fields.token(request, "currency"),
            legs=(Leg(recipient=recipient, amount_micro=amount),),
            fee_payer=sponsor,
        ),
        expires_us=expires_us,
        category=category,
        echo=echo,
        channel=channel,
        fault=_fault(details, amount, is_sponsored=is_sponsored),
    )


def _fault(details: Mapping[str, Any], amount_micro: int, *, is_sponsored: bool) -> str | None:
    program = fields.text(details, "channelProgram")
    if program != str(codecs.PROGRAM):
        return f"channelProgram is another program than {codecs.PROGRAM}"
    if (fields.text(details, "voucherSigner") or "client") != "client":
        return "voucherSigner is not client: the seller would sign the vouchers itself"
    if not is_sponsored:
        return "feePayer is not true, so the account would pay fee and rent in SOL, which it does not hold"
    delta = _amount_or_zero(details, "minVoucherDelta")
    if delta > amount_micro:
        return "minVoucherDelta is above the price of a request"
    return token_fault(details)


def _shares(details: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    given = fields.optional(details, "distributionSplits", list) or []
    if len(given) > MAX_SHARES:
        raise UnreadableChallengeError(f"distributionSplits has more than {MAX_SHARES} entries")
    shares = []
    for entry in given:
        split = fields.exactly(entry, dict, "a split")
        shares.append((fields.address(split, "recipient"), fields.member(split, "shareBps", int)))
    try:
        codecs.check_shares(shares_of(shares))
    except (ChannelError, OverflowError) as error:
        raise UnreadableChallengeError(f"distributionSplits: {error}") from None
    return tuple(shares)


def shares_of(shares: tuple[tuple[str, int], ...] | list[tuple[str, int]]) -> tuple[Share, ...]:
    """Return shares as the program has them."""
    return tuple(Share(Pubkey.from_string(recipient), bps) for recipient, bps in shares)


def _amount_or_zero(holder: Mapping[str, Any], key: str) -> int:
    found = fields.text(holder, key)
    if found is None:
        return 0
    if not (found.isascii() and found.isdigit() and len(found) <= 20 and int(found) <= fields.MAX_AMOUNT):
        raise UnreadableChallengeError(f"{key} must be a whole number, as a string")
    return int(found)


# --- Payloads


def opening_fields(opening: OnchainTerms) -> dict[str, Any]:
    """Return the fields of a payload that repeat what its transaction opens."""
    return {
        "channelId": str(opening.address),
        "payer": str(opening.payer),
        "payee": str(opening.payee),
        "mint": str(opening.mint),
        "authorizedSigner": str(opening.signer),
        "salt": str(opening.salt),
        "openSlot": str(opening.open_slot),
        "depositAmount": str(opening.deposit_micro),
        "gracePeriodSeconds": opening.grace_seconds,
    }


def open_payload(opening: OnchainTerms, transaction: bytes) -> dict[str, Any]:
    """Return the payload that opens a channel."""
    payload = {
        "action": "open",
        **opening_fields(opening),
        "transaction": base64.b64encode(transaction).decode("ascii"),
    }
    if opening.shares:
        payload["distributionSplits"] = [
            {"recipient": str(share.recipient), "shareBps": share.bps} for share in opening.shares
        ]
    return payload


def voucher_payload(voucher: Voucher, *, signer: str, signature: str, is_closing: bool) -> dict[str, Any]:
    """Return the payload that pays with a voucher, or closes its channel with it."""
    return {
        "action": "close" if is_closing else "voucher",
        "channelId": str(voucher.channel),
        "voucher": {
            "voucher": {
                "channelId": str(voucher.channel),
                "cumulativeAmount": str(voucher.cumulative_micro),
            },
            "signer": signer,
            "signature": signature,
            "signatureType": "ed25519",
        },
    }
