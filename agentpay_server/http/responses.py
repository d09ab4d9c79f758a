"""Responses over ASGI: success, problems, streams, dropped connections (interface E1, E4, I10, R11, R18).

Any list of the extensions is also exported whole, as CSV or lines of JSON: by `Accept`, under its own
filters. The pages are read one after another while they are sent. What goes wrong after the response has
begun closes the connection before its end, so that no reader takes a part for the whole.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, get_args, get_origin

import attrs
from starlette.types import Message, Receive, Scope, Send

from agentpay.contract import codec, json_text
from agentpay.contract.csv_text import CsvPrinter
from agentpay.contract.endpoints import Endpoint
from agentpay.contract.errors import ErrorCode
from agentpay.contract.fields import format_timestamp
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody
from agentpay_server.feature import JSON_TYPE, Header, Reply
from agentpay_server.http.requests import DROP, DroppedError
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import log

REQUEST_PREFIX: Final = "req_"

_NO_STORE: Final = (b"cache-control", b"no-store")

Headers = list[Header]

CSV: Final = "text/csv"
JSON_LINES: Final = "application/jsonl"

_PAGE: Final = 100

logger: logging.Logger = logging.getLogger(__name__)


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


def is_list(endpoint: Endpoint[Any]) -> bool:
    """Whether an endpoint can be exported."""
    return endpoint.is_extension and get_origin(endpoint.responses.get(200)) is PageBody


def wanted_export(endpoint: Endpoint[Any], headers: Mapping[str, str]) -> str | None:
    """Return the media type of the export that a request asks for, or None."""
    if not is_list(endpoint):
        return None
    accept = headers.get("accept", "").partition(",")[0].partition(";")[0].strip().lower()
    return accept if accept in (CSV, JSON_LINES) else None


async def exported(
    endpoint: Endpoint[Any],
    kind: str,
    query: Any,  # noqa: ANN401 - whatever the endpoint takes
    read: Callable[[Any], Awaitable[PageBody[Any]]],
) -> AsyncGenerator[bytes]:
    """Return the pieces of a list, from its first item to its last.

    Raises:
        Problem: of the first page; the response has not begun.
    """
    query = attrs.evolve(query, limit=_PAGE, cursor="")
    first = await read(query)
    if kind == CSV:
        csv = CsvPrinter(get_args(endpoint.responses[200])[0])
        heading, printed = csv.heading, csv.lines
    else:
        heading, printed = "", _json_lines

    async def pieces(page: PageBody[Any]) -> AsyncGenerator[bytes]:
        try:
            yield heading.encode()
            while True:
                yield printed(page.data).encode()
                if not page.has_more:
                    return
                page = await read(attrs.evolve(query, cursor=page.cursor))
        except Exception as error:  # the status has been sent
            log(logger, logging.WARNING, "export.broken_off", exception=error)
            raise DroppedError from error

    return pieces(first)


def _json_lines(items: Iterable[Model]) -> str:
    return "".join(f"{codec.print_json(codec.unstructure(each)).decode('ascii')}\n" for each in items)
