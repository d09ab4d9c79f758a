"""Challenges as sellers write them, of every protocol, to be changed by tests."""

import base64
import json
from typing import Any

from solders.keypair import Keypair

from agentpay_server.chain.instructions import USDC_MINTS

USDC = USDC_MINTS["mainnet-beta"]
SELLER = str(Keypair.from_seed(b"seller..........................").pubkey())
SPLIT = str(Keypair.from_seed(b"split...........................").pubkey())
FACILITATOR = Keypair.from_seed(b"facilitator.....................")
FEE_PAYER = str(FACILITATOR.pubkey())
DEVNET = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
NOW_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


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
