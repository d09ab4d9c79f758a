"""Challenges as sellers write them, of every protocol, to be changed by tests."""

import base64
import json
from random import Random
from typing import Any

from solders.keypair import Keypair

from agentpay.contract.usdc import MAX_MICRO
from agentpay_server.chain.instructions import USDC_MINTS
from agentpay_server.plugins.pay402.challenges.fields import MAX_AMOUNT
from agentpay_server.plugins.pay402.challenges.offers import MAX_OFFERS, read_challenge, sift, wrap
from agentpay_server.plugins.pay402.challenges.terms import (
    ChallengeTerms,
    Leg,
    Network,
    Offer,
    Protocol,
    Skipped,
    UnreadableChallengeError,
)

USDC = USDC_MINTS["mainnet-beta"]
SELLER = str(Keypair.from_seed(b"seller..........................").pubkey())
SPLIT = str(Keypair.from_seed(b"split...........................").pubkey())
FACILITATOR = Keypair.from_seed(b"facilitator.....................")
FEE_PAYER = str(FACILITATOR.pubkey())
DEVNET = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
NOW_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


PLAIN = ChallengeTerms(
    protocol=Protocol.X402_V2,
    network=Network.DEVNET,
    mint=USDC,
    legs=(Leg(recipient=SELLER, amount_micro=1_000),),
    fee_payer=FEE_PAYER,
)
"""What `v2()` asks for."""


def b64(content: Any) -> str:
    return base64.b64encode(json.dumps(content).encode()).decode()


def b64url(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def v2_entry(**changed: Any) -> dict[str, Any]:
    entry = {
        "scheme": "exact",
        "network": DEVNET,
        "asset": USDC,
        "amount": "1000",
        "payTo": SELLER,
        "maxTimeoutSeconds": 60,
        "extra": {"feePayer": FEE_PAYER},
    }
    return {**entry, **changed}


def v2_challenge(*entries: dict[str, Any], **changed: Any) -> dict[str, Any]:
    challenge = {
        "x402Version": 2,
        "error": "Payment required",
        "resource": {"url": "https://api.example.com/forecast", "description": "Weather"},
        "accepts": list(entries) or [v2_entry()],
    }
    return {**challenge, **changed}


def v2(*entries: dict[str, Any], **changed: Any) -> tuple[str, str]:
    return "PAYMENT-REQUIRED", b64(v2_challenge(*entries, **changed))


def v1_body(**changed: Any) -> bytes:
    entry = {
        "scheme": "exact",
        "network": "solana-devnet",
        "maxAmountRequired": "1000",
        "asset": USDC,
        "payTo": SELLER,
        "resource": "https://api.example.com/forecast",
        "description": "Weather",
        "maxTimeoutSeconds": 60,
        "extra": {"feePayer": FEE_PAYER},
    }
    return json.dumps({"x402Version": 1, "accepts": [{**entry, **changed}]}).encode()


def mpp_request(**changed: Any) -> dict[str, Any]:
    details = {
        "network": "localnet",
        "decimals": 6,
        "feePayer": True,
        "feePayerKey": FEE_PAYER,
    }
    request = {
        "amount": "1000",
        "currency": USDC,
        "recipient": SELLER,
        "methodDetails": {**details, **changed.pop("details", {})},
    }
    return {**request, **changed}


def mpp(content: dict[str, Any] | None = None, **parameters: str) -> tuple[str, str]:
    told = {
        "id": "abc",
        "realm": "example",
        "method": "solana",
        "intent": "charge",
        "request": b64url(mpp_request() if content is None else content),
        **parameters,
    }
    return "WWW-Authenticate", "Payment " + ", ".join(f'{name}="{value}"' for name, value in told.items())


def read(headers: list[tuple[str, str]], body: bytes) -> list[Offer | Skipped] | UnreadableChallengeError:
    try:
        return read_challenge(headers, body)
    except UnreadableChallengeError as error:
        return error


def offers_or_one_error(headers: list[tuple[str, str]], body: bytes) -> None:
    found = read(headers, body)
    if isinstance(found, UnreadableChallengeError):
        assert len(str(found)) < 300
        return
    for offer in found:
        if isinstance(offer, Skipped):
            assert len(offer.reason) < 200
            continue
        terms = offer.terms
        assert all(1 <= leg.amount_micro <= MAX_AMOUNT for leg in terms.legs)
        assert 1 <= terms.amount_micro <= MAX_AMOUNT
        assert len(terms.digest(origin="https://a.example", memo=None)) == 64
        name, value = wrap(offer, b"x", payment_id="txn_1234567890ab")
        assert f"{name}: {value}".isascii()
        assert "\n" not in value
    assert len(found) <= MAX_OFFERS + 1
    sifted = sift(found, cluster=None, usdc_mint=USDC, now_us=0)
    assert sorted((*sifted.payable, *sifted.reasons)) == list(range(len(found)))
    assert all(len(reason) < 200 for reason in sifted.reasons.values())
    assert all(1 <= offer.terms.amount_micro <= MAX_MICRO for offer in sifted.payable.values())


ODD: list[Any] = [
    *[None, True, False, 0, -1, 1.5, 10**30, [], {}, [[]], {"a": {}}, [None] * 9],
    *["", "0", "-1", "1" * 40, "\0", "\ud800", "é" * 300, "a" * 3_000],
    *["solana", "USDC", "2026-13-01", "1" * 32],
]


def changed(random: Random, content: Any, chance: float = 0.1) -> Any:
    """Return JSON with some of it put out of shape."""
    if random.random() < chance / 4:
        return random.choice(ODD)
    if isinstance(content, dict):
        found = {key: changed(random, value, chance) for key, value in content.items()}
        if found and random.random() < chance:
            del found[random.choice(list(found))]
        if random.random() < chance / 2:
            found[random.choice(["extra", "memo", "splits", "amount", "x"])] = random.choice(ODD)
        return found
    if isinstance(content, list):
        return [changed(random, value, chance) for value in content]
    return random.choice(ODD) if random.random() < chance else content
