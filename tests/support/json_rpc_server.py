"""A small HTTP server on a free port, whose responses a test controls byte by byte: a faulty node."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

Answer = tuple[int, dict[str, str], bytes] | None
"""Status, headers and body; None hangs up."""

SAME = "SAME"
"""As the number of a response: that of the request."""

Handler = Callable[[bytes], Awaitable[Answer]]


def ok(body: bytes) -> Answer:
    return 200, {"content-type": "application/json"}, body


def result(value: Any) -> Answer:
    """Return the response of a successful node."""
    return ok(json.dumps({"jsonrpc": "2.0", "id": SAME, "result": value}).encode())


def error(code: int, message: str, data: Any = None) -> Answer:
    """Return the response of a node that refuses."""
    told = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return ok(json.dumps({"jsonrpc": "2.0", "id": SAME, "error": told}).encode())


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """Serve `handler` and yield the URL; requests in progress at the end are aborted."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _converse(handler, reader, writer)

    async with listening(converse) as url:
        yield url


@asynccontextmanager
async def listening(
    converse: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Hold conversations, byte by byte, and yield the URL; those in progress at the end are aborted."""
    conversations: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        conversations.add(task)
        task.add_done_callback(conversations.discard)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await converse(reader, writer)
        writer.close()
        # Cancelled at the end, while it waits: that is an end like any other.
        with suppress(ConnectionError, asyncio.CancelledError):
            await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
        for task in list(conversations):
            task.cancel()
        if conversations:
            await asyncio.wait(conversations)


async def _converse(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        request = await reader.readexactly(length)
        answer = await handler(request)
        if answer is None:
            return
        status, headers, body = answer
        if b'"SAME"' in body:
            body = body.replace(b'"SAME"', json.dumps(json.loads(request)["id"]).encode())
        lines = [f"{name}: {value}" for name, value in {**headers, "content-length": str(len(body))}.items()]
        writer.write("\r\n".join([f"HTTP/1.1 {status} Told", *lines, "", ""]).encode("latin-1") + body)
        await writer.drain()
