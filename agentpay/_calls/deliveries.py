"""Parses the body of a delivery into its event. Signatures are verified in `agentpay.webhooks`.

The rules of requests to the service apply: no repeated keys, no NaN, no lone surrogates, at most 16 levels. A
fast parser accepts what is obviously valid; the codec handles everything else, and all errors.
"""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from agentpay.contract import codec, json_text
from agentpay.contract.errors import FieldError
from agentpay.contract.events import EVENT_CLASSES, AnyEvent, UnknownEvent
from agentpay.contract.fields import JsonValue
from agentpay.contract.requests import MAX_NESTING
from agentpay.errors import WebhookPayloadError


def read_event(payload: bytes) -> AnyEvent:
    try:
        value = _parse(payload)
    except json_text.InvalidJsonError as error:
        raise _refusal(FieldError(field="body", message=str(error))) from None
    if not isinstance(value, dict):
        raise _refusal(FieldError(field="body", message="must be an object"))
    # NUL and surrogates can only come from escapes, and searching for the escape's byte is ten times faster.
    if b"\\" in payload and (faults := codec.text_faults(value)):
        raise _refusal(*faults)
    name = value.get("type")
    kind = EVENT_CLASSES.get(name, UnknownEvent) if isinstance(name, str) else UnknownEvent
    if kind is UnknownEvent and not isinstance(value.get("data", {}), dict):
        raise _refusal(FieldError(field="data", message="must be an object"))
    try:
        event: Any = codec.structure(value, kind)
    except codec.InvalidValueError as error:
        raise _refusal(*error.faults) from None
    if not event.id:
        # Receivers de-duplicate by the id.
        raise _refusal(FieldError(field="id", message="must not be empty"))
    return event  # type: ignore[no-any-return]


def _refusal(*faults: FieldError) -> WebhookPayloadError:
    return WebhookPayloadError(
        "the payload is signed and is not an event that this version reads: "
        + "; ".join(f"{fault.field} {fault.message}" for fault in faults)
        + ". Respond with 400, and check whether a newer agentpay reads it",
        details=faults,
    )


def _parse(payload: bytes) -> JsonValue:
    # Without arrays, this depth needs as many braces. Current events have no arrays.
    if b"[" in payload or payload.count(b"{") > MAX_NESTING:
        return json_text.parse_request_json(payload)
    try:
        text = payload.decode()
        value, end = _scan(text, 0)
    except (ValueError, ArithmeticError, StopIteration):
        return json_text.parse_request_json(payload)
    return value if end == len(text) else json_text.parse_request_json(payload)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError
    return result


def _no_constant(_: str) -> None:
    raise ValueError


_scan: Final[Callable[[str, int], tuple[JsonValue, int]]] = vars(
    json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_once)
)["scan_once"]
"""The scanner of `JSONDecoder.decode`, without skipping white space, which the service does not send."""
