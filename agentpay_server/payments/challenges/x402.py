"""x402 versions 2 and 1 on Solana: reads challenges, builds headers. Pure functions.

The scheme `exact` is here, `upto` in `x402_upto.py`.

Version 2 has its challenge in the header `PAYMENT-REQUIRED`, version 1 in the body of the 402. Each offer is
read alone: one of another scheme or network, or one that cannot be read, is skipped with its reason.
Extensions are repeated as the seller wrote them; only `payment-identifier` is parsed.
"""

import base64
import codecs
from collections.abc import Iterator, Mapping
from typing import Any, Final

from agentpay.contract import json_text
from agentpay_server.payments.challenges import fields, x402_upto
from agentpay_server.payments.challenges.carried import replace_member
from agentpay_server.payments.challenges.terms import (
    ChallengeTerms,
    Leg,
    Network,
    Offer,
    Protocol,
    Skipped,
    UnreadableChallengeError,
)
from agentpay_server.platform.errors import named

MAX_BODY_BYTES: Final = 64 * 1024
CHALLENGE_HEADER: Final = "payment-required"

_NETWORKS: Final = {
    Protocol.X402_V2: {
        "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp": Network.MAINNET,
        "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1": Network.DEVNET,
        "solana:4uhcVJyU9pJkvQyS88uRDiswHXSCkY3z": Network.TESTNET,
    },
    Protocol.X402_V1: {"solana": Network.MAINNET, "solana-devnet": Network.DEVNET},
}
_AMOUNT_KEYS: Final = {Protocol.X402_V2: "amount", Protocol.X402_V1: "maxAmountRequired"}
_EXACT: Final = "exact"
_EXTENSIONS: Final = "extensions"
_IDENTIFIER: Final = "payment-identifier"


def read_header(value: str) -> Iterator[Offer | Skipped]:
    """Return the offers of a `PAYMENT-REQUIRED` header, in its order.

    Raises:
        UnreadableChallengeError: it is no challenge of version 2.
    """
    challenge, extensions = parsed(fields.base64_bytes(value.strip(), "PAYMENT-REQUIRED"), "PAYMENT-REQUIRED")
    if fields.member(challenge, "x402Version", int) != 2:
        raise UnreadableChallengeError("x402Version must be 2 in PAYMENT-REQUIRED")
    resource = fields.optional(challenge, "resource", dict)
    if extensions is not None and not extensions.startswith("{"):
        raise UnreadableChallengeError("extensions must be a JSON object")
    echo = {
        name: value
        for name, value in (("resource", resource), ("extensions", extensions))
        if value is not None
    }
    url = None if resource is None else fields.text(resource, "url")
    return _offers(challenge, Protocol.X402_V2, echo, url)


def read_body(body: bytes) -> Iterator[Offer | Skipped]:
    """Return the offers in the body of a 402, in its order; none if it is no challenge.

    Raises:
        UnreadableChallengeError: it claims to be a challenge, and is none.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    # Most 402 bodies are something else, such as an HTML page.
    if body.lstrip()[:1] != b"{" or b"x402Version" not in body:
        return iter(())
    if len(body) > MAX_BODY_BYTES:
        raise UnreadableChallengeError(f"the body is larger than {MAX_BODY_BYTES} bytes")
    challenge, _ = parsed(body, "the body")
    if challenge.get("x402Version") != 1 or isinstance(challenge["x402Version"], bool):
        return iter(())
    return _offers(challenge, Protocol.X402_V1, {}, None)


def parsed(body: bytes, name: str, *, depth: int = 1) -> tuple[dict[str, Any], str | None]:
    """Parse a message of x402, but not its `extensions`, whose text is returned; None without them.

    `depth` is that of `extensions` in the message: 1 for members of the whole.
    """
    found: list[str] = []

    def taken(value: str) -> str:
        found.append(value)
        return "null"

    try:
        rest = replace_member(body.decode("utf-8"), _EXTENSIONS, taken, depth=depth).encode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableChallengeError(f"{name} must be UTF-8") from None
    extensions = found[-1] if found else "null"
    return fields.json_object(rest, name), None if extensions == "null" else extensions


def wrap(offer: Offer, transaction: bytes, *, payment_id: str) -> tuple[str, str]:
    """Return name and value of the header that presents a payment of an exact price.

    `payment_id` identifies the payment to sellers that declare the extension for it.
    """
    payload = {"transaction": base64.b64encode(transaction).decode("ascii")}
    return wrap_payload(offer, payload, payment_id=payment_id)


def wrap_payload(offer: Offer, payload: Mapping[str, Any], *, payment_id: str) -> tuple[str, str]:
    """Return name and value of the header that presents a payment with a payload; see `wrap`."""
    content: dict[str, Any] = {
        "x402Version": 1 if offer.terms.protocol is Protocol.X402_V1 else 2,
    }
    if offer.terms.protocol is Protocol.X402_V1:
        content |= {"scheme": _EXACT, "network": offer.echo["network"], "payload": payload}
        return "X-PAYMENT", _encoded(content)
    content |= {"payload": payload, "accepted": offer.echo["accepted"]}
    if "resource" in offer.echo:
        content["resource"] = offer.echo["resource"]
    extensions: str | None = offer.echo.get(_EXTENSIONS)
    return "PAYMENT-SIGNATURE", _encoded(
        content, None if extensions is None else _with_identifier(extensions, payment_id)
    )


def _offers(
    challenge: Mapping[str, Any], protocol: Protocol, echo: Mapping[str, Any], url: str | None
) -> Iterator[Offer | Skipped]:
    accepts = fields.member(challenge, "accepts", list)

    def read(entry: object) -> Offer | Skipped:
        accepted: dict[str, Any] = fields.exactly(entry, dict, "an offer")
        scheme, name = accepted.get("scheme"), accepted.get("network")
        network = _NETWORKS[protocol].get(name) if isinstance(name, str) else None
        if scheme == x402_upto.SCHEME and protocol is Protocol.X402_V1:
            return Skipped("scheme is upto, which is paid only in version 2 of x402")
        if scheme not in (_EXACT, x402_upto.SCHEME):
            return Skipped(f"scheme is {_named(scheme)}; only exact and upto are paid")
        if network is None:
            return Skipped(f"network is {_named(name)}, which is not a Solana network of this protocol")
        if scheme == _EXACT:
            return _offer(accepted, protocol, network, echo, url)
        return x402_upto.offer(accepted, network, echo, url)

    return fields.each_alone(accepts, read)


def _named(value: object) -> str:
    return named(value) if isinstance(value, str) and value else "not given"


def _offer(
    accepted: dict[str, Any],
    protocol: Protocol,
    network: Network,
    echo: Mapping[str, Any],
    url: str | None,
) -> Offer:
    extra = fields.optional(accepted, "extra", dict) or {}
    amount = fields.amount(accepted, _AMOUNT_KEYS[protocol])
    # Some sellers write both. An offer with two prices is invalid.
    for key in _AMOUNT_KEYS.values():
        if accepted.get(key) is not None and fields.amount(accepted, key) != amount:
            raise UnreadableChallengeError("amount and maxAmountRequired differ")
    leg = Leg(
        recipient=fields.address(accepted, "payTo"), amount_micro=amount, memo=fields.memo(extra, "memo")
    )
    return Offer(
        terms=ChallengeTerms(
            protocol=protocol,
            network=network,
            mint=fields.token(accepted, "asset"),
            legs=(leg,),
            fee_payer=None if extra.get("feePayer") is None else fields.address(extra, "feePayer"),
        ),
        resource_url=url if protocol is Protocol.X402_V2 else fields.text(accepted, "resource"),
        echo={**echo, "accepted": accepted, "network": accepted["network"]},
    )


def _with_identifier(extensions: str, payment_id: str) -> str:
    """Return extensions with our identifier in the one that asks for it. For information only."""

    def identified(value: str) -> str:
        try:
            declared = fields.json_object(value.encode("utf-8"), _IDENTIFIER)
        except UnreadableChallengeError:
            return value
        info = declared.get("info")
        updated = {**(info if isinstance(info, dict) else {}), "id": payment_id}
        return json_text.print_json({**declared, "info": updated}).decode("ascii")

    return replace_member(extensions, _IDENTIFIER, identified)


def _encoded(content: Mapping[str, Any], extensions: str | None = None) -> str:
    body = json_text.print_json(content)
    if extensions is not None:
        body = b"".join((body[:-1], b',"extensions":', extensions.encode("utf-8"), b"}"))
    return base64.b64encode(body).decode("ascii")
