"""Payments of MCP tools as header fields of HTTP 402, and back. No I/O.

A tool asks for payment in its result (x402: as an error with the challenge in it, or by the extension
`org.x402/payment`), or by a JSON-RPC error (MPP). The challenges, the payments and the receipts are those of
HTTP, with another wrapping. So a result is read as the response that a seller over HTTP would have sent, and
the header that presents a payment becomes an entry of `_meta`.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from attrs import frozen

from agentpay.contract.headers import is_header_value
from agentpay.contract.json_text import print_canonical_json
from agentpay.contract.tool_payments import (
    MPP_CHALLENGES,
    MPP_CODE,
    MPP_PAYMENT,
    MPP_RECEIPT,
    MPP_REFUSED_CODE,
    PAYMENT_REQUIRED,
    X402_PAYMENT,
    X402_RECEIPT,
)

_MPP_CODES: Final = (MPP_CODE, MPP_REFUSED_CODE)
_INPUT_REQUIRED: Final = "input_required"

_X402_ERROR: Final = "x402/error"
"""Where older servers of x402 put the challenge, in `_meta`."""

_PARAMETERS: Final = ("id", "realm", "method", "intent", "expires", "digest")
_OBJECTS: Final = ("request", "opaque")
"""The parameters that are JSON, encoded in a header."""

_X402_HEADERS: Final = ("payment-signature", "x-payment")


@frozen(kw_only=True)
class ToolReply:
    """The result of a tool, as a response of HTTP.

    Attributes:
        status: 402 if it asks for payment, 500 if it is an error, else 200.
        headers: its challenges or its receipt.
        body: what an error says, or the challenge of x402 version 1.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


def url_of(server: str, tool: str) -> str:
    """Return the URL that the service stores of a tool: its MCP server's, with the tool's name."""
    parts = urlsplit(server)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{quote(tool, safe='', errors='replace')}").geturl()


def reply_of(result: Mapping[str, Any]) -> ToolReply:
    """Read a result of `tools/call`, as it is in JSON."""
    meta = _object(result.get("_meta"))
    is_error = bool(result.get("isError"))
    if result.get("resultType") == PAYMENT_REQUIRED or is_error:
        required = _x402_of(result, meta)
        challenges = _object(meta.get(MPP_CHALLENGES)).get("challenges")
        if required is not None or challenges:
            return _asking(required, challenges, meta)
    # A server that asks its user something first has delivered nothing yet.
    if is_error or result.get("resultType") == _INPUT_REQUIRED:
        return ToolReply(status=500, headers=_receipts(meta), body=_json({"error": _first_text(result)}))
    return ToolReply(status=200, headers=_receipts(meta))


def reply_of_error(code: int, message: str, data: object) -> ToolReply:
    """Read a JSON-RPC error."""
    challenges = _object(data).get("challenges")
    if code in _MPP_CODES and challenges:
        problem = _object(_object(data).get("problem")) or {"detail": message}
        return _asking(None, challenges, {}, problem)
    return ToolReply(status=500, body=_json({"error": message}))


def meta_of(name: str, value: str) -> dict[str, Any]:
    """Return the entries of `_meta` that present a payment, from the header field that does so over HTTP."""
    if name.lower() in _X402_HEADERS:
        return {X402_PAYMENT: _decoded(value)}
    paid = _decoded(value.partition(" ")[2])
    challenge = dict(paid["challenge"])
    challenge |= {each: _decoded(challenge[each]) for each in _OBJECTS if each in challenge}
    return {MPP_PAYMENT: {**paid, "challenge": challenge}}


def _asking(
    required: Mapping[str, Any] | None,
    challenges: object,
    meta: Mapping[str, Any],
    problem: Mapping[str, Any] | None = None,
) -> ToolReply:
    headers, body = [], problem
    if required is not None:
        if required["x402Version"] == 1:
            body = required
        else:
            headers.append(("payment-required", _encoded(required)))
    given: Iterable[Any] = challenges if isinstance(challenges, list) else ()
    headers += (("www-authenticate", _challenge_header(each)) for each in given if _is_challenge(each))
    return ToolReply(
        status=402,
        headers=(*headers, *_receipts(meta)),
        body=b"" if body is None else _json(body),
    )


def _x402_of(result: Mapping[str, Any], meta: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for found in _x402_places(result, meta):
        required = _object(found)
        if isinstance(required.get("x402Version"), int) and isinstance(required.get("accepts"), list):
            return required
    return None


def _x402_places(result: Mapping[str, Any], meta: Mapping[str, Any]) -> Iterator[object]:
    yield result.get("paymentRequired")
    yield result.get("structuredContent")
    yield meta.get(_X402_ERROR)
    try:
        yield json.loads(_first_text(result))
    except (ValueError, RecursionError):
        return


def _receipts(meta: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    names = {X402_RECEIPT: "payment-response", MPP_RECEIPT: "payment-receipt"}
    return tuple((names[key], _encoded(value)) for key, value in meta.items() if key in names and value)


def _is_challenge(given: object) -> bool:
    """Return whether a challenge can be read, and repeated as it came."""
    challenge = _object(given)
    texts = [challenge.get(name) for name in _PARAMETERS if challenge.get(name) is not None]
    try:
        print_canonical_json(challenge)
    except (TypeError, ValueError, RecursionError):
        return False
    return (
        isinstance(challenge.get("id"), str)
        and isinstance(challenge.get("request"), Mapping)
        and all(isinstance(text, str) and is_header_value(text) for text in texts)
    )


def _challenge_header(challenge: Mapping[str, Any]) -> str:
    given = {name: challenge[name] for name in _PARAMETERS if challenge.get(name) is not None}
    objects = {name: challenge[name] for name in _OBJECTS if challenge.get(name) is not None}
    given |= {name: _encoded_for_url(value) for name, value in objects.items()}
    return "Payment " + ", ".join(f"{name}={_quoted(value)}" for name, value in given.items())


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _first_text(result: Mapping[str, Any]) -> str:
    content = result.get("content")
    parts: Iterable[Any] = content if isinstance(content, list) else ()
    texts = (_object(part).get("text") for part in parts)
    return next((text for text in texts if isinstance(text, str)), "")


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _json(content: object) -> bytes:
    """Return JSON with numbers as the SDK has parsed them, floats too; nothing if it nests too deep."""
    try:
        return json.dumps(content, separators=(",", ":"), default=dict).encode("ascii")
    except RecursionError:
        return b""


def _encoded(content: object) -> str:
    return base64.b64encode(_json(content)).decode("ascii")


def _encoded_for_url(content: object) -> str:
    return base64.urlsafe_b64encode(print_canonical_json(content)).rstrip(b"=").decode("ascii")


def _decoded(value: str) -> Any:  # noqa: ANN401 - JSON
    text = value.rstrip("=").replace("-", "+").replace("_", "/")
    return json.loads(base64.b64decode(text + "=" * (-len(text) % 4), validate=True))
