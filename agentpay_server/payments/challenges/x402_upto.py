"""x402 version 2, scheme `upto` on Solana: reads offers, builds payloads. Pure functions.

The payer locks the maximum in a channel for one request. The seller opens it, serves, and alone signs what it
takes; the rest comes back. All of it goes to `payTo`: the seller's `feePayer`, which lends the rent and is
the channel's payee, gets no share.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final

from solders.pubkey import Pubkey

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import OnchainTerms
from agentpay_server.database.tables import ChannelRecord
from agentpay_server.payments.challenges import fields
from agentpay_server.payments.challenges.mpp_fields import token_fault
from agentpay_server.payments.challenges.terms import (
    ChallengeTerms,
    ChannelTerms,
    Leg,
    Network,
    Offer,
    Protocol,
    Skipped,
    UnreadableChallengeError,
)
from agentpay_server.platform.clock import SECOND_US

SCHEME: Final = "upto"

MAX_TIMEOUT_SECONDS: Final = 3_600
"""The longest time that a seller gets to settle, whatever it asks for: the maximum is locked so long."""

_LATE_SECONDS: Final = 5
"""By how much the seller's clock may be behind: it refuses a payment that expires later than it asked for."""


def offer(
    accepted: dict[str, Any], network: Network, echo: Mapping[str, Any], resource_url: str | None
) -> Offer | Skipped:
    """Return the offer of an entry whose scheme is `upto`."""
    try:
        return _offer(accepted, network, echo, resource_url)
    except UnreadableChallengeError as error:
        return Skipped(f"scheme is upto, and its offer cannot be read: {error}")


def _offer(
    accepted: dict[str, Any], network: Network, echo: Mapping[str, Any], resource_url: str | None
) -> Offer:
    extra = fields.member(accepted, "extra", dict)
    recipient, fee_payer = fields.address(accepted, "payTo"), fields.address(extra, "feePayer")
    signer = fields.address(extra, "receiverAuthorizer")
    timeout = fields.member(accepted, "maxTimeoutSeconds", int)
    leg = Leg(
        recipient=recipient,
        amount_micro=fields.amount(accepted, "amount"),
        memo=fields.memo(extra, "memo"),
    )
    channel = ChannelTerms(
        payee=fee_payer,
        rent_payer=fee_payer,
        signer=signer,
        shares=((recipient, codecs.WHOLE_BPS),),
        grace_seconds=fields.member(extra, "withdrawDelay", int),
        blockhash=fields.blockhash(extra, "recentBlockhash"),
        slot=fields.slot(extra, "recentSlot"),
        timeout_seconds=min(timeout, MAX_TIMEOUT_SECONDS),
    )
    return Offer(
        terms=ChallengeTerms(
            protocol=Protocol.X402_UPTO,
            network=network,
            mint=fields.token(accepted, "asset"),
            legs=(leg,),
            fee_payer=fee_payer,
        ),
        resource_url=resource_url,
        echo={**echo, "accepted": accepted, "network": accepted["network"]},
        channel=channel,
        fault=_fault(extra, signer=signer, timeout_seconds=timeout),
    )


def _fault(extra: Mapping[str, Any], *, signer: str, timeout_seconds: int) -> str | None:
    program = fields.text(extra, "channelProgram")
    if program is not None and program != str(codecs.PROGRAM):
        return f"channelProgram is another program than {codecs.PROGRAM}"
    if not Pubkey.from_string(signer).is_on_curve():
        return "receiverAuthorizer is not a key that can sign"
    if timeout_seconds < 1:
        return "maxTimeoutSeconds is not at least 1"
    return token_fault(extra)


def expires_at(channel: ChannelTerms, now: int) -> int:
    """Return until when the seller may settle a channel that is signed now, both in Unix seconds."""
    assert channel.timeout_seconds is not None  # noqa: S101 - an offer of this scheme has it
    seconds = channel.timeout_seconds
    return now + seconds - min(seconds // 10, _LATE_SECONDS)


def payload(opening: OnchainTerms, record: ChannelRecord, offer: Offer) -> dict[str, Any]:
    """Return the payload that pays an offer by opening a channel, the same whenever it is asked for."""
    created, expires = record.created_us // SECOND_US, (record.challenge_expires_us or 0) // SECOND_US
    valid_after = offer.echo["accepted"]["extra"].get("validAfter")
    return {
        "from": str(opening.payer),
        "maxAmount": str(opening.deposit_micro),
        "deposit": str(opening.deposit_micro),
        "expiresAt": expires,
        "validAfter": valid_after if type(valid_after) is int else created - _LATE_SECONDS,
        "nonce": str(opening.salt),
        "openSlot": str(opening.open_slot),
        "channelId": str(opening.address),
        "authorizedSigner": str(opening.signer),
        "openTransaction": base64.b64encode(record.raw).decode("ascii"),
    }
