"""The challenges of this seller, honest or hostile, and whether a payment is for one of them.

`write` is honest. `malformed` writes what no caller can read, and `CHANGES` change terms so that no agent
should pay them.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from agentpay.contract import json_text
from agentpay.contract.fields import format_timestamp
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.plugins.facilitator.settling import InvalidPaymentError
from agentpay_server.plugins.pay402.challenges import fields, mpp, x402
from agentpay_server.plugins.pay402.challenges.fields import encoded, encoded_for_url
from agentpay_server.plugins.pay402.challenges.terms import (
    ChallengeTerms,
    Network,
    Presented,
    Protocol,
    UnreadableChallengeError,
)
from agentpay_server.plugins.paywall.products import Mode

Headers = list[tuple[str, str]]

_REALM: Final = "agentpay paywall"
_SECRET: Final = b"agentpay paywall: binds challenges of tests, protects nothing"
_CHALLENGE_SECONDS: Final = 300
_VOLATILE: Final = ("recentBlockhash", "recentSlot")
"""Fields that differ between two challenges on equal terms."""

OTHER_MINT: Final = "So11111111111111111111111111111111111111112"
"""Wrapped SOL: a mint that exists on every chain and is not USDC."""

PRICE_FACTOR: Final = 5
ENORMOUS: Final = "A" * 2**20
"""A description that makes a challenge too large to be read."""


@frozen(kw_only=True)
class ChallengeParts:
    """The parts of a challenge beyond its terms.

    `error` is why the last payment was refused, as a code, and `message` as a sentence. `now_us` is in
    microseconds since 1970. `is_named` asks the payer to name its payment, where the protocol can.
    """

    url: str
    now_us: int
    description: str = ""
    category: str | None = None
    error: str | None = None
    message: str | None = None
    is_named: bool = False


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
            headers.append(mpp_challenge(mpp.request_of(terms), challenge, intent="charge"))
        elif terms.protocol is Protocol.X402_V2:
            accepts.append(x402.entry(terms))
        else:
            entry = x402.entry(terms, url=challenge.url, description=challenge.description)
            content = x402.body([entry], error=challenge.error)
    accepts += entries
    if accepts:
        headers.append(
            x402.challenge(
                accepts,
                url=challenge.url,
                description=challenge.description,
                error=challenge.error,
                is_named=challenge.is_named,
            )
        )
    if challenge.message is not None:
        content = {"message": challenge.message, **content}
    if challenge.error is not None:
        content = {"error": challenge.error, **content}
    return headers, json_text.print_json(content)


def mpp_challenge(request: Mapping[str, Any], challenge: ChallengeParts, *, intent: str) -> tuple[str, str]:
    """Return name and value of the header that asks for `request`."""
    parameters = mpp.parameters_of(
        request,
        realm=_REALM,
        intent=intent,
        expires_us=challenge.now_us + _CHALLENGE_SECONDS * SECOND_US,
        category=challenge.category,
        description=challenge.description,
    )
    return mpp.challenge({"id": _mac(parameters), **parameters})


def _mac(parameters: Mapping[str, str]) -> str:
    # The identifier authenticates the rest of the challenge, so the seller stores no challenges.
    content = json_text.print_canonical_json(dict(parameters))
    return hmac.new(_SECRET, content, hashlib.sha256).hexdigest()[:32]


# --- Whether a payment is for a challenge of this seller


def require_own(presented: Presented, terms: ChallengeTerms, now_us: int) -> None:
    """Refuse a payment unless it is for a challenge that this seller issued for `terms`."""
    echo = presented.echo
    if presented.protocol is Protocol.MPP:
        _require_issued(echo)
        if echo["request"] != encoded_for_url(mpp.request_of(terms)):
            raise InvalidPaymentError("payment_invalid", "the challenge is for something else")
        _require_unexpired(echo, now_us)
    elif presented.protocol is Protocol.X402_V2:
        _require_offered(echo, x402.entry(terms))
    elif (echo.get("scheme"), echo.get("network")) != (
        x402.EXACT,
        x402.NETWORK_NAMES[presented.protocol][terms.network],
    ):
        raise InvalidPaymentError(
            "no_matching_payment_requirements", "scheme and network are not an offer of this seller"
        )


def require_own_session(
    presented: Presented, requests: Sequence[Mapping[str, Any]], now_us: int
) -> tuple[str, int]:
    """Refuse an action unless it is for a challenge of this seller, for one of these requests.

    Return blockhash and slot of the challenge. An expired challenge refuses only openings.
    """
    _require_issued(presented.echo)
    try:
        request = fields.base64_object(presented.echo["request"], "the challenge", is_url=True)
        details = fields.member(request, "methodDetails", dict)
    except (KeyError, UnreadableChallengeError):
        raise InvalidPaymentError("payment_invalid", "the challenge cannot be read") from None
    if {**request, "methodDetails": _lasting(details)} not in requests:
        raise InvalidPaymentError("payment_invalid", "the challenge is for something else")
    if presented.payload["action"] == "open":
        _require_unexpired(presented.echo, now_us)
    return details["recentBlockhash"], int(details["recentSlot"])


def require_own_upto(presented: Presented, entry: Mapping[str, Any]) -> None:
    """Refuse a payment up to a maximum unless it repeats `entry`."""
    extra = presented.echo.get("extra")
    _require_offered({**presented.echo, "extra": _lasting(extra if isinstance(extra, dict) else {})}, entry)


def _require_issued(echo: Mapping[str, str]) -> None:
    parameters = {name: value for name, value in echo.items() if name != "id"}
    if not hmac.compare_digest(_mac(parameters).encode(), echo.get("id", "").encode()):
        raise InvalidPaymentError("payment_invalid", "this seller did not issue the challenge")


def _require_unexpired(echo: Mapping[str, str], now_us: int) -> None:
    if echo["expires"] < format_timestamp(from_us(now_us)):
        raise InvalidPaymentError("payment_expired", "the challenge has expired")


def _require_offered(accepted: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
    if accepted != entry:
        raise InvalidPaymentError(
            "no_matching_payment_requirements", "accepted is not an offer of this seller"
        )


def _lasting(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in holder.items() if name not in _VOLATILE}


# --- Hostile challenges


CHANGES: Final[Mapping[Mode, Callable[[ChallengeTerms, str], ChallengeTerms]]] = {
    Mode.WRONG_NETWORK: lambda terms, _: evolve(terms, network=Network.MAINNET),
    Mode.WRONG_MINT: lambda terms, _: evolve(terms, mint=OTHER_MINT),
    Mode.RAISE_PRICE: lambda terms, _: evolve(
        terms,
        legs=tuple(evolve(leg, amount_micro=leg.amount_micro * PRICE_FACTOR) for leg in terms.legs),
    ),
    Mode.CHANGE_PAYEE: lambda terms, payee: evolve(
        terms, legs=(evolve(terms.legs[0], recipient=payee), *terms.legs[1:])
    ),
}
"""How modes change terms, so that no agent should pay them; with the address of another payee."""


def malformed(
    offers: Sequence[ChallengeTerms], challenge: ChallengeParts, number: int
) -> tuple[Headers, bytes]:
    """An unreadable 402; `number` selects the malformation."""
    headers: Headers = []
    body = b"{}"
    for terms in offers:
        changes = _MALFORMED[terms.protocol]
        change = changes[number % len(changes)]
        if terms.protocol is Protocol.MPP:
            headers.append(
                (mpp.CHALLENGE_HEADER, change) if isinstance(change, str) else _mpp_header(terms, change)
            )
            continue
        version = 2 if terms.protocol is Protocol.X402_V2 else 1
        if not isinstance(change, str):
            entry = {**x402.entry(terms, url=challenge.url), **change}
            content = {"x402Version": version, "accepts": [entry]}
            change = encoded(content) if version == 2 else json_text.print_json(content).decode()
        if version == 2:
            headers.append((x402.CHALLENGE_HEADER, change))
        else:
            body = change.encode()
    return headers, body


def _mpp_header(terms: ChallengeTerms, change: Mapping[str, Any]) -> tuple[str, str]:
    request = {**mpp.request_of(terms), **change}
    more = {"header": request.pop("header")} if "header" in request else {}
    parameters = {"id": "0", "realm": _REALM, "method": "solana", "intent": "charge"}
    return mpp.challenge({**parameters, "request": encoded_for_url(request), **more})


_AMOUNTS: Final[tuple[Any, ...]] = ("-1000", "1e9", "0.5", "0", 1000, "9" * 30, None)

_MALFORMED: Final[Mapping[Protocol, tuple[str | Mapping[str, Any], ...]]] = {
    Protocol.X402_V2: (
        "%%% not base64 %%%",
        encoded([1, 2, 3]),
        encoded({"x402Version": 2}),
        encoded({"x402Version": 2, "accepts": {"0": "x"}}),
        encoded({"x402Version": "2", "accepts": []}),
        *({"amount": amount} for amount in _AMOUNTS),
        {"payTo": "not an address"},
        {"extra": ["feePayer"]},
        {"extra": {"feePayer": "\u0000"}},
    ),
    Protocol.X402_V1: (
        '{"x402Version":1,"accepts":[{"scheme":"exact"',
        '{"x402Version":1,"accepts":"everything"}',
        '{"x402Version":1,"accepts":[' + "[" * 1000,
        *({"maxAmountRequired": amount} for amount in _AMOUNTS),
        {"payTo": "not an address"},
        {"amount": "1", "maxAmountRequired": "2"},
    ),
    Protocol.MPP: (
        'Payment id="1", realm="r", method="solana", intent="charge", request="%%%"',
        'Payment id="1", realm="r, method="solana", intent="charge',
        'Payment method="solana", intent="charge"',
        *({"amount": amount} for amount in _AMOUNTS),
        {"recipient": "not an address"},
        {"methodDetails": {"network": "moonnet"}},
        {"methodDetails": {"decimals": "6"}},
        {"methodDetails": {"feePayer": True}},
        {"methodDetails": {"splits": [{"recipient": OTHER_MINT, "amount": "999999999999"}]}},
        {"header": "Cookie"},
    ),
}
"""Unreadable challenges: verbatim, or by the members of the entry or the request that are changed."""
