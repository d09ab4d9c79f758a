"""httpx transports to an in-process server: as over HTTP, without a socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

import anyio
import httpx
from starlette.types import Message, Receive, Scope, Send

from agentpay.contract.ext.deliveries import STREAM_EVENTS
from agentpay_server.http.requests import WHOLE
from agentpay_server.testkit.embedded.owner_thread import LoopOwner, NotBegunError

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
_ASGI_VERSION: Final = {"version": "3.0", "spec_version": "2.3"}


class NotSentError(httpx.ConnectError):
    """The server cannot be called: it is closed, or this is its own thread. Nothing was sent."""

    is_permanent = True


@contextlib.contextmanager
def _declared(request: httpx.Request) -> Iterator[None]:
    try:
        yield
    except NotBegunError as error:
        raise NotSentError(str(error), request=request) from None
    except TimeoutError:
        raise httpx.ReadTimeout("the server did not answer in time", request=request) from None


class EmbeddedTransport(httpx.BaseTransport):
    def __init__(self, app: Asgi, owner: LoopOwner) -> None:
        self._app = app
        self._owner = owner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        if request.url.path == STREAM_EVENTS.path:
            with _declared(request):
                feed = self._owner.call(Feed.of(self._app, request, body))
            return httpx.Response(
                feed.status, headers=feed.headers, stream=_Chunks(feed, self._owner, request)
            )
        with _declared(request):
            answer = self._owner.call(exchange(self._app, request, body), timeout=_read_timeout(request))
        status, headers, content = answer
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(content))


class AsyncEmbeddedTransport(httpx.AsyncBaseTransport):
    def __init__(self, app: Asgi, owner: LoopOwner) -> None:
        self._app = app
        self._owner = owner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        if request.url.path == STREAM_EVENTS.path:
            with _declared(request):
                feed = await self._owner.call_async(Feed.of(self._app, request, body))
            return httpx.Response(
                feed.status, headers=feed.headers, stream=_AsyncChunks(feed, self._owner, request)
            )
        with _declared(request), anyio.fail_after(_read_timeout(request)):
            answer = await self._owner.call_async(exchange(self._app, request, body))
        status, headers, content = answer
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(content))


def _read_timeout(request: httpx.Request) -> float | None:
    seconds: float | None = request.extensions.get("timeout", {}).get("read")
    return seconds


class Feed:
    """A streamed response, for use on the owner's thread."""

    def __init__(self) -> None:
        self.status: int = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._begun = asyncio.Event()
        self._task: asyncio.Task[None]

    @classmethod
    async def of(cls, app: Asgi, request: httpx.Request, body: bytes) -> "Feed":
        """Return the response once it has begun."""
        feed = cls()
        feed._task = asyncio.get_running_loop().create_task(feed._run(app, request, body))
        await feed._begun.wait()
        if not feed.status:
            raise httpx.RemoteProtocolError(
                "Server disconnected without sending a response.", request=request
            )
        return feed

    async def next(self) -> bytes | None:
        return await self._chunks.get()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self, app: Asgi, request: httpx.Request, body: bytes) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], message["headers"]
                self._begun.set()
            else:
                self._chunks.put_nowait(message.get("body", b""))

        try:
            await app(_scope(request), _receiving(body), send)
        finally:
            self._begun.set()
            self._chunks.put_nowait(None)


class _Chunks(httpx.SyncByteStream):
    def __init__(self, feed: Feed, owner: LoopOwner, request: httpx.Request) -> None:
        self._feed, self._owner, self._request = feed, owner, request

    def __iter__(self) -> Iterator[bytes]:
        try:
            while (
                chunk := self._owner.call(self._feed.next(), timeout=_read_timeout(self._request))
            ) is not None:
                yield chunk
        except TimeoutError:
            raise httpx.ReadTimeout("the server did not answer in time", request=self._request) from None

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # The server has stopped, and the stream with it.
            self._owner.call(self._feed.close())


class _AsyncChunks(httpx.AsyncByteStream):
    def __init__(self, feed: Feed, owner: LoopOwner, request: httpx.Request) -> None:
        self._feed, self._owner, self._request = feed, owner, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                with anyio.fail_after(_read_timeout(self._request)):
                    chunk = await self._owner.call_async(self._feed.next())
                if chunk is None:
                    return
                yield chunk
        except TimeoutError:
            raise httpx.ReadTimeout("the server did not answer in time", request=self._request) from None

    async def aclose(self) -> None:
        with contextlib.suppress(RuntimeError):  # The server has stopped, and the stream with it.
            await self._owner.call_async(self._feed.close())


def _scope(request: httpx.Request) -> Scope:
    url = request.url
    return {
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
        WHOLE: lambda: True,
    }


def _receiving(body: bytes) -> Receive:
    """Return what gives the body once, and then waits: the caller stays until the response has ended."""
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def exchange(app: Asgi, request: httpx.Request, body: bytes) -> _Answer:
    scope = _scope(request)
    status = 0
    headers: list[tuple[bytes, bytes]] = []
    chunks: list[bytes] = []
    is_ended = False

    async def send(message: Message) -> None:
        nonlocal status, is_ended
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.extend(message["headers"])
        else:
            chunks.append(message.get("body", b""))
            is_ended = not message.get("more_body", False)

    await app(scope, _receiving(body), send)
    if status and not is_ended:
        raise httpx.RemoteProtocolError(
            "Server disconnected before the end of its response.", request=request
        )
    if not status:
        raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=request)
    return status, headers, b"".join(chunks)
