"""x402 versions 2 and 1 on Solana: its messages, read and written. Pure functions.

| | written by | read by |
| -- | -- | -- |
| challenge of a 402 | `entry`, `challenge`, `body`: seller | `read_header`, `read_body` |
| payment | `wrap`, `wrap_upto`: payer | `read_payment` |
| a seller's request to its facilitator | sellers' packages | `read_request` |
| its response, receipt | `settled`, `receipt` | nobody: only the chain shows what was paid |

The scheme `exact` is one payment of an exact price. By `upto`, in version 2, the payer locks the maximum in a
channel for one request. The seller opens it, serves, and alone signs what it takes; the rest comes back. What
it takes goes to `payTo`: its `feePayer`, which lends the rent and is the channel's payee, gets no share.

Version 2 has its challenge in the header `PAYMENT-REQUIRED`, version 1 in the body of the 402. Each offer is
read alone: one of another scheme or network, or one that cannot be read, is skipped with its reason.
Extensions are repeated as the seller wrote them; only `payment-identifier` is parsed.
"""

import base64
import codecs as encodings
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from solders.pubkey import Pubkey

from agentpay.contract import json_text
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import OnchainTerms
from agentpay_server.chain.instructions import TOKEN_PROGRAM, USDC_DECIMALS
from agentpay_server.database.tables import ChannelRecord
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.errors import named
from agentpay_server.plugins.pay402.challenges import fields
from agentpay_server.plugins.pay402.challenges.terms import (
    ChallengeTerms,
    ChannelTerms,
    Leg,
    Network,
    Offer,
    Presented,
    Protocol,
    Skipped,
    UnreadableChallengeError,
)

MAX_BODY_BYTES: Final = 64 * 1024
CHALLENGE_HEADER: Final = "payment-required"
PAYMENT_HEADERS: Final = {"payment-signature": Protocol.X402_V2, "x-payment": Protocol.X402_V1}
VERSIONS: Final = {2: Protocol.X402_V2, 1: Protocol.X402_V1}

_V2_NETWORKS: Final = {
    Network.MAINNET: "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp",
    Network.DEVNET: "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1",
    Network.TESTNET: "solana:4uhcVJyU9pJkvQyS88uRDiswHXSCkY3z",
}
NETWORK_NAMES: Final = {
    Protocol.X402_V2: _V2_NETWORKS,
    Protocol.X402_UPTO: _V2_NETWORKS,
    Protocol.X402_V1: {Network.MAINNET: "solana", Network.DEVNET: "solana-devnet"},
}
"""The networks that each version knows. A private chain calls itself devnet."""

EXACT: Final = "exact"
UPTO: Final = "upto"

MAX_TIMEOUT_SECONDS: Final = 3_600
"""The longest time that a seller gets to settle, whatever it asks for: the maximum is locked so long."""

TIMEOUT_SECONDS: Final = 60
"""How long a payment of a challenge that is written here may take."""

_LATE_SECONDS: Final = 5
"""By how much the seller's clock may be behind: it refuses a payment that expires later than it asked for."""

_AMOUNT_KEYS: Final = {
    Protocol.X402_V2: "amount",
    Protocol.X402_UPTO: "amount",
    Protocol.X402_V1: "maxAmountRequired",
}
_ERROR: Final = "Payment required"
_EXTENSIONS: Final = "extensions"
_PAYMENT: Final = "paymentPayload"
IDENTIFIER: Final = "payment-identifier"
"""The extension in which a payer names a payment, so that sellers recognise it when it comes again."""

_IDENTIFIED: Final = re.compile("[A-Za-z0-9_-]{16,128}")
_DECLARED: Final = {
    "info": {"required": False},
    "schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "required": {"type": "boolean"},
            "id": {"type": "string", "minLength": 16, "maxLength": 128, "pattern": "^[a-zA-Z0-9_-]+$"},
        },
        "required": ["required"],
    },
}


# --- Challenges, as the payer reads them


def read_header(value: str) -> Iterator[Offer | Skipped]:
    """Return the offers of a `PAYMENT-REQUIRED` header, in its order.

    Raises:
        UnreadableChallengeError: it is no challenge of version 2.
    """
    challenge, extensions = _parsed(
        fields.base64_bytes(value.strip(), "PAYMENT-REQUIRED"), "PAYMENT-REQUIRED"
    )
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
    body = body.removeprefix(encodings.BOM_UTF8)
    # Most 402 bodies are something else, such as an HTML page.
    if body.lstrip()[:1] != b"{" or b"x402Version" not in body:
        return iter(())
    if len(body) > MAX_BODY_BYTES:
        raise UnreadableChallengeError(f"the body is larger than {MAX_BODY_BYTES} bytes")
    challenge, _ = _parsed(body, "the body")
    if challenge.get("x402Version") != 1 or isinstance(challenge["x402Version"], bool):
        return iter(())
    return _offers(challenge, Protocol.X402_V1, {}, None)


def _parsed(body: bytes, name: str, *, member: str = _EXTENSIONS) -> tuple[dict[str, Any], str | None]:
    """Parse a message of x402, but not one `member`, whose text is returned; None without it."""
    found: list[str] = []

    def taken(value: str) -> str:
        found.append(value)
        return "null"

    try:
        rest = fields.replace_member(body.decode("utf-8"), member, taken).encode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableChallengeError(f"{name} must be UTF-8") from None
    text = found[-1] if found else "null"
    return fields.json_object(rest, name), None if text == "null" else text


def _offers(
    challenge: Mapping[str, Any], protocol: Protocol, echo: Mapping[str, Any], url: str | None
) -> Iterator[Offer | Skipped]:
    accepts = fields.member(challenge, "accepts", list)
    networks = {name: network for network, name in NETWORK_NAMES[protocol].items()}

    def read(entry: object) -> Offer | Skipped:
        accepted: dict[str, Any] = fields.exactly(entry, dict, "an offer")
        scheme, name = accepted.get("scheme"), accepted.get("network")
        network = networks.get(name) if isinstance(name, str) else None
        if scheme == UPTO and protocol is Protocol.X402_V1:
            return Skipped("scheme is upto, which is paid only in version 2 of x402")
        if scheme not in (EXACT, UPTO):
            return Skipped(f"scheme is {_named(scheme)}; only exact and upto are paid")
        if network is None:
            return Skipped(f"network is {_named(name)}, which is not a Solana network of this protocol")
        repeated = {**echo, "accepted": accepted, "network": name}
        if scheme == EXACT:
            resource_url = url if protocol is Protocol.X402_V2 else fields.text(accepted, "resource")
            terms = terms_of(accepted, protocol, network)
            return Offer(terms=terms, resource_url=resource_url, echo=repeated)
        try:
            return _upto(accepted, network, repeated, url)
        except UnreadableChallengeError as error:
            return Skipped(f"scheme is upto, and its offer cannot be read: {error}")

    return fields.each_alone(accepts, read)


def _named(value: object) -> str:
    return named(value) if isinstance(value, str) and value else "not given"


def terms_of(accepted: Mapping[str, Any], protocol: Protocol, network: Network) -> ChallengeTerms:
    """Return the terms of an entry.

    Raises:
        UnreadableChallengeError: it cannot be read.
    """
    extra = fields.optional(accepted, "extra", dict) or {}
    amount = fields.amount(accepted, _AMOUNT_KEYS[protocol])
    # Some sellers write both. An offer with two prices is invalid.
    for key in _AMOUNT_KEYS.values():
        if accepted.get(key) is not None and fields.amount(accepted, key) != amount:
            raise UnreadableChallengeError("amount and maxAmountRequired differ")
    recipient, memo = fields.address(accepted, "payTo"), fields.memo(extra, "memo")
    return ChallengeTerms(
        protocol=protocol,
        network=network,
        mint=fields.token(accepted, "asset"),
        legs=(Leg(recipient=recipient, amount_micro=amount, memo=memo),),
        fee_payer=None if extra.get("feePayer") is None else fields.address(extra, "feePayer"),
    )


def _upto(
    accepted: dict[str, Any], network: Network, echo: dict[str, Any], resource_url: str | None
) -> Offer:
    terms, extra = terms_of(accepted, Protocol.X402_UPTO, network), fields.member(accepted, "extra", dict)
    fee_payer, signer = fields.address(extra, "feePayer"), fields.address(extra, "receiverAuthorizer")
    timeout = fields.member(accepted, "maxTimeoutSeconds", int)
    channel = ChannelTerms(
        payee=fee_payer,
        rent_payer=fee_payer,
        signer=signer,
        shares=((terms.recipient, codecs.WHOLE_BPS),),
        grace_seconds=fields.member(extra, "withdrawDelay", int),
        blockhash=fields.blockhash(extra, "recentBlockhash"),
        slot=fields.slot(extra, "recentSlot"),
        timeout_seconds=min(timeout, MAX_TIMEOUT_SECONDS),
    )
    fault = _upto_fault(extra, signer=signer, timeout_seconds=timeout)
    return Offer(terms=terms, resource_url=resource_url, echo=echo, channel=channel, fault=fault)


def _upto_fault(extra: Mapping[str, Any], *, signer: str, timeout_seconds: int) -> str | None:
    program = fields.text(extra, "channelProgram")
    if program is not None and program != str(codecs.PROGRAM):
        return f"channelProgram is another program than {codecs.PROGRAM}"
    if not Pubkey.from_string(signer).is_on_curve():
        return "receiverAuthorizer is not a key that can sign"
    if timeout_seconds < 1:
        return "maxTimeoutSeconds is not at least 1"
    return fields.token_fault(extra)


# --- Challenges, as the seller writes them


def entry(
    terms: ChallengeTerms, channel: ChannelTerms | None = None, *, url: str = "", description: str = ""
) -> dict[str, Any]:
    """Return the entry of a challenge, by `exact`; with a `channel` by `upto`.

    A payment of version 2 must repeat it. `url` and `description` of the resource are in it in version 1; in
    version 2 the challenge has them. What it says about the chain is left out if `channel` does not have it.
    """
    extra: dict[str, Any] = {} if terms.fee_payer is None else {"feePayer": terms.fee_payer}
    if channel is not None:
        extra |= {
            "receiverAuthorizer": channel.signer,
            "withdrawDelay": channel.grace_seconds,
            "tokenProgram": str(TOKEN_PROGRAM),
            "decimals": USDC_DECIMALS,
        }
    if terms.legs[0].memo is not None:
        extra["memo"] = terms.legs[0].memo
    if channel is not None and channel.blockhash is not None:
        extra |= {"recentBlockhash": channel.blockhash, "recentSlot": str(channel.slot)}
    written = {
        "scheme": EXACT if channel is None else UPTO,
        "network": NETWORK_NAMES[terms.protocol][terms.network],
        "asset": terms.mint,
        _AMOUNT_KEYS[terms.protocol]: str(terms.amount_micro),
        "payTo": terms.recipient,
        "maxTimeoutSeconds": TIMEOUT_SECONDS if channel is None else channel.timeout_seconds,
        "extra": extra,
    }
    if terms.protocol is not Protocol.X402_V1:
        return written
    return {**written, "resource": url, "description": description, "mimeType": "application/json"}


def challenge(
    accepts: Sequence[Mapping[str, Any]], *, url: str, description: str, error: str | None, is_named: bool
) -> tuple[str, str]:
    """Return name and value of the header that asks for a payment in version 2; see `body`.

    `is_named` declares the extension in which the payer names its payment.
    """
    content = {
        "x402Version": 2,
        "error": error or _ERROR,
        "resource": {"url": url, "description": description, "mimeType": "application/json"},
        "accepts": list(accepts),
    }
    if is_named:
        content[_EXTENSIONS] = {IDENTIFIER: _DECLARED}
    return CHALLENGE_HEADER, fields.encoded(content)


def body(accepts: Sequence[Mapping[str, Any]], *, error: str | None) -> dict[str, Any]:
    """Return the body that asks for a payment in version 1."""
    return {"x402Version": 1, "error": error or _ERROR, "accepts": list(accepts)}


# --- Payments, as the payer writes them


def wrap(offer: Offer, transaction: bytes, *, payment_id: str) -> tuple[str, str]:
    """Return name and value of the header that presents a payment of an exact price.

    `payment_id` identifies the payment to sellers that declare the extension for it.
    """
    payload = {"transaction": base64.b64encode(transaction).decode("ascii")}
    if offer.terms.protocol is Protocol.X402_V2:
        return _wrap(offer, payload, payment_id)
    content = {"x402Version": 1, "scheme": EXACT, "network": offer.echo["network"], "payload": payload}
    return "X-PAYMENT", fields.encoded(content)


def expires_at(channel: ChannelTerms, now: int) -> int:
    """Return until when the seller may settle a channel that is signed now, both in Unix seconds."""
    assert channel.timeout_seconds is not None  # noqa: S101 - an offer of this scheme has it
    seconds = channel.timeout_seconds
    return now + seconds - min(seconds // 10, _LATE_SECONDS)


def wrap_upto(
    offer: Offer, opening: OnchainTerms, record: ChannelRecord, *, payment_id: str
) -> tuple[str, str]:
    """Return name and value of the header that pays up to a maximum, the same whenever it is asked for."""
    asked = offer.echo["accepted"]["extra"].get("validAfter")
    payload = upto_payload(
        opening,
        record.raw,
        expires_at=(record.challenge_expires_us or 0) // SECOND_US,
        valid_after=asked if type(asked) is int else record.created_us // SECOND_US - _LATE_SECONDS,
    )
    return _wrap(offer, payload, payment_id)


def upto_payload(
    opening: OnchainTerms, transaction: bytes, *, expires_at: int, valid_after: int
) -> dict[str, Any]:
    """Return the payload that opens a channel for one request."""
    return {
        "from": str(opening.payer),
        "maxAmount": str(opening.deposit_micro),
        "deposit": str(opening.deposit_micro),
        "expiresAt": expires_at,
        "validAfter": valid_after,
        "nonce": str(opening.salt),
        "openSlot": str(opening.open_slot),
        "channelId": str(opening.address),
        "authorizedSigner": str(opening.signer),
        "openTransaction": base64.b64encode(transaction).decode("ascii"),
    }


def _wrap(offer: Offer, payload: Mapping[str, Any], payment_id: str) -> tuple[str, str]:
    content = {"x402Version": 2, "payload": payload, "accepted": offer.echo["accepted"]}
    if "resource" in offer.echo:
        content["resource"] = offer.echo["resource"]
    written, extensions = json_text.print_json(content), offer.echo.get(_EXTENSIONS)
    if extensions is not None:
        identified = _with_identifier(extensions, payment_id).encode("utf-8")
        written = b"".join((written[:-1], b',"extensions":', identified, b"}"))
    return "PAYMENT-SIGNATURE", base64.b64encode(written).decode("ascii")


def _with_identifier(extensions: str, payment_id: str) -> str:
    """Return extensions with our identifier in the one that asks for it. For information only."""

    def identified(value: str) -> str:
        try:
            declared = fields.json_object(value.encode("utf-8"), IDENTIFIER)
        except UnreadableChallengeError:
            return value
        info = declared.get("info")
        updated = {**(info if isinstance(info, dict) else {}), "id": payment_id}
        return json_text.print_json({**declared, "info": updated}).decode("ascii")

    return fields.replace_member(extensions, IDENTIFIER, identified)


# --- Payments, as the seller and its facilitator read them


def read_payment(name: str, value: str) -> Presented:
    """Return what a header presents; `name` is one of `PAYMENT_HEADERS`.

    Raises:
        UnreadableChallengeError: it is no payment of its version.
    """
    protocol = PAYMENT_HEADERS[name]
    content, extensions = _parsed(fields.base64_bytes(value.strip(), "the payment"), "the payment")
    version = fields.member(content, "x402Version", int)
    if VERSIONS.get(version) is not protocol:
        raise UnreadableChallengeError(f"x402Version {version} is not that of {name}")
    echo = fields.member(content, "accepted", dict) if version == 2 else content
    payload = fields.member(content, "payload", dict)
    if version == 2 and echo.get("scheme") == UPTO:
        return _read_upto(payload, echo)
    return Presented(
        protocol=protocol,
        transaction=fields.transaction(payload, "transaction"),
        echo=echo,
        payment_id=_payment_id(extensions),
    )


def _payment_id(extensions: str | None) -> str | None:
    """Return the name that a payer gave its payment, if any."""
    found: list[str] = []

    def taken(value: str) -> str:
        found.append(value)
        return value

    fields.replace_member(extensions or "{}", IDENTIFIER, taken)
    is_given = bool(found) and found[-1] != "null"
    declared = fields.json_object(found[-1].encode("utf-8"), IDENTIFIER) if is_given else {}
    name = fields.optional(fields.optional(declared, "info", dict) or {}, "id", str)
    if name is not None and _IDENTIFIED.fullmatch(name) is None:
        raise UnreadableChallengeError(f"{IDENTIFIER} must be 16 to 128 letters, digits, '-' or '_'")
    return name


def _read_upto(payload: Mapping[str, Any], accepted: Mapping[str, Any]) -> Presented:
    texts = ("from", "channelId", "authorizedSigner", "openTransaction")
    numbers = ("maxAmount", "deposit", "nonce", "openSlot")
    times = ("expiresAt", "validAfter")
    return Presented(
        protocol=Protocol.X402_V2,
        channel="upto",
        echo=accepted,
        transaction=fields.transaction(payload, "openTransaction"),
        payload={name: fields.member(payload, name, str) for name in texts}
        | {name: str(fields.whole(payload, name)) for name in numbers}
        | {name: fields.whole(payload, name, below=2**63) for name in times},
    )


def read_request(body: bytes) -> tuple[Protocol, Mapping[str, Any], Mapping[str, Any], str, str | None]:
    """Parse what a seller sends to its facilitator.

    Return the protocol, the entry of the seller's challenge, what the payment repeats of it, the
    transaction of the payment, in base64, and the payer's name of the payment. Both entries have a scheme and
    a network.

    Raises:
        UnreadableChallengeError: it is no such request; the message names the field.
    """
    request, written = _parsed(body, "the body", member=_PAYMENT)
    if written is None:
        fields.member(request, _PAYMENT, dict)
    payment, extensions = _parsed((written or "").encode("utf-8"), _PAYMENT)
    requirements = fields.member(request, "paymentRequirements", dict)
    version = fields.member(payment, "x402Version", int)
    if version not in VERSIONS:
        raise UnreadableChallengeError("x402Version must be 2 or 1")
    claimed = fields.member(payment, "accepted", dict) if version == 2 else payment
    transaction = fields.member(fields.member(payment, "payload", dict), "transaction", str)
    for holder in (requirements, claimed):
        for name in ("scheme", "network"):
            fields.member(holder, name, str)
    return VERSIONS[version], requirements, claimed, transaction, _payment_id(extensions)


# --- Receipts


def settled(*, payer: str, signature: str, network: str, amount_micro: int | None = None) -> dict[str, Any]:
    """Return what says that a payment was settled; `amount_micro` is what a payment by `upto` took."""
    content = {"success": True, "payer": payer, "transaction": signature, "network": network}
    return content if amount_micro is None else {**content, "amount": str(amount_micro)}


def receipt(
    protocol: Protocol, *, payer: str, signature: str, amount_micro: int | None = None
) -> tuple[str, str]:
    """Return name and value of the header that acknowledges a payment on a private chain."""
    name = "payment-response" if protocol is Protocol.X402_V2 else "x-payment-response"
    network = NETWORK_NAMES[protocol][Network.DEVNET]
    return name, fields.encoded(
        settled(payer=payer, signature=signature, network=network, amount_micro=amount_micro)
    )
