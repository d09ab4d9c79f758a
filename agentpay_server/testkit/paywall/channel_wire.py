"""Sessions of MPP and x402 `upto` on the wire: a seller's challenges, and the payments that it reads."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final

from attrs import frozen
from solders.pubkey import Pubkey
from solders.signature import Signature

from agentpay.contract.fields import format_timestamp
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import Voucher
from agentpay_server.chain.instructions import TOKEN_PROGRAM, USDC_DECIMALS
from agentpay_server.payments.challenges import fields, x402
from agentpay_server.payments.challenges.terms import UnreadableChallengeError
from agentpay_server.platform.clock import from_us
from agentpay_server.testkit.facilitator.checking import InvalidPaymentError
from agentpay_server.testkit.facilitator.service import NETWORKS
from agentpay_server.testkit.paywall import challenges
from agentpay_server.testkit.paywall.channel_products import SellerTerms, SessionProduct, UptoProduct

TIMEOUT_SECONDS: Final = 60
_VOLATILE: Final = ("recentBlockhash", "recentSlot")
"""What differs between two challenges on equal terms."""


@frozen(kw_only=True)
class ChainMoment:
    """What a new challenge says about the chain."""

    blockhash: str
    slot: int


@frozen(kw_only=True)
class SignedVoucher:
    """A voucher as it was presented; its signature is not verified yet."""

    voucher: Voucher
    signer: str
    signature: Signature


@frozen(kw_only=True)
class SessionAction:
    """What a payer of a session presents.

    Attributes:
        action: `open`, `voucher` or `close`; others are refused.
        challenge: the parameters of the challenge, verbatim.
        payload: all fields of the action.
    """

    action: str
    challenge: Mapping[str, str]
    payload: Mapping[str, Any]

    @property
    def channel(self) -> str:
        return _text(self.payload, "channelId")

    @property
    def transaction(self) -> bytes:
        return _base64(self.payload, "transaction")

    def voucher(self) -> SignedVoucher:
        try:
            signed = fields.member(self.payload, "voucher", dict)
            _require_ed25519(signed)
            voucher = fields.member(signed, "voucher", dict)
            return SignedVoucher(
                voucher=Voucher(
                    channel=Pubkey.from_string(fields.address(voucher, "channelId")),
                    cumulative_micro=_whole(voucher, "cumulativeAmount"),
                    expires_at=_whole(voucher, "expiresAt") if "expiresAt" in voucher else 0,
                ),
                signer=fields.address(signed, "signer"),
                signature=Signature.from_string(fields.member(signed, "signature", str)),
            )
        except (UnreadableChallengeError, ValueError) as error:
            raise InvalidPaymentError("invalid_payload", f"the voucher cannot be read: {error}") from None


@frozen(kw_only=True)
class UptoPayment:
    """What a payer presents to a seller that charges up to a maximum."""

    accepted: Mapping[str, Any]
    payload: Mapping[str, Any]

    @property
    def transaction(self) -> bytes:
        return _base64(self.payload, "openTransaction")

    def whole(self, name: str) -> int:
        try:
            return _whole(self.payload, name)
        except UnreadableChallengeError as error:
            raise InvalidPaymentError("invalid_payload", str(error)) from None

    def text(self, name: str) -> str:
        return _text(self.payload, name)


# --- Writing


def session_request(product: SessionProduct, terms: SellerTerms, *, amount_micro: int) -> dict[str, Any]:
    """Return the `request` of a session's challenge, without what differs from one challenge to the next."""
    details: dict[str, Any] = {
        "network": "localnet",
        "decimals": USDC_DECIMALS,
        "tokenProgram": str(TOKEN_PROGRAM),
        "channelProgram": str(codecs.PROGRAM),
        "feePayer": True,
        "feePayerKey": terms.fee_payer,
        "voucherSigner": "client",
        "gracePeriodSeconds": product.grace_seconds,
    }
    if product.shares:
        details["distributionSplits"] = [
            {"recipient": str(share.recipient), "shareBps": share.bps} for share in product.shares
        ]
    if product.idle_seconds is not None:
        details["idleTimeoutSeconds"] = product.idle_seconds
    request: dict[str, Any] = {
        "amount": str(amount_micro),
        "currency": terms.mint,
        "recipient": terms.payee,
        "unitType": "request",
        "methodDetails": details,
    }
    if product.minimum_micro is not None:
        request["minimumDeposit"] = str(product.minimum_micro)
    if product.suggested_micro is not None:
        request["suggestedDeposit"] = str(product.suggested_micro)
    return request


def session_challenge(
    request: Mapping[str, Any], moment: ChainMoment, *, category: str | None, description: str, now_us: int
) -> tuple[str, str]:
    details = {
        **request["methodDetails"],
        "recentBlockhash": moment.blockhash,
        "recentSlot": str(moment.slot),
    }
    written = challenges.mpp_challenge(
        {**request, "methodDetails": details},
        intent="session",
        category=category,
        description=description,
        now_us=now_us,
    )
    return "www-authenticate", written


def session_receipt(
    *, channel: str, challenge_id: str, now_us: int, accepted_micro: int, spent_micro: int, **more: str
) -> tuple[str, str]:
    parameters = {
        "status": "success",
        "method": "solana",
        "intent": "session",
        "reference": channel,
        "challengeId": challenge_id,
        "timestamp": format_timestamp(from_us(now_us)),
        "acceptedCumulative": str(accepted_micro),
        "spent": str(spent_micro),
        **more,
    }
    return "payment-receipt", challenges.encoded_for_url(parameters)


def upto_entry(product: UptoProduct, terms: SellerTerms) -> dict[str, Any]:
    """Return the entry of an x402 challenge, without what differs from one challenge to the next."""
    return {
        "scheme": "upto",
        "network": NETWORKS[2],
        "asset": terms.mint,
        "amount": str(product.maximum_micro),
        "payTo": terms.recipient,
        "maxTimeoutSeconds": TIMEOUT_SECONDS,
        "extra": {
            "feePayer": terms.fee_payer,
            "receiverAuthorizer": terms.authorizer,
            "withdrawDelay": product.grace_seconds,
            "tokenProgram": str(TOKEN_PROGRAM),
            "decimals": USDC_DECIMALS,
        },
    }


def with_moment(entry: Mapping[str, Any], moment: ChainMoment) -> dict[str, Any]:
    recent = {"recentBlockhash": moment.blockhash, "recentSlot": str(moment.slot)}
    return {**entry, "extra": {**entry["extra"], **recent}}


def upto_receipt(*, payer: str, signature: str, amount_micro: int) -> tuple[str, str]:
    content = {
        "success": True,
        "payer": payer,
        "transaction": signature,
        "network": NETWORKS[2],
        "amount": str(amount_micro),
    }
    return "payment-response", challenges.encoded(content)


# --- Reading


def read(headers: Iterable[tuple[str, str]]) -> SessionAction | UptoPayment | None:
    """Return a payment through a channel, None for another one; `InvalidPaymentError` if unreadable."""
    for name, value in headers:
        lower = name.lower()
        is_mpp = lower in ("payment-authorization", "authorization")
        try:
            if is_mpp and value[:8].lower() == "payment ":
                content = fields.base64_object(value[8:].strip(), "the payment", is_url=True)
                challenge = fields.member(content, "challenge", dict)
                if challenge.get("intent") == "session":
                    payload = fields.member(content, "payload", dict)
                    action = fields.member(payload, "action", str)
                    return SessionAction(action=action, challenge=challenge, payload=payload)
            elif lower == "payment-signature":
                content, _ = x402.parsed(fields.base64_bytes(value.strip(), "the payment"), "the payment")
                accepted = fields.member(content, "accepted", dict)
                if accepted.get("scheme") == "upto":
                    return UptoPayment(accepted=accepted, payload=fields.member(content, "payload", dict))
        except UnreadableChallengeError as error:
            raise InvalidPaymentError("invalid_payload", f"{name} cannot be read: {error}") from None
    return None


def require_own_session(
    action: SessionAction, terms: Iterable[Mapping[str, Any]], now_us: int
) -> ChainMoment:
    """Refuse an action unless it is for a challenge of this seller, on one of these terms.

    Return what the challenge said about the chain. An expired challenge refuses only openings.
    """
    challenges.require_issued(action.challenge)
    try:
        request = fields.base64_object(action.challenge["request"], "the challenge", is_url=True)
        details = fields.member(request, "methodDetails", dict)
    except (KeyError, UnreadableChallengeError):
        raise InvalidPaymentError("payment_invalid", "the challenge cannot be read") from None
    lasting = {name: value for name, value in details.items() if name not in _VOLATILE}
    if {**request, "methodDetails": lasting} not in terms:
        raise InvalidPaymentError("payment_invalid", "the challenge is for something else")
    if action.action == "open" and action.challenge["expires"] < format_timestamp(from_us(now_us)):
        raise InvalidPaymentError("payment_expired", "the challenge has expired")
    return ChainMoment(blockhash=details["recentBlockhash"], slot=int(details["recentSlot"]))


def require_own_upto(payment: UptoPayment, entry: Mapping[str, Any]) -> None:
    extra = payment.accepted.get("extra")
    lasting = extra if isinstance(extra, dict) else {}
    lasting = {name: value for name, value in lasting.items() if name not in _VOLATILE}
    if {**payment.accepted, "extra": lasting} != entry:
        raise InvalidPaymentError(
            "no_matching_payment_requirements", "accepted is not an offer of this seller"
        )


def _require_ed25519(signed: Mapping[str, Any]) -> None:
    if signed.get("signatureType") != "ed25519":
        raise UnreadableChallengeError("signatureType must be ed25519")


def _text(holder: Mapping[str, Any], name: str) -> str:
    try:
        return fields.member(holder, name, str)
    except UnreadableChallengeError as error:
        raise InvalidPaymentError("invalid_payload", str(error)) from None


def _base64(holder: Mapping[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(_text(holder, name), validate=True)
    except ValueError:
        raise InvalidPaymentError("invalid_payload", f"{name} is not base64") from None


def _whole(holder: Mapping[str, Any], name: str) -> int:
    """Read a whole number, or its decimal digits as text: JSON loses digits of large numbers."""
    value = holder.get(name)
    if type(value) is int and 0 <= value < 2**63:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        return int(value)
    raise UnreadableChallengeError(f"{name} must be a whole number")
