"""HTTP/1.1 requests to one endpoint over kept connections, at a sixth of a general client's processor time.

A transfer on a cluster makes two or three requests, and libraries spend 0.4 ms or more on each. This module
posts and reads one response at a time on each connection; h11 reads and checks the messages. Nothing is sent
twice, and redirects are not followed.

Proxies of the environment are used, as other tools do: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and
`NO_PROXY`, with the scheme http.
"""

import asyncio
import base64
import socket
import ssl
from functools import cache
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import h11
import httpx
from attrs import Factory, frozen

from agentpay.contract.bodies import Body

_IDLE_SECONDS: Final = 20.0
"""How long an unused connection is kept; nodes and their load balancers keep them for longer."""

_CONNECT_SECONDS: Final = 3.0
"""Longest attempt to connect to one address of several."""

_SAFE: Final = "%/?:@!$&'()*+,;=~[]"

_PORTS: Final = {"http": 80, "https": 443}

Headers = list[tuple[str, str]]


class HttpError(Exception):
    """There was no response. The message contains no part of the URL."""


@frozen
class Response:
    """A response: its status, the value of its header `Retry-After`, and its decompressed body."""

    status: int
    retry_after: str
    body: bytes


class HttpEndpoint:
    """Posts JSON to a URL. Bound to the event loop on which it is first used.

    Args:
        url: with the scheme http or https.
        max_connections: maximum number of connections; further requests wait for one.
        max_bytes: maximum size of a response's body, before and after decompression.
    """

    def __init__(self, url: str, *, max_connections: int, max_bytes: int) -> None:
        target = urlsplit(url)
        self._route = _Route.to(target)
        self._max_bytes = max_bytes
        self._turns = asyncio.Semaphore(max_connections)
        self._idle: list[_Connection] = []
        self._is_closed = False
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        self._path = self._route.prefix + quote(path, safe=_SAFE)
        self._headers: Headers = [
            ("Host", _authority(target)),
            ("Content-Type", "application/json"),
            ("Accept", "application/json"),
            ("Accept-Encoding", "gzip"),
            *_credentials(target, "Authorization"),
            *self._route.headers,
        ]

    async def post(self, content: bytes) -> Response:
        """Send a request, and return the response.

        Raises:
            HttpError: there was no response, or it was not HTTP/1.1.
            BodyError: its body is too large, or its encoding was not requested.
            OSError: the connection failed.
        """
        async with self._turns:
            connection = self._kept() or await self._connected()
            try:
                headers = [*self._headers, ("Content-Length", str(len(content)))]
                request = h11.Request(method="POST", target=self._path, headers=headers)
                response = await connection.exchange(request, content)
            except BaseException:
                connection.abort()
                raise
            if connection.is_reusable and not self._is_closed:
                connection.idle_since = asyncio.get_running_loop().time()
                self._idle.append(connection)
            else:
                connection.abort()
            return response

    def close(self) -> None:
        """Close the idle connections; others close when their request ends."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().abort()

    def _kept(self) -> "_Connection | None":
        """Return the connection that was used last; close connections that were idle for long."""
        oldest = asyncio.get_running_loop().time() - _IDLE_SECONDS
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).abort()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
        return None

    async def _connected(self) -> "_Connection":
        if self._is_closed:
            raise HttpError("ConnectError: the client is closed")
        try:
            return await self._route.connect(self._max_bytes)
        except (OSError, UnicodeError) as error:
            # The error's text may contain the host, where providers put their keys.
            raise HttpError(f"ConnectError: {type(error).__name__}") from None


@frozen
class _Route:
    """The way to an endpoint: directly, or through a proxy.

    Attributes:
        host: where to connect to.
        port: its port.
        target: the endpoint.
        tunnel_headers: headers of the request for a tunnel; None without a tunnel.
        prefix: what precedes the path in the target of requests.
        headers: additional headers of requests.
    """

    host: str
    port: int
    target: SplitResult
    tunnel_headers: Headers | None = None
    prefix: str = ""
    headers: Headers = Factory(list)

    @classmethod
    def to(cls, target: SplitResult) -> "_Route":
        """Return the way that the environment asks for."""
        host = target.hostname or ""
        proxies = getproxies()
        named = proxies.get(target.scheme) or proxies.get("all")
        port = target.port or _PORTS[target.scheme]
        if not named or proxy_bypass(host) or proxy_bypass(f"{host}:{port}"):
            return cls(host, port, target)
        proxy = urlsplit(named if "://" in named else f"http://{named}")
        if proxy.scheme != "http" or not proxy.hostname:
            raise ValueError("the proxy for the RPC endpoint, in the environment, must begin with http://")
        credentials = _credentials(proxy, "Proxy-Authorization")
        place = proxy.hostname, proxy.port or 80, target
        if target.scheme == "https":
            return cls(*place, tunnel_headers=credentials)
        return cls(*place, prefix=f"http://{_authority(target)}", headers=credentials)

    async def connect(self, max_bytes: int) -> "_Connection":
        """Connect to the first address that responds."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
        for address in addresses[:-1]:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await self._connect_to(address, max_bytes)
            except (OSError, TimeoutError):
                continue
        return await self._connect_to(addresses[-1], max_bytes)

    async def _connect_to(self, address: str, max_bytes: int) -> "_Connection":
        loop = asyncio.get_running_loop()
        is_direct = self.target.scheme == "https" and self.tunnel_headers is None
        _, connection = await loop.create_connection(
            lambda: _Connection(max_bytes),
            address,
            self.port,
            ssl=_ssl_context() if is_direct else None,
            server_hostname=self.target.hostname if is_direct else None,
        )
        if self.tunnel_headers is not None:
            try:
                await self._tunnel(connection)
            except BaseException:
                connection.abort()
                raise
        return connection

    async def _tunnel(self, connection: "_Connection") -> None:
        place = _authority(self.target, with_port=True)
        request = h11.Request(
            method="CONNECT", target=place, headers=[("Host", place), *(self.tunnel_headers or [])]
        )
        response = await connection.exchange(request, b"")
        if not 200 <= response.status < 300:
            raise HttpError(f"the proxy refuses a connection with HTTP status {response.status}")
        await connection.start_tls(_ssl_context(), self.target.hostname)


class _Connection(asyncio.Protocol):
    """One connection, with at most one request at a time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._messages = h11.Connection(h11.CLIENT)
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[Response] | None = None
        self._head: h11.Response | None = None
        self._body: Body | None = None
        self.is_closed = False
        self.idle_since = 0.0

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow."""
        return not self.is_closed and self._messages.our_state is h11.IDLE

    async def exchange(self, request: h11.Request, content: bytes) -> Response:
        """Send a request, and wait for its response."""
        assert self._transport is not None  # noqa: S101 - connected
        self._response = asyncio.get_running_loop().create_future()
        parts: list[h11.Event] = [request, *([h11.Data(data=content)] if content else ()), h11.EndOfMessage()]
        self._transport.write(b"".join(self._messages.send(part) or b"" for part in parts))
        if self.is_closed:
            raise HttpError("WriteError")
        try:
            return await self._response
        finally:
            self._response = self._head = self._body = None

    async def start_tls(self, context: ssl.SSLContext, server_hostname: str | None) -> None:
        """Encrypt the connection. Further messages are those of the server behind it."""
        assert self._transport is not None  # noqa: S101 - connected
        self._messages = h11.Connection(h11.CLIENT)
        loop = asyncio.get_running_loop()
        self._transport = await loop.start_tls(
            self._transport, self, context, server_hostname=server_hostname
        )

    def abort(self) -> None:
        """Close the connection at once."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_closed = True
        self._fail(HttpError("ReadError"))

    def eof_received(self) -> None:
        self._receive(b"")
        self.is_closed = True

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        if self._response is None or self._response.done():
            # Data that no request asked for: what follows could be taken for the response to another one.
            self.abort()
            return
        try:
            self._messages.receive_data(data)
            self._read()
        except h11.RemoteProtocolError:
            self._fail(HttpError("RemoteProtocolError"))
        except Exception as error:  # noqa: BLE001 - the caller waits for any end
            self._fail(error)

    def _read(self) -> None:
        while True:
            event = self._messages.next_event()
            if isinstance(event, h11.Response):
                self._head = event
                self._body = Body(_header(event, b"content-encoding"), limit=self._max_bytes)
            elif isinstance(event, h11.Data):
                assert self._body is not None  # noqa: S101 - h11 returns the head first
                self._body.feed(bytes(event.data))
            elif isinstance(event, (h11.EndOfMessage, h11.PAUSED)):
                self._end()
                return
            elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return

    def _end(self) -> None:
        head, body, messages = self._head, self._body, self._messages
        assert head is not None and body is not None  # noqa: S101, PT018 - h11 returns the head first
        if messages.our_state is h11.DONE and messages.their_state is h11.DONE:
            if messages.trailing_data[0]:
                self.abort()
            else:
                messages.start_next_cycle()
        response = Response(head.status_code, _header(head, b"retry-after"), body.finish())
        if self._response is not None and not self._response.done():
            self._response.set_result(response)

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)


def _header(response: h11.Response, name: bytes) -> str:
    return ", ".join(value.decode("latin-1") for found, value in response.headers if found == name)


def _authority(target: SplitResult, *, with_port: bool = False) -> str:
    host, port = target.hostname or "", target.port
    host = f"[{host}]" if ":" in host else host.encode("idna").decode("ascii")
    if with_port or (port is not None and port != _PORTS[target.scheme]):
        return f"{host}:{port or _PORTS[target.scheme]}"
    return host


def _credentials(target: SplitResult, header: str) -> Headers:
    if target.username is None:
        return []
    pair = f"{unquote(target.username)}:{unquote(target.password or '')}"
    return [(header, "Basic " + base64.b64encode(pair.encode()).decode("ascii"))]


@cache
def _ssl_context() -> ssl.SSLContext:
    """Shared in this process: loading the CA files takes 20 ms or more."""
    return httpx.create_ssl_context()
