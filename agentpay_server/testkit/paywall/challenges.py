"""Challenges as sellers write them (hostile ones: `hostile.py`), and payments as sellers read them."""

import base64
import hashlib
import hmac
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen
from solders.signature import Signature

from agentpay.contract import json_text
from agentpay.contract.fields import format_timestamp
from agentpay_server.chain.instructions import TOKEN_PROGRAM, USDC_DECIMALS
from agentpay_server.payments.challenges import fields, x402
from agentpay_server.payments.challenges.terms import (
    ChallengeTerms,
    Network,
    Protocol,
    UnreadableChallengeError,
)
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.testkit.facilitator.checking import InvalidPaymentError
from agentpay_server.testkit.facilitator.service import NETWORKS

Headers = list[tuple[str, str]]

REALM: Final = "agentpay paywall"
_SECRET: Final = b"agentpay paywall: binds challenges of tests, protects nothing"
_CHALLENGE_SECONDS: Final = 300
_NOT_PLAIN: Final = re.compile(r'[^ -~]|[\\"]')
_TIMEOUT_SECONDS: Final = 60
_V1, _V2 = Protocol.X402_V1, Protocol.X402_V2
_MAINNETS: Final = {_V2: "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp", _V1: "solana"}
_PAYMENT_HEADERS: Final = {
    "payment-signature": _V2,
    "x-payment": _V1,
    "payment-authorization": Protocol.MPP,
    "authorization": Protocol.MPP,
}


@frozen(kw_only=True)
class ChallengeParts:
    """The parts of a challenge beyond its terms.

    `error` is why the last payment was refused, as a code, and `message` as a sentence. `now_us` is in
    microseconds since 1970.
    """

    url: str
    now_us: int
    description: str = ""
    category: str | None = None
    error: str | None = None
    message: str | None = None


@frozen(kw_only=True)
class Presented:
    """`echo` repeats parts of the challenge.

    `signature` is that of a payment that the payer broadcast; such a payment has no `transaction`.
    """

    protocol: Protocol
    transaction: bytes = field(default=b"", repr=False)
    signature: str | None = None
    echo: Mapping[str, Any]


# --- Writing


def write(
    offers: Sequence[ChallengeTerms],
    challenge: ChallengeParts,
    *,
    sessions: Sequence[tuple[str, str]] = (),
    entries: Sequence[Mapping[str, Any]] = (),
) -> tuple[Headers, bytes]:
    """`sessions` are further headers, and `entries` further offers of x402."""
    headers: Headers = list(sessions)
    content: dict[str, Any] = {}
    accepts: list[Mapping[str, Any]] = []
    for terms in offers:
        if terms.protocol is Protocol.MPP:
            headers.append(("www-authenticate", _mpp(terms, challenge)))
        elif terms.protocol is _V2:
            accepts.append(requirements(terms))
        else:
            content = _v1(terms, challenge)
    accepts += entries
    if accepts:
        headers.append(("payment-required", encoded(_v2(accepts, challenge))))
    if challenge.message is not None:
        content = {"message": challenge.message, **content}
    if challenge.error is not None:
        content = {"error": challenge.error, **content}
    return headers, json_text.print_json(content)


def requirements(terms: ChallengeTerms, *, url: str = "", description: str = "") -> dict[str, Any]:
    """Return the entry of an x402 challenge, which a payment of version 2 must repeat."""
    extra: dict[str, Any] = {}
    if terms.fee_payer is not None:
        extra["feePayer"] = terms.fee_payer
    if terms.legs[0].memo is not None:
        extra["memo"] = terms.legs[0].memo
    version = 2 if terms.protocol is _V2 else 1
    is_main = terms.network is Network.MAINNET
    entry = {
        "scheme": "exact",
        "network": _MAINNETS[terms.protocol] if is_main else NETWORKS[version],
        "asset": terms.mint,
        "amount" if version == 2 else "maxAmountRequired": str(terms.amount_micro),
        "payTo": terms.recipient,
        "maxTimeoutSeconds": _TIMEOUT_SECONDS,
        "extra": extra,
    }
    if version == 2:
        return entry
    return {**entry, "resource": url, "description": description, "mimeType": "application/json"}


def _v2(accepts: Sequence[Mapping[str, Any]], challenge: ChallengeParts) -> dict[str, Any]:
    return {
        "x402Version": 2,
        "error": challenge.error or "Payment required",
        "resource": {
            "url": challenge.url,
            "description": challenge.description,
            "mimeType": "application/json",
        },
        "accepts": list(accepts),
    }


def _v1(terms: ChallengeTerms, challenge: ChallengeParts) -> dict[str, Any]:
    entry = requirements(terms, url=challenge.url, description=challenge.description)
    return {"x402Version": 1, "error": challenge.error or "Payment required", "accepts": [entry]}


def _mpp(terms: ChallengeTerms, challenge: ChallengeParts) -> str:
    return mpp_challenge(
        mpp_request(terms),
        intent="charge",
        category=challenge.category,
        description=challenge.description,
        now_us=challenge.now_us,
    )


def mpp_challenge(
    request: Mapping[str, Any], *, intent: str, category: str | None, description: str, now_us: int
) -> str:
    """Return the value of the header that asks for `request`."""
    parameters = {
        "realm": REALM,
        "method": "solana",
        "intent": intent,
        "request": encoded_for_url(request),
        "expires": format_timestamp(from_us(now_us + _CHALLENGE_SECONDS * SECOND_US)),
    }
    if category is not None:
        parameters["opaque"] = encoded_for_url({"category": category})
    if description:
        parameters["description"] = description
    return "Payment " + ", ".join(
        f'{name}="{_quoted(value)}"' for name, value in {"id": _mac(parameters), **parameters}.items()
    )


def mpp_request(terms: ChallengeTerms) -> dict[str, Any]:
    primary, *others = terms.legs
    details: dict[str, Any] = {
        "network": terms.network.value,
        "decimals": USDC_DECIMALS,
        "tokenProgram": str(TOKEN_PROGRAM),
    }
    if terms.fee_payer is not None:
        details |= {"feePayer": True, "feePayerKey": terms.fee_payer}
    if others:
        details["splits"] = [{"recipient": leg.recipient, "amount": str(leg.amount_micro)} for leg in others]
    request: dict[str, Any] = {
        "amount": str(terms.amount_micro),
        "currency": terms.mint,
        "recipient": terms.recipient,
        "methodDetails": details,
    }
    if primary.memo is not None:
        request["externalId"] = primary.memo
    return request


def receipt(presented: Presented, *, payer: str, signature: str, now_us: int) -> tuple[str, str]:
    """`signature` is empty for none."""
    if presented.protocol is Protocol.MPP:
        parameters = {
            "status": "success",
            "method": "solana",
            "reference": signature,
            "challengeId": str(presented.echo.get("id", "")),
            "timestamp": format_timestamp(from_us(now_us)),
        }
        return "payment-receipt", encoded_for_url(parameters)
    version = 2 if presented.protocol is _V2 else 1
    content = {"success": True, "payer": payer, "transaction": signature, "network": NETWORKS[version]}
    return "payment-response" if version == 2 else "x-payment-response", encoded(content)


# --- Reading


def read_payment(headers: Iterable[tuple[str, str]]) -> Presented | None:
    """Return the presented payment, if any; `InvalidPaymentError` if it cannot be read."""
    for name, value in headers:
        protocol = _PAYMENT_HEADERS.get(name.lower())
        if protocol is None or (protocol is Protocol.MPP and value[:8].lower() != "payment "):
            continue
        try:
            return _presented(protocol, value)
        except UnreadableChallengeError as error:
            raise InvalidPaymentError("invalid_payload", f"{name} cannot be read: {error}") from None
    return None


def require_own(presented: Presented, terms: ChallengeTerms, now_us: int) -> None:
    """Refuse a payment unless it is for a challenge that this seller issued for `terms`."""
    if presented.protocol is Protocol.MPP:
        _require_own_mpp(presented.echo, terms, now_us)
    elif presented.protocol is _V2:
        if presented.echo != requirements(terms):
            raise InvalidPaymentError(
                "no_matching_payment_requirements", "accepted is not an offer of this seller"
            )
    elif (presented.echo.get("scheme"), presented.echo.get("network")) != ("exact", NETWORKS[1]):
        raise InvalidPaymentError(
            "no_matching_payment_requirements", "scheme and network are not an offer of this seller"
        )


def require_issued(echo: Mapping[str, Any]) -> None:
    """Refuse the parameters of a challenge of MPP unless this seller issued it."""
    parameters = {name: value for name, value in echo.items() if name != "id"}
    if not all(isinstance(value, str) for value in echo.values()):
        raise InvalidPaymentError("payment_invalid", "the parameters of a challenge are texts")
    if not hmac.compare_digest(_mac(parameters).encode(), echo.get("id", "").encode()):
        raise InvalidPaymentError("payment_invalid", "this seller did not issue the challenge")


def _require_own_mpp(echo: Mapping[str, Any], terms: ChallengeTerms, now_us: int) -> None:
    require_issued(echo)
    if echo["request"] != encoded_for_url(mpp_request(terms)):
        raise InvalidPaymentError("payment_invalid", "the challenge is for something else")
    if echo["expires"] < format_timestamp(from_us(now_us)):
        raise InvalidPaymentError("payment_expired", "the challenge has expired")


def _presented(protocol: Protocol, value: str) -> Presented:
    if protocol is Protocol.MPP:
        content = fields.base64_object(value[8:].strip(), "the payment", is_url=True)
        echo = fields.member(content, "challenge", dict)
        for parameter in itertools.chain.from_iterable(echo.items()):
            fields.unicode_text(parameter, "a parameter of the challenge")
    else:
        content, _ = x402.parsed(fields.base64_bytes(value.strip(), "the payment"), "the payment")
        version = 2 if protocol is _V2 else 1
        if fields.member(content, "x402Version", int) != version:
            raise UnreadableChallengeError(f"x402Version must be {version}")
        echo = fields.member(content, "accepted", dict) if protocol is _V2 else content
    payload = fields.member(content, "payload", dict)
    if protocol is Protocol.MPP and payload.get("type") == "signature":
        return Presented(protocol=protocol, signature=_signature(payload), echo=echo)
    text = fields.member(payload, "transaction", str)
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raise UnreadableChallengeError("transaction is not base64") from None
    return Presented(protocol=protocol, transaction=raw, echo=echo)


def _signature(payload: Mapping[str, Any]) -> str:
    text = fields.member(payload, "signature", str)
    try:
        return str(Signature.from_string(text))
    except ValueError:
        raise UnreadableChallengeError("signature is not base58 of 64 bytes") from None


def encoded(content: object) -> str:
    return base64.b64encode(json_text.print_json(content)).decode("ascii")


def encoded_for_url(content: object) -> str:
    """Return canonical JSON in unpadded base64 for URLs."""
    canonical = json_text.print_canonical_json(content)
    return base64.urlsafe_b64encode(canonical).rstrip(b"=").decode("ascii")


def _mac(parameters: Mapping[str, str]) -> str:
    # The identifier authenticates the rest of the challenge, so the seller stores no challenges.
    content = json_text.print_canonical_json(dict(parameters))
    return hmac.new(_SECRET, content, hashlib.sha256).hexdigest()[:32]


def _quoted(text: str) -> str:
    r"""A header is printable ASCII, so `é` becomes `\u00e9`, as mppx writes it."""
    return _NOT_PLAIN.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    if character in '\\"':
        return f"\\{character}"
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
