"""Requests and responses over ASGI.

A request is parsed to its principal, and to models of body and query (interface K1, E7, R9 to R11). A
response is a success, a problem, a stream, or a dropped connection (E1, E4, I10, R11, R18).
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from agentpay.contract import codec, json_text
from agentpay.contract.accounts import METADATA_MAX_BYTES, CreateAccount
from agentpay.contract.codec import InvalidValueError
from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.fields import format_timestamp
from agentpay.contract.json_text import InvalidJsonError
from agentpay.contract.requests import BODY_MAX_BYTES
from agentpay_server.feature import JSON_TYPE, Core, Header, Reply
from agentpay_server.operators import feature as operators
from agentpay_server.platform.errors import Problem, invalid, unauthorized
from agentpay_server.platform.principals import Principal

DROP: Final = "agentpay.drop"
"""ASGI scope key, set by a port: closes the connection without a response."""

REFUSED: Final = "agentpay.refused"
"""ASGI scope key, set by a port: the problem with which the application must refuse a request."""

SHARE: Final = "agentpay.share"
"""ASGI scope key, set by a port: how many requests of one operator may be worked on."""

WHOLE: Final = "agentpay.whole"
"""ASGI scope key by which an in-process caller declares that the body is complete."""

_MAX_KEY_CHARACTERS: Final = 128
_LENGTH_MAX_DIGITS: Final = 18


class DroppedError(Exception):
    """Close the connection without a response."""


async def authenticated(headers: Mapping[str, str], core: Core, request_id: str) -> Principal:
    """Raise `unauthorized` for a missing, malformed, unknown or revoked key."""
    principal = await core.of(operators.FEATURE).keys.authenticate(key_of(headers), request_id)
    if principal is None:
        raise unauthorized()
    return principal


def key_of(headers: Mapping[str, str]) -> str:
    """Return the API key of a request; raise `unauthorized` if it is missing or too long."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or len(key) > _MAX_KEY_CHARACTERS:
        raise unauthorized()
    return key.strip(" ")


class Pause:
    """Whether the event loop has run anything else since this was created.

    If not, what was read before is as good as read now.
    """

    def __init__(self) -> None:
        self.has_been: bool = False
        asyncio.get_running_loop().call_soon(self._note)

    def _note(self) -> None:
        self.has_been = True


class DisconnectedError(Exception):
    """The caller disconnected before the request was complete."""


async def read_body(
    headers: Mapping[str, str], receive: Receive, *, timeout_seconds: float, is_whole: bool = False
) -> bytes:
    """Return the complete body; `DisconnectedError` if it is incomplete.

    With `is_whole` it is there, so that no timeout is needed.
    """
    length = headers.get("content-length", "").lstrip("0")
    # The number of digits first: `int` raises on thousands of them.
    if length.isdecimal() and (len(length) > _LENGTH_MAX_DIGITS or int(length) > BODY_MAX_BYTES):
        raise _too_large()
    if is_whole:
        return await _whole_body(receive)
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _whole_body(receive)
    except TimeoutError:
        raise Problem(
            ErrorCode.REQUEST_TIMEOUT,
            f"The body did not arrive within {timeout_seconds:g} s.",
        ) from None


async def _whole_body(receive: Receive) -> bytes:
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > BODY_MAX_BYTES:
            raise _too_large()
        chunks.append(chunk)
        if not message.get("more_body", False):
            break
    return b"".join(chunks)


def _too_large() -> Problem:
    return Problem(ErrorCode.PAYLOAD_TOO_LARGE, f"The body is larger than {BODY_MAX_BYTES} bytes.")


def require_json(headers: Mapping[str, str]) -> None:
    """Refuse a media type other than JSON in UTF-8. A missing one is accepted."""
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "The body must not be compressed: send no Content-Encoding.",
            says_what_to_do=True,
        )
    content_type = headers.get("content-type")
    if content_type is None:
        return
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [p.removeprefix("charset=").strip('"') for p in parameters if p.startswith("charset=")]
    if media_type != "application/json" or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise Problem(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "The body must be JSON: send Content-Type: application/json.",
            says_what_to_do=True,
        )


def structured_body(body: bytes, model: type) -> object:
    """`invalid_request` names every fault."""
    try:
        value = json_text.parse_request_json(body)
    except InvalidJsonError as error:
        raise invalid(FieldError(field="body", message=str(error))) from None
    # Only escapes can yield NUL and lone surrogates: unescaped ones are invalid JSON or UTF-8.
    faults = codec.text_faults(value) if b"\\u" in body else ()
    if model is CreateAccount and isinstance(value, dict):
        faults = (*faults, *_oversize_metadata(body))
    request: object
    try:
        request = codec.structure(value, model)
    except InvalidValueError as error:
        raise invalid(*error.faults, *faults) from None
    if faults:
        raise invalid(*faults)
    return request


def structured_query(query_string: bytes, model: type) -> object:
    """`invalid_request` names every fault. Unknown parameters are ignored."""
    known = set(model.__annotations__)
    values: dict[str, Any] = {}
    faults = []
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, encoding="utf-8", errors="strict"
        )
    except ValueError:
        raise invalid(FieldError(field="query", message="must be percent-encoded UTF-8")) from None
    for name, value in pairs:
        if name not in known:
            continue
        if name in values:
            faults.append(FieldError(field=name, message="must not be repeated"))
        if "\0" in value:
            faults.append(FieldError(field=name, message="must not contain NUL"))
        values[name] = value
    query: object
    try:
        query = codec.structure(values, model)
    except InvalidValueError as error:
        raise invalid(*error.faults, *faults) from None
    if faults:
        raise invalid(*faults)
    return query


def _oversize_metadata(body: bytes) -> tuple[FieldError, ...]:
    """Check the size of `metadata` as sent, including white space and escapes (interface A7)."""
    if len(body) <= METADATA_MAX_BYTES:
        return ()
    text = body.decode("utf-8")
    decoder = json.JSONDecoder()
    position = text.index("{") + 1
    while True:
        position = _skip(text, position, " \t\n\r,")
        if text[position] == "}":
            return ()
        name, position = decoder.raw_decode(text, position)
        start = _skip(text, position, " \t\n\r:")
        _, position = decoder.raw_decode(text, start)
        if name == "metadata" and len(text[start:position].encode()) > METADATA_MAX_BYTES:
            message = f"must be at most {METADATA_MAX_BYTES} bytes of JSON"
            return (FieldError(field="metadata", message=message),)


def _skip(text: str, position: int, characters: str) -> int:
    while text[position] in characters:
        position += 1
    return position


REQUEST_PREFIX: Final = "req_"

_NO_STORE: Final = (b"cache-control", b"no-store")

Headers = list[Header]


def rendered(problem: Problem, request_id: str) -> tuple[int, Headers, bytes]:
    headers: Headers = []
    if problem.code is ErrorCode.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if problem.retry_after_seconds is not None:
        headers.append((b"retry-after", str(problem.retry_after_seconds).encode("ascii")))
    if problem.decided_at is not None:
        headers.append((b"idempotency-replayed", format_timestamp(problem.decided_at).encode("ascii")))
    if problem.allow:
        headers.append((b"allow", ", ".join(problem.allow).encode("ascii")))
    body = json_text.print_json(codec.unstructure(problem.body(request_id)))
    return problem.http_status, headers, body


def internal_error(request_id: str) -> bytes:
    message = f"The server failed. Report request {request_id} to its operators."
    return json_text.print_json({"error": "internal_error", "message": message, "request_id": request_id})


def identified(send: Send, request_id: str) -> Send:
    """Add `X-Request-Id` to the response (interface R16)."""

    async def send_identified(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"].append((b"x-request-id", request_id.encode("ascii")))
        await send(message)

    return send_identified


async def send_reply(send: Send, receive: Receive, reply: Reply) -> None:
    """A stream is sent until it ends or the caller disconnects."""
    if reply.stream is not None:
        await _stream(send, receive, reply.stream, reply.stream_type)
        return
    body = b"" if reply.model is None else json_text.print_json(codec.unstructure(reply.model))
    await respond(send, reply.status, body, reply.headers)


async def respond(
    send: Send, status: int, body: bytes, headers: Sequence[Header] = (), content_type: bytes = JSON_TYPE
) -> None:
    """By default with `Cache-Control: no-store`."""
    lines = list(headers)
    if body:
        lines.append((b"content-type", content_type))
    if not any(name == b"cache-control" for name, _ in headers):
        lines.append(_NO_STORE)
    if status not in (204, 304):
        lines.append((b"content-length", str(len(body)).encode("ascii")))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def drop(scope: Scope, receive: Receive) -> bool:
    """Return False if the port does not support it."""
    close = scope.get(DROP)
    if close is None:
        return False
    close()
    await _disconnected(receive)
    return True


async def _stream(send: Send, receive: Receive, pieces: AsyncGenerator[bytes], kind: bytes) -> None:
    headers = [(b"content-type", kind), _NO_STORE, (b"x-accel-buffering", b"no")]
    async with contextlib.aclosing(pieces):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.ensure_future(_send_pieces(send, pieces))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait((sending, leaving))


async def _send_pieces(send: Send, pieces: AsyncGenerator[bytes]) -> None:
    async for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
