"""MPP (HTTP scheme `Payment`, method `solana`, intent `charge`): reads challenges, builds headers.

`mpp_sessions.py` reads the intent `session`.

Challenges of several schemes may share a header. Each is read alone: one of another method or intent, or one
that cannot be read, is skipped with its reason.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from agentpay.contract import json_text
from agentpay_server.payments.challenges import fields, mpp_sessions
from agentpay_server.payments.challenges.mpp_fields import network_of, token_fault
from agentpay_server.payments.challenges.terms import (
    MAX_LEGS,
    ChallengeTerms,
    Leg,
    Offer,
    Protocol,
    Skipped,
    UnreadableChallengeError,
)
from agentpay_server.platform.clock import to_us
from agentpay_server.platform.errors import named

CHALLENGE_HEADER: Final = "www-authenticate"

_MAX_HEADER_CHARACTERS: Final = 64 * 1024
_MAX_CATEGORY_CHARACTERS: Final = 64
_PAYMENT_HEADERS: Final = {
    "authorization": "Authorization",
    "payment-authorization": "Payment-Authorization",
}
_REQUIRED: Final = ("id", "realm", "method", "intent", "request")

_NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SPACES: Final = re.compile(r"[ \t,]*")
_PARAMETER: Final = re.compile(rf'({_NAME})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"=][^\s,"]*))')
_SCHEME: Final = re.compile(rf"({_NAME})(?=[ \t,]|$)")
_TOKEN68: Final = re.compile(r"[ \t]+[A-Za-z0-9\-._~+/]+=*[ \t]*(?=,|$)")
_UNIT: Final = re.compile(r"u([0-9a-fA-F]{4})")


_Parameters = list[tuple[str, str]]


def read_header(value: str) -> Iterator[Offer | Skipped]:
    """Yield the offers of a `WWW-Authenticate` header, in its order.

    Raises:
        UnreadableChallengeError: the rest of the header cannot be read.
    """
    if len(value) > _MAX_HEADER_CHARACTERS:
        raise UnreadableChallengeError(f"WWW-Authenticate is longer than {_MAX_HEADER_CHARACTERS} characters")
    return fields.each_alone(_challenges(value), _read)


def _skipped_form(parameters: Mapping[str, str]) -> Skipped | None:
    for name, paid in (("method", ("solana",)), ("intent", ("charge", "session"))):
        value = parameters.get(name)
        if value not in paid:
            given = named(value) if value else "not given"
            is_or_are = "is" if len(paid) == 1 else "are"
            return Skipped(f"{name} is {given}; only {' and '.join(paid)} {is_or_are} paid")
    return None


def _read(given: _Parameters) -> Offer | Skipped:
    parameters = dict(given)
    if len(parameters) < len(given):
        raise UnreadableChallengeError("a challenge repeats a parameter")
    skipped = _skipped_form(parameters)
    if skipped is not None:
        return skipped
    if parameters["intent"] == "charge":
        return _offer(parameters)
    request = _request(parameters)
    return mpp_sessions.offer(
        request,
        details=fields.optional(request, "methodDetails", dict),
        expires_us=_moment(parameters.get("expires")),
        category=_category(parameters.get("opaque")),
        echo=dict(parameters),
    )


def wrap(offer: Offer, transaction: bytes) -> tuple[str, str]:
    """Return name and value of the header that presents a payment."""
    payload = {"type": "transaction", "transaction": base64.b64encode(transaction).decode("ascii")}
    return credential(offer.echo, payload)


def credential(challenge: Mapping[str, Any], payload: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and value of the header that answers a challenge."""
    content = json_text.print_json({"challenge": challenge, "payload": payload})
    encoded = base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")
    return _payment_header(challenge), f"Payment {encoded}"


def _challenges(value: str) -> Iterator[_Parameters]:
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


def _offer(parameters: dict[str, str]) -> Offer:
    request = _request(parameters)
    details = fields.optional(request, "methodDetails", dict) or {}
    return Offer(
        terms=ChallengeTerms(
            protocol=Protocol.MPP,
            network=network_of(details),
            mint=fields.token(request, "currency"),
            legs=_legs(request, details),
            fee_payer=_fee_payer(details),
        ),
        expires_us=_moment(parameters.get("expires")),
        category=_category(parameters.get("opaque")),
        echo=dict(parameters),
        fault=token_fault(details),
    )


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
    name = _PAYMENT_HEADERS.get(str(parameters.get("header") or "authorization").lower())
    if name is None:
        # Otherwise a seller could overwrite any header of the client's request.
        raise UnreadableChallengeError("header must be Authorization or Payment-Authorization")
    return name


def _fee_payer(details: Mapping[str, Any]) -> str | None:
    if not fields.optional(details, "feePayer", bool):
        return None
    return fields.address(details, "feePayerKey")


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
