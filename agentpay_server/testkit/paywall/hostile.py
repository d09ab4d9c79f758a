"""Challenges that no caller should pay or can read."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import evolve

from agentpay.contract import json_text
from agentpay_server.payments.challenges.terms import ChallengeTerms, Network, Protocol
from agentpay_server.testkit.paywall.challenges import (
    REALM,
    ChallengeParts,
    Headers,
    encoded,
    encoded_for_url,
    mpp_request,
    requirements,
)

OTHER_MINT: Final = "So11111111111111111111111111111111111111112"
"""Wrapped SOL: a mint that exists on every chain and is not USDC."""

PRICE_FACTOR: Final = 5
_ENORMOUS_CHARACTERS: Final = 1024 * 1024


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


def enormous(offers: Sequence[ChallengeTerms], challenge: ChallengeParts) -> tuple[Headers, bytes]:
    """A 402 of a megabyte, well-formed apart from its size."""
    padding = "A" * _ENORMOUS_CHARACTERS
    headers: Headers = []
    body = b"{}"
    for terms in offers:
        if terms.protocol is Protocol.MPP:
            request = {**mpp_request(terms), "padding": padding}
            headers.append(("www-authenticate", _mpp_header(encoded_for_url(request))))
        elif terms.protocol is Protocol.X402_V2:
            content = {"x402Version": 2, "accepts": [requirements(terms)], "padding": padding}
            headers.append(("payment-required", encoded(content)))
        else:
            entry = requirements(terms, url=challenge.url)
            body = json_text.print_json({"x402Version": 1, "accepts": [entry], "padding": padding})
    return headers, body


def _mpp_header(request: str, **more: str) -> str:
    parameters = {
        "id": "0",
        "realm": REALM,
        "method": "solana",
        "intent": "charge",
        "request": request,
        **more,
    }
    return "Payment " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())


_Made = tuple[str, str] | bytes
_Writer = Callable[[ChallengeTerms, ChallengeParts], _Made]


def _entry_with(**changed: Any) -> _Writer:  # noqa: ANN401 - JSON
    def write(terms: ChallengeTerms, challenge: ChallengeParts) -> _Made:
        entry = {**requirements(terms, url=challenge.url), **changed}
        if terms.protocol is Protocol.X402_V2:
            return "payment-required", encoded({"x402Version": 2, "accepts": [entry]})
        return json_text.print_json({"x402Version": 1, "accepts": [entry]})

    return write


def _request_with(**changed: Any) -> _Writer:  # noqa: ANN401 - JSON
    def write(terms: ChallengeTerms, _challenge: ChallengeParts) -> _Made:
        return "www-authenticate", _mpp_header(encoded_for_url({**mpp_request(terms), **changed}))

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
        lambda terms, _challenge: (
            "www-authenticate",
            _mpp_header(encoded_for_url(mpp_request(terms)), header="Cookie"),
        ),
    ),
}
