"""From the bytes of a delivery to its event; that they are signed is the business of `agentpay.webhooks`.

The bytes are held to what the service holds requests to: no repeated keys, no NaN, no lone surrogates, at
most 16 levels. Of two parsers one judges: the quick one takes what is evidently fine, and leaves everything
else, and every verdict, to the codec.
"""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, cast

from agentpay.contract import codec, json_text
from agentpay.contract.errors import FieldFault
from agentpay.contract.events import EVENT_CLASSES, AnyEvent, Event, UnknownEvent
from agentpay.contract.fields import JsonValue
from agentpay.contract.requests import MAX_NESTING
from agentpay.errors import WebhookPayloadError

# By plain strings, which a dictionary finds faster than the members of an enum.
_KINDS: Final[dict[str, type[Event]]] = {str(name): kind for name, kind in EVENT_CLASSES.items()}


def read_event(payload: bytes) -> AnyEvent:
    """Return the event that a signed payload holds.

    Raises:
        WebhookPayloadError: it holds none, or one whose data does not fit its type.
    """
    try:
        value = _parse(payload)
    except json_text.InvalidJsonError as error:
        raise _refusal(FieldFault(field="body", message=str(error))) from None
    if not isinstance(value, dict):
        raise _refusal(FieldFault(field="body", message="must be an object"))
    # Only an escape gives NUL or a surrogate; a byte is looked for in a tenth of the time.
    if b"\\" in payload and (faults := codec.text_faults(value)):
        raise _refusal(*faults)
    name = value.get("type")
    kind = _KINDS.get(name, UnknownEvent) if isinstance(name, str) else UnknownEvent
    if kind is UnknownEvent and not isinstance(value.get("data", {}), dict):
        raise _refusal(FieldFault(field="data", message="must be an object"))
    try:
        event = codec.structure(value, kind)
    except codec.InvalidValueError as error:
        raise _refusal(*error.faults) from None
    if not event.id:
        # Receivers de-duplicate by it.
        raise _refusal(FieldFault(field="id", message="must not be empty"))
    return cast("AnyEvent", event)


def _refusal(*faults: FieldFault) -> WebhookPayloadError:
    return WebhookPayloadError(
        "the payload is signed and is not an event that this version reads: "
        + "; ".join(f"{fault.field} {fault.message}" for fault in faults)
        + ". Answer 400, and see whether a newer agentpay reads it",
        details=faults,
    )


def _parse(payload: bytes) -> JsonValue:
    # Without arrays only as many braces give such a depth. The events of today have none.
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
"""What `JSONDecoder.decode` calls between two passes over white space, of which the service sends none."""
