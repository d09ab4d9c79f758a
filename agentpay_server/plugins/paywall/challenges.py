"""The challenges of this seller, honest or hostile, and whether a payment is for one of them.

`write` is honest. `malformed` writes what no caller can read, and `on_mainnet` to `to_other_payee` change
terms so that no agent should pay them.
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
    microseconds since 1970.
    """

    url: str
    now_us: int
    description: str = ""
    category: str | None = None
    error: str | None = None
    message: str | None = None


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
                accepts, url=challenge.url, description=challenge.description, error=challenge.error
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


def on_mainnet(terms: ChallengeTerms) -> ChallengeTerms:
    return evolve(terms, network=Network.MAINNET)


def of_other_mint(terms: ChallengeTerms) -> ChallengeTerms:
    return evolve(terms, mint=OTHER_MINT)


def at_higher_price(terms: ChallengeTerms) -> ChallengeTerms:
    return evolve(
        terms,
        legs=tuple(evolve(leg, amount_micro=leg.amount_micro * PRICE_FACTOR) for leg in terms.legs),
    )


def to_other_payee(terms: ChallengeTerms, payee: str) -> ChallengeTerms:
    primary, *others = terms.legs
    return evolve(terms, legs=(evolve(primary, recipient=payee), *others))


def malformed(
    offers: Sequence[ChallengeTerms], challenge: ChallengeParts, number: int
) -> tuple[Headers, bytes]:
    """An unreadable 402; `number` selects the malformation."""
    headers: Headers = []
    body = b"{}"
    for terms in offers:
        writers = _MALFORMED[terms.protocol]
        made = writers[number % len(writers)](terms, challenge)
        if isinstance(made, bytes):
            body = made
        else:
            headers.append(made)
    return headers, body


def _mpp_header(request: str, **more: str) -> tuple[str, str]:
    parameters = {"id": "0", "realm": _REALM, "method": "solana", "intent": "charge", "request": request}
    return mpp.challenge({**parameters, **more})


_Made = tuple[str, str] | bytes
_Writer = Callable[[ChallengeTerms, ChallengeParts], _Made]


def _entry_with(**changed: Any) -> _Writer:  # noqa: ANN401 - JSON
    def write(terms: ChallengeTerms, challenge: ChallengeParts) -> _Made:
        entry = {**x402.entry(terms, url=challenge.url), **changed}
        if terms.protocol is Protocol.X402_V2:
            return "payment-required", encoded({"x402Version": 2, "accepts": [entry]})
        return json_text.print_json({"x402Version": 1, "accepts": [entry]})

    return write


def _request_with(**changed: Any) -> _Writer:  # noqa: ANN401 - JSON
    def write(terms: ChallengeTerms, _challenge: ChallengeParts) -> _Made:
        return _mpp_header(encoded_for_url({**mpp.request_of(terms), **changed}))

    return write


def _v2_text(text: str) -> _Writer:
    return lambda _terms, _challenge: ("payment-required", text)


def _mpp_text(text: str) -> _Writer:
    return lambda _terms, _challenge: ("www-authenticate", text)


_AMOUNTS: Final[tuple[Any, ...]] = ("-1000", "1e9", "0.5", "0", 1000, "9" * 30, None)

_MALFORMED: Final[dict[Protocol, tuple[_Writer, ...]]] = {
    Protocol.X402_V2: (
        _v2_text("%%% not base64 %%%"),
        _v2_text(encoded([1, 2, 3])),
        _v2_text(encoded({"x402Version": 2})),
        _v2_text(encoded({"x402Version": 2, "accepts": {"0": "x"}})),
        _v2_text(encoded({"x402Version": "2", "accepts": []})),
        *(_entry_with(amount=amount) for amount in _AMOUNTS),
        _entry_with(payTo="not an address"),
        _entry_with(extra=["feePayer"]),
        _entry_with(extra={"feePayer": "\u0000"}),
    ),
    Protocol.X402_V1: (
        lambda _terms, _challenge: b'{"x402Version":1,"accepts":[{"scheme":"exact"',
        lambda _terms, _challenge: b'{"x402Version":1,"accepts":"everything"}',
        lambda _terms, _challenge: b'{"x402Version":1,"accepts":[' + b"[" * 1000,
        *(_entry_with(maxAmountRequired=amount) for amount in _AMOUNTS),
        _entry_with(payTo="not an address"),
        _entry_with(amount="1", maxAmountRequired="2"),
    ),
    Protocol.MPP: (
        _mpp_text('Payment id="1", realm="r", method="solana", intent="charge", request="%%%"'),
        _mpp_text('Payment id="1", realm="r, method="solana", intent="charge'),
        _mpp_text('Payment method="solana", intent="charge"'),
        *(_request_with(amount=amount) for amount in _AMOUNTS),
        _request_with(recipient="not an address"),
        _request_with(methodDetails={"network": "moonnet"}),
        _request_with(methodDetails={"decimals": "6"}),
        _request_with(methodDetails={"feePayer": True}),
        _request_with(
            methodDetails={"splits": [{"recipient": OTHER_MINT, "amount": "999999999999"}]},
        ),
        lambda terms, _challenge: _mpp_header(encoded_for_url(mpp.request_of(terms)), header="Cookie"),
    ),
}
