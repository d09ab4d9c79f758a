"""httpx transports to an in-process server: requests and responses as over HTTP, without a socket."""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import httpx
from starlette.types import Message, Receive, Scope, Send

from agentpay_server.embedded.owner_thread import OwnerThread
from agentpay_server.http.requests import WHOLE

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
_ASGI_VERSION: Final = {"version": "3.0", "spec_version": "2.3"}


class EmbeddedTransport(httpx.BaseTransport):
    """Passes the requests of an `httpx.Client` to an in-process server."""

    def __init__(self, app: Asgi, owner: OwnerThread) -> None:
        self._app = app
        self._owner = owner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the server's response to a request."""
        body = request.read()
        try:
            answer = self._owner.call(exchange(self._app, request, body), timeout=_read_timeout(request))
        except TimeoutError:
            raise httpx.ReadTimeout("the server did not answer in time", request=request) from None
        status, headers, content = answer
        return httpx.Response(status, headers=headers, content=content)


class AsyncEmbeddedTransport(httpx.AsyncBaseTransport):
    """Passes the requests of an `httpx.AsyncClient` to an in-process server."""

    def __init__(self, app: Asgi, owner: OwnerThread) -> None:
        self._app = app
        self._owner = owner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the server's response to a request."""
        body = await request.aread()
        try:
            with anyio.fail_after(_read_timeout(request)):
                answer = await self._owner.call_async(exchange(self._app, request, body))
        except TimeoutError:
            raise httpx.ReadTimeout("the server did not answer in time", request=request) from None
        status, headers, content = answer
        return httpx.Response(status, headers=headers, content=content)


def _read_timeout(request: httpx.Request) -> float | None:
    seconds: float | None = request.extensions.get("timeout", {}).get("read")
    return seconds


async def exchange(app: Asgi, request: httpx.Request, body: bytes) -> _Answer:
    """Run one request through an ASGI application and return its whole response."""
    url = request.url
    scope = {
        "type": "http",
        "asgi": _ASGI_VERSION,
        "http_version": "1.1",
        "method": request.method,
        "scheme": url.scheme,
        "path": url.path,
        "raw_path": url.raw_path.partition(b"?")[0],
        "query_string": url.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 0),
        "server": (url.host, url.port),
        WHOLE: True,
    }
    status = 0
    headers: list[tuple[bytes, bytes]] = []
    chunks: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.extend(message["headers"])
        else:
            chunks.append(message.get("body", b""))

    await app(scope, receive, send)
    if not status:
        raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=request)
    return status, headers, b"".join(chunks)
