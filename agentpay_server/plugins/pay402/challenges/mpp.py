"""MPP on Solana: HTTP scheme `Payment`, method `solana`. Its messages, read and written. Pure functions.

| | written by | read by |
| -- | -- | -- |
| challenge of a 402 | `parameters_of`, `challenge`: the seller | `read_header`: the payer |
| payment | `wrap`, `credential`: the payer | `read_payment`: the seller |
| receipt | `receipt`: the seller | nobody: only the chain shows what was paid |

The intent `charge` is one payment of an exact price, and `session` a channel whose vouchers pay for many
requests. Only the current generation of sessions is paid, of which the seller broadcasts the opening and pays
its fee, and whose vouchers the paying account signs.

Challenges of several schemes may share a header. Each is read alone: one of another method or intent, or one
that cannot be read, is skipped with its reason.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any, Final

from attrs import evolve
from solders.pubkey import Pubkey

from agentpay.contract import json_text
from agentpay.contract.fields import format_timestamp
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelError, OnchainTerms, Share, Voucher
from agentpay_server.chain.instructions import TOKEN_PROGRAM, USDC_DECIMALS
from agentpay_server.platform.clock import from_us, to_us
from agentpay_server.platform.errors import named
from agentpay_server.plugins.pay402.challenges import fields
from agentpay_server.plugins.pay402.challenges.terms import (
    MAX_LEGS,
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

CHALLENGE_HEADER: Final = "www-authenticate"
PAYMENT_HEADERS: Final = {
    "authorization": "Authorization",
    "payment-authorization": "Payment-Authorization",
}
SCHEME: Final = "payment "
"""How a credential of this scheme begins, in any case."""

USDC: Final = "USDC"
"""Name that a challenge may use instead of the mint's address."""

MAX_SHARES: Final = 8
"""The most shares that a channel of this service has. Sellers of the protocol accept as many."""

_MAX_HEADER_CHARACTERS: Final = 64 * 1024
_MAX_CATEGORY_CHARACTERS: Final = 64
_REQUIRED: Final = ("id", "realm", "method", "intent", "request")
_NETWORKS: Final = {network.value: network for network in Network} | {"mainnet": Network.MAINNET}

_NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SPACES: Final = re.compile(r"[ \t,]*")
_PARAMETER: Final = re.compile(rf'({_NAME})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"=][^\s,"]*))')
_SCHEME: Final = re.compile(rf"({_NAME})(?=[ \t,]|$)")
_TOKEN68: Final = re.compile(r"[ \t]+[A-Za-z0-9\-._~+/]+=*[ \t]*(?=,|$)")
_UNIT: Final = re.compile(r"u([0-9a-fA-F]{4})")
_NOT_PLAIN: Final = re.compile(r'[^ -~]|[\\"]')

_Parameters = list[tuple[str, str]]


# --- Challenges, as the payer reads them


def read_header(value: str) -> Iterator[Offer | Skipped]:
    """Yield the offers of a `WWW-Authenticate` header, in its order.

    Raises:
        UnreadableChallengeError: the rest of the header cannot be read.
    """
    if len(value) > _MAX_HEADER_CHARACTERS:
        raise UnreadableChallengeError(f"WWW-Authenticate is longer than {_MAX_HEADER_CHARACTERS} characters")
    return fields.each_alone(challenges_in(value), _read)


def _read(given: _Parameters) -> Offer | Skipped:
    parameters = dict(given)
    if len(parameters) < len(given):
        raise UnreadableChallengeError("a challenge repeats a parameter")
    for name, paid in (("method", ("solana",)), ("intent", ("charge", "session"))):
        value = parameters.get(name)
        if value not in paid:
            given_as = named(value) if value else "not given"
            is_or_are = "is" if len(paid) == 1 else "are"
            return Skipped(f"{name} is {given_as}; only {' and '.join(paid)} {is_or_are} paid")
    request, is_session = _request(parameters), parameters["intent"] == "session"
    details = fields.optional(request, "methodDetails", dict)
    expires_us, category = _moment(parameters.get("expires")), _category(parameters.get("opaque"))
    if is_session and details is None:
        if "cap" in request:
            return Skipped("it is a session of an older dialect of MPP, which has no methodDetails")
        return Skipped("it is a session without methodDetails")
    try:
        terms, channel, fault = (_session if is_session else _charge)(request, details or {})
    except UnreadableChallengeError as error:
        if is_session:
            return Skipped(f"intent is session, and its offer cannot be read: {error}")
        raise
    return Offer(
        terms=terms, expires_us=expires_us, category=category, echo=parameters, channel=channel, fault=fault
    )


def challenges_in(value: str) -> Iterator[_Parameters]:
    """Yield the parameters of each challenge of the scheme `Payment`, with lower-case names."""
    position = _skipped(value, 0)
    current: _Parameters | None = None
    is_first, is_payment = True, False
    while position < len(value):
        found = _PARAMETER.match(value, position)
        if found is not None and not is_first:
            if current is not None:
                current.append((found[1].lower(), found[3] if found[2] is None else _unescaped(found[2])))
            position = _skipped(value, found.end())
            continue
        scheme = _SCHEME.match(value, position)
        if scheme is None:
            raise UnreadableChallengeError("WWW-Authenticate is not a list of challenges")
        if current is not None:
            yield current
        is_first, is_payment = False, scheme[1].lower() == "payment"
        current = [] if is_payment else None
        position = scheme.end()
        # Some schemes have a token instead of parameters, as in `Negotiate YII=`.
        if not is_payment and _PARAMETER.match(value, _skipped(value, position)) is None:
            token68 = _TOKEN68.match(value, position)
            position = position if token68 is None else token68.end()
        position = _skipped(value, position)
    if current is not None:
        yield current


def _skipped(value: str, position: int) -> int:
    found = _SPACES.match(value, position)
    return position if found is None else found.end()


def _unescaped(text: str) -> str:
    r"""Return the text of a quoted string: pairs like `\"`, and the `\u00e9` that some sellers write."""
    if "\\" not in text:
        return text
    parts, position = [], 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            unit = _UNIT.match(text, position)
            character = text[position] if unit is None else chr(int(unit[1], 16))
            position = position + 1 if unit is None else unit.end()
        parts.append(character)
    # A character beyond the first plane is two units. A lone unit is replaced.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _request(parameters: Mapping[str, str]) -> dict[str, Any]:
    """Check the parameters of a challenge, and return its decoded `request`."""
    for name in _REQUIRED:
        if not parameters.get(name):
            raise UnreadableChallengeError(f"a challenge has no {name}")
    for name in ("id", "realm", "expires", "digest", "description"):
        fields.text(parameters, name)
    _payment_header(parameters)
    return fields.base64_object(parameters["request"], "request", is_url=True)


def _payment_header(parameters: Mapping[str, Any]) -> str:
    name = PAYMENT_HEADERS.get(str(parameters.get("header") or "authorization").lower())
    if name is None:
        # Otherwise a seller could overwrite any header of the client's request.
        raise UnreadableChallengeError("header must be Authorization or Payment-Authorization")
    return name


def _moment(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return to_us(moment)
    except (ValueError, TypeError, OverflowError):
        # TypeError: it has no UTC offset.
        raise UnreadableChallengeError("expires is not a time with a UTC offset") from None


def _category(opaque: str | None) -> str | None:
    if not opaque:
        return None
    category = fields.text(fields.base64_object(opaque, "opaque", is_url=True), "category")
    if category is not None and len(category) > _MAX_CATEGORY_CHARACTERS:
        raise UnreadableChallengeError(f"category is longer than {_MAX_CATEGORY_CHARACTERS} characters")
    return category or None


_Read = tuple[ChallengeTerms, ChannelTerms | None, str | None]
"""The terms of an offer, what it asks of a channel, and why the service does not pay on these terms."""


def _terms(request: Mapping[str, Any], details: Mapping[str, Any], legs: tuple[Leg, ...]) -> ChallengeTerms:
    network = _NETWORKS.get(fields.text(details, "network") or "mainnet-beta")
    if network is None:
        raise UnreadableChallengeError("network is not a Solana network")
    is_sponsored = fields.optional(details, "feePayer", bool)
    return ChallengeTerms(
        protocol=Protocol.MPP,
        network=network,
        mint=fields.token(request, "currency"),
        legs=legs,
        fee_payer=fields.address(details, "feePayerKey") if is_sponsored else None,
    )


def _charge(request: Mapping[str, Any], details: Mapping[str, Any]) -> _Read:
    return _terms(request, details, _legs(request, details)), None, fields.token_fault(details)


def _legs(request: Mapping[str, Any], details: Mapping[str, Any]) -> tuple[Leg, ...]:
    splits = fields.optional(details, "splits", list) or []
    if len(splits) > MAX_LEGS - 1:
        raise UnreadableChallengeError(f"splits has more than {MAX_LEGS - 1} entries")
    others = [_leg(fields.exactly(split, dict, "a split"), "memo") for split in splits]
    whole = _leg(request, "externalId")
    rest = whole.amount_micro - sum(leg.amount_micro for leg in others)
    if rest < 1:
        raise UnreadableChallengeError("splits leave nothing for the recipient")
    return (Leg(recipient=whole.recipient, amount_micro=rest, memo=whole.memo), *others)


def _leg(holder: Mapping[str, Any], memo_key: str) -> Leg:
    return Leg(
        recipient=fields.address(holder, "recipient"),
        amount_micro=fields.amount(holder, "amount"),
        memo=fields.memo(holder, memo_key),
    )


def _session(request: Mapping[str, Any], details: Mapping[str, Any]) -> _Read:
    amount, recipient = fields.amount(request, "amount"), fields.address(request, "recipient")
    terms = _terms(request, details, (Leg(recipient=recipient, amount_micro=amount),))
    channel = ChannelTerms(
        payee=recipient,
        rent_payer=terms.fee_payer,
        signer=None,
        shares=_shares(details),
        grace_seconds=fields.member(details, "gracePeriodSeconds", int),
        blockhash=fields.blockhash(details, "recentBlockhash"),
        slot=fields.slot(details, "recentSlot"),
        minimum_micro=_amount_or_zero(request, "minimumDeposit"),
    )
    return terms, channel, _session_fault(details, terms)


def _session_fault(details: Mapping[str, Any], terms: ChallengeTerms) -> str | None:
    program = fields.text(details, "channelProgram")
    if program != str(codecs.PROGRAM):
        return f"channelProgram is another program than {codecs.PROGRAM}"
    if (fields.text(details, "voucherSigner") or "client") != "client":
        return "voucherSigner is not client: the seller would sign the vouchers itself"
    if terms.fee_payer is None:
        return "feePayer is not true, so the account would pay fee and rent in SOL, which it does not hold"
    if _amount_or_zero(details, "minVoucherDelta") > terms.amount_micro:
        return "minVoucherDelta is above the price of a request"
    return fields.token_fault(details)


def _shares(details: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    given = fields.optional(details, "distributionSplits", list) or []
    if len(given) > MAX_SHARES:
        raise UnreadableChallengeError(f"distributionSplits has more than {MAX_SHARES} entries")
    shares = []
    for entry in given:
        split = fields.exactly(entry, dict, "a split")
        shares.append((fields.address(split, "recipient"), fields.member(split, "shareBps", int)))
    try:
        codecs.check_shares(shares_of(shares))
    except (ChannelError, OverflowError) as error:
        raise UnreadableChallengeError(f"distributionSplits: {error}") from None
    return tuple(shares)


def _amount_or_zero(holder: Mapping[str, Any], key: str) -> int:
    return 0 if holder.get(key) is None else fields.amount(holder, key, least=0)


# --- Challenges, as the seller writes them


def request_of(
    terms: ChallengeTerms,
    channel: ChannelTerms | None = None,
    *,
    suggested_micro: int | None = None,
    idle_seconds: int | None = None,
) -> dict[str, Any]:
    """Return the `request` of a charge; with a `channel` that of a session.

    `suggested_micro` is the deposit that the seller suggests. A channel without requests for `idle_seconds`
    is settled. What a request says about the chain is left out if `channel` does not have it.
    """
    details: dict[str, Any] = {
        "network": terms.network.value,
        "decimals": USDC_DECIMALS,
        "tokenProgram": str(TOKEN_PROGRAM),
    }
    request: dict[str, Any] = {
        "amount": str(terms.amount_micro),
        "currency": terms.mint,
        "recipient": terms.recipient,
        "methodDetails": details,
    }
    if terms.fee_payer is not None:
        details |= {"feePayer": True, "feePayerKey": terms.fee_payer}
    first, *others = terms.legs
    if others:
        details["splits"] = [
            {"recipient": leg.recipient, "amount": str(leg.amount_micro)}
            | ({} if leg.memo is None else {"memo": leg.memo})
            for leg in others
        ]
    if first.memo is not None:
        request["externalId"] = first.memo
    if channel is None:
        return request
    details |= {
        "channelProgram": str(codecs.PROGRAM),
        "voucherSigner": "client",
        "gracePeriodSeconds": channel.grace_seconds,
    }
    request["unitType"] = "request"
    if channel.shares:
        details["distributionSplits"] = _splits(shares_of(channel.shares))
    if idle_seconds is not None:
        details["idleTimeoutSeconds"] = idle_seconds
    if channel.minimum_micro:
        request["minimumDeposit"] = str(channel.minimum_micro)
    if suggested_micro is not None:
        request["suggestedDeposit"] = str(suggested_micro)
    if channel.blockhash is not None:
        details |= {"recentBlockhash": channel.blockhash, "recentSlot": str(channel.slot)}
    return request


def parameters_of(
    request: Mapping[str, Any],
    *,
    realm: str,
    intent: str,
    expires_us: int,
    category: str | None = None,
    description: str = "",
) -> dict[str, str]:
    """Return the parameters of a challenge without its `id`, which the seller chooses."""
    parameters = {
        "realm": realm,
        "method": "solana",
        "intent": intent,
        "request": fields.encoded_for_url(request),
        "expires": format_timestamp(from_us(expires_us)),
    }
    if category is not None:
        parameters["opaque"] = fields.encoded_for_url({"category": category})
    if description:
        parameters["description"] = description
    return parameters


def challenge(parameters: Mapping[str, str]) -> tuple[str, str]:
    """Return name and value of the header that asks for a payment."""
    listed = ", ".join(f'{name}="{_quoted(value)}"' for name, value in parameters.items())
    return CHALLENGE_HEADER, f"Payment {listed}"


def _quoted(text: str) -> str:
    r"""A header is printable ASCII, so `é` becomes `\u00e9`, as mppx writes it."""
    return _NOT_PLAIN.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    if character in '\\"':
        return f"\\{character}"
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


# --- Payments, as the payer writes them


def wrap(offer: Offer, transaction: bytes) -> tuple[str, str]:
    """Return name and value of the header that presents a payment."""
    payload = {"type": "transaction", "transaction": base64.b64encode(transaction).decode("ascii")}
    return credential(offer.echo, payload)


def credential(challenge: Mapping[str, Any], payload: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and value of the header that answers a challenge."""
    content = json_text.print_json({"challenge": challenge, "payload": payload})
    encoded = base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")
    return _payment_header(challenge), f"Payment {encoded}"


def open_payload(opening: OnchainTerms, transaction: bytes) -> dict[str, Any]:
    """Return the payload that opens a channel."""
    payload = {
        "action": "open",
        "channelId": str(opening.address),
        "payer": str(opening.payer),
        "payee": str(opening.payee),
        "mint": str(opening.mint),
        "authorizedSigner": str(opening.signer),
        "salt": str(opening.salt),
        "openSlot": str(opening.open_slot),
        "depositAmount": str(opening.deposit_micro),
        "gracePeriodSeconds": opening.grace_seconds,
        "transaction": base64.b64encode(transaction).decode("ascii"),
    }
    if opening.shares:
        payload["distributionSplits"] = _splits(opening.shares)
    return payload


def voucher_payload(voucher: Voucher, *, signer: str, signature: str, is_closing: bool) -> dict[str, Any]:
    """Return the payload that pays with a voucher, or closes its channel with it."""
    return {
        "action": "close" if is_closing else "voucher",
        "channelId": str(voucher.channel),
        "voucher": {
            "voucher": {
                "channelId": str(voucher.channel),
                "cumulativeAmount": str(voucher.cumulative_micro),
            },
            "signer": signer,
            "signature": signature,
            "signatureType": "ed25519",
        },
    }


def shares_of(shares: Iterable[tuple[str, int]]) -> tuple[Share, ...]:
    """Return shares as the program has them."""
    return tuple(Share(Pubkey.from_string(recipient), bps) for recipient, bps in shares)


def _splits(shares: Iterable[Share]) -> list[dict[str, Any]]:
    return [{"recipient": str(share.recipient), "shareBps": share.bps} for share in shares]


# --- Payments, as the seller reads them


def read_payment(value: str) -> Presented:
    """Return what a header presents.

    Raises:
        UnreadableChallengeError: it is no payment of this scheme.
    """
    content = fields.base64_object(value[len(SCHEME) :].strip(), "the payment", is_url=True)
    echo = fields.member(content, "challenge", dict)
    for parameter in chain.from_iterable(echo.items()):
        fields.unicode_text(parameter, "a parameter of the challenge")
    payload = fields.member(content, "payload", dict)
    if echo.get("intent") == "session":
        return _action(payload, echo)
    if payload.get("type") == "signature":
        signature = fields.signature(payload, "signature")
        return Presented(protocol=Protocol.MPP, echo=echo, payload=payload, signature=signature)
    transaction = fields.transaction(payload, "transaction")
    return Presented(protocol=Protocol.MPP, echo=echo, payload=payload, transaction=transaction)


def _action(payload: Mapping[str, Any], echo: Mapping[str, str]) -> Presented:
    action = fields.member(payload, "action", str)
    fields.member(payload, "channelId", str)
    presented = Presented(protocol=Protocol.MPP, channel="session", echo=echo, payload=payload)
    if action == "open":
        return evolve(presented, transaction=fields.transaction(payload, "transaction"))
    if action not in ("voucher", "close"):
        return presented
    signed = fields.member(payload, "voucher", dict)
    if signed.get("signatureType") != "ed25519":
        raise UnreadableChallengeError("signatureType must be ed25519")
    content = fields.member(signed, "voucher", dict)
    voucher = Voucher(
        channel=Pubkey.from_string(fields.address(content, "channelId")),
        cumulative_micro=fields.whole(content, "cumulativeAmount"),
        expires_at=fields.whole(content, "expiresAt", below=2**63) if "expiresAt" in content else 0,
    )
    fields.address(signed, "signer")
    return evolve(presented, voucher=voucher, signature=fields.signature(signed, "signature"))


# --- Receipts


def receipt(*, reference: str, challenge_id: str, now_us: int, **more: str) -> tuple[str, str]:
    """Return name and value of the header that acknowledges a payment.

    `reference` is the signature of its transaction, or the channel of a session; `more` is what a session's
    receipt has besides.
    """
    content = {
        "status": "success",
        "method": "solana",
        "reference": reference,
        "challengeId": challenge_id,
        "timestamp": format_timestamp(from_us(now_us)),
        **more,
    }
    return "payment-receipt", fields.encoded_for_url(content)
