"""JSON-RPC calls: each returns a result in time, or raises `ChainUnreachableError`.

Nothing is retried, no other exception escapes, and no error or log line contains the URL, where providers put
their keys. A response must have the number of its request. While the endpoint limits the rate, calls fail
without a request.
"""

import asyncio
import base64
import itertools
import json
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, Protocol
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx
from aiohappyeyeballs import start_connection

from agentpay._http.environment import proxy_variable, unreadable_certificates
from agentpay.contract.bodies import Body, BodyError
from agentpay_server.chain.clusters import ClusterRefusedError
from agentpay_server.chain.protocol import ChainUnreachableError

_IDLE_SECONDS: Final = 20.0
"""How long an unused connection is kept; nodes and their load balancers keep them for longer."""

_NEXT_ADDRESS_SECONDS: Final = 0.25
"""When the next address of a host is tried as well, as RFC 8305 recommends."""

_PORTS: Final = {"http": 80, "https": 443}

_QUIET_SECONDS: Final = 1.0
_LONGEST_QUIET_SECONDS: Final = 10.0
_BUSY_STATUSES: Final = frozenset({429, 503})
_REFUSING_STATUSES: Final = frozenset({401, 403, 404, 405})
_MAX_DETAIL: Final = 300
_OK: Final = 200

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
"""The largest response that is read, in bytes before and after decompression; usual ones are far smaller."""


class EndpointRefusesError(ChainUnreachableError):
    """The endpoint refuses every request because its key or path is wrong. Waiting does not help."""


class RpcRefusalError(ChainUnreachableError):
    """The node returned a JSON-RPC error, with its `code`, message and additional data.

    Callers that do not handle it see an unavailable chain.
    """

    def __init__(self, method: str, code: int, detail: str, data: object) -> None:
        super().__init__(f"{method}: the node answered with error {code}: {detail[:_MAX_DETAIL]}")
        self.code = code
        self.detail = detail
        self.data = data


class RpcCaller(Protocol):
    """Makes JSON-RPC calls: `RpcClient`, or a replacement without a network."""

    async def call(self, method: str, /, *params: object) -> object:
        """Return the result of a call, as `RpcClient.call` does."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class RpcClient:
    """Calls an endpoint, with the scheme http or https. Bound to the event loop on which it is first used.

    `timeout_seconds` includes the wait for one of `max_connections`.
    """

    def __init__(self, url: str, *, timeout_seconds: float, max_connections: int) -> None:
        target = httpx.URL(url)
        self._url = httpcore.URL(
            scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path
        )
        # Makes connections, directly or through a proxy, and handles no request.
        self._connections = httpcore.AsyncConnectionPool(
            ssl_context=_ssl_context() if target.scheme == "https" else None,
            proxy=_proxy(target),
            keepalive_expiry=_IDLE_SECONDS,
            network_backend=_Network(),
        )
        self._timeout_seconds = timeout_seconds
        self._turns = asyncio.Semaphore(max_connections)
        self._idle: deque[httpcore.AsyncConnectionInterface] = deque()
        self._is_closed = False
        self._quiet_until = 0.0
        # Not from 1: of a proxy that mixes up connections, the response to another client must not fit.
        self._numbers = itertools.count(secrets.randbits(48))
        self._headers = [
            (b"Host", target.netloc),
            (b"Content-Type", b"application/json"),
            (b"Accept", b"application/json"),
            (b"Accept-Encoding", b"gzip"),
        ]
        if target.userinfo:
            pair = f"{target.username}:{target.password}"
            self._headers.append((b"Authorization", b"Basic " + base64.b64encode(pair.encode())))

    async def call(self, method: str, *params: object) -> object:
        """Return the result of a call: JSON, unchecked.

        Raises:
            RpcRefusalError: the node returned an error.
            ChainUnreachableError: there was no response in time, or it was not JSON-RPC.
        """
        if asyncio.get_running_loop().time() < self._quiet_until:
            raise ChainUnreachableError(f"{method}: not sent, because the node asked for fewer requests")
        try:
            async with asyncio.timeout(self._timeout_seconds):
                reply = await self._reply(method, params)
            return _result(method, reply)
        except ChainUnreachableError:
            raise
        except TimeoutError:
            why = f"no answer within {self._timeout_seconds} s"
        except BodyError as error:
            why = f"the answer {error}"
        except httpcore.ConnectError as error:
            why = f"ConnectError: {error}"
        except httpcore.ProxyError as error:
            why = f"the proxy refuses a connection with HTTP status {str(error)[:3]}"
        except Exception as error:  # noqa: BLE001 - whatever is raised below is one thing here
            why = type(error).__name__
        # Outside the handlers, because the context of the caught exception may contain the host.
        raise ChainUnreachableError(f"{method}: {why}")

    async def close(self) -> None:
        """Close the idle connections; others close when their call ends."""
        self._is_closed = True
        while self._idle:
            await self._idle.pop().aclose()
        await asyncio.sleep(0)  # They close in the next turn of the event loop.

    async def _reply(self, method: str, params: tuple[object, ...]) -> dict[str, Any]:
        """Return the response to a request, with either a result or an error.

        The connection is used again only if the response is one to this request: otherwise what follows on it
        would be the response to another one as well.
        """
        number = next(self._numbers)
        call = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        content = json.dumps(call, separators=(",", ":")).encode()
        headers = [*self._headers, (b"Content-Length", b"%d" % len(content))]
        request = httpcore.Request("POST", self._url, headers=headers, content=content)
        async with self._turns:
            if self._is_closed:
                raise httpcore.ConnectError("the client is closed")
            connection = await self._kept() or self._connections.create_connection(self._url.origin)
            try:
                response = await connection.handle_async_request(request)
                body = Body(_header(response, b"content-encoding"), limit=BODY_MAX_BYTES)
                async for chunk in response.aiter_stream():
                    body.feed(chunk)
                await response.aclose()
                answered = body.finish()
                self._check_status(method, response)
                reply = _checked(method, number, json.loads(answered))
            except BaseException:
                await connection.aclose()
                raise
            if self._is_closed:
                await connection.aclose()
            elif connection.is_idle():
                self._idle.append(connection)
            return reply

    async def _kept(self) -> httpcore.AsyncConnectionInterface | None:
        """Return the connection that was used last; close the expired and the closed ones."""
        while self._idle and self._idle[0].has_expired():
            await self._idle.popleft().aclose()
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return None

    def _check_status(self, method: str, response: httpcore.Response) -> None:
        if response.status == _OK:
            return
        if response.status in _BUSY_STATUSES:
            quiet_seconds = _retry_after_seconds(_header(response, b"retry-after"))
            self._quiet_until = asyncio.get_running_loop().time() + quiet_seconds
        kind = EndpointRefusesError if response.status in _REFUSING_STATUSES else ChainUnreachableError
        raise kind(f"{method}: the node answered with HTTP status {response.status}")


def _checked(method: str, number: int, reply: object) -> dict[str, Any]:
    """Return a response to request `number`, with either a result or an error.

    Raises:
        ChainUnreachableError: it is not a response to this request.
    """
    if not isinstance(reply, dict) or ("result" in reply) == (reply.get("error") is not None):
        raise ChainUnreachableError(f"{method}: the answer is not JSON-RPC")
    # A node that cannot read a request does not know its number.
    if reply.get("id") != number and not (reply.get("error") is not None and reply.get("id") is None):
        raise ChainUnreachableError(f"{method}: the answer is that to another request")
    return reply


def _result(method: str, reply: dict[str, Any]) -> object:
    """Return the result in a response.

    Raises:
        RpcRefusalError: it is an error.
        ChainUnreachableError: its error is malformed.
    """
    error = reply.get("error")
    if error is None:
        return reply["result"]
    if not (isinstance(error, dict) and type(error.get("code")) is int and type(error.get("message")) is str):
        raise ChainUnreachableError(f"{method}: the answer is not JSON-RPC")
    raise RpcRefusalError(method, error["code"], error["message"], error.get("data"))


def _retry_after_seconds(header: str) -> float:
    # The header's other form, a date, is ignored, because clocks differ.
    if not (header.isascii() and header.isdigit() and len(header) < 9):
        return _QUIET_SECONDS
    return min(float(header), _LONGEST_QUIET_SECONDS)


# --- HTTP/1.1 over kept connections: httpcore's connections, without its pool.
#
# httpcore writes and reads messages, encrypts, and connects through proxies. A transfer on a cluster makes
# two or three requests, and httpcore's pool and network streams spend most of each: the pool examines every
# connection for every request, so that the client keeps the connections itself, over streams of asyncio.
# Nothing is sent twice, and redirects are not followed.
#
# Proxies of the environment are used, as other tools do: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and
# `NO_PROXY`, with the scheme http.


class _Network(httpcore.AsyncNetworkBackend):
    """Connects with asyncio."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - the caller of a request limits all of it
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            # asyncio's own race of addresses loses the connected socket if the caller is cancelled.
            connected = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)
            _, stream = await loop.create_connection(_Stream, sock=connected)
        except (OSError, UnicodeError) as error:
            # The error's text may contain the host, where providers put their keys.
            raise httpcore.ConnectError(type(error).__name__) from None
        return stream


class _Stream(asyncio.Protocol, httpcore.AsyncNetworkStream):
    """One connection. A peer that sends more than is read has to wait."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._unsent = bytearray()
        self._received = bytearray()
        self._has_ended = False
        self._reader: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._reader is None:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._has_ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.eof_received()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002, ASYNC109
        if self._unsent:
            self._transport.write(bytes(self._unsent))
            self._unsent.clear()
        if not (self._received or self._has_ended):
            self._transport.resume_reading()
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109
        # A request is written in parts and read from afterwards: it is sent then, in one packet.
        self._unsent += buffer

    async def aclose(self) -> None:
        self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        plain = self._transport
        if self._received:
            # Data from before the encryption must not be read as if it came from the node.
            plain.abort()
            raise httpcore.ConnectError("data before the encryption")
        try:
            self._transport = await loop.start_tls(plain, self, ssl_context, server_hostname=server_hostname)
        except BaseException as error:
            plain.abort()
            if isinstance(error, OSError):
                raise httpcore.ConnectError(type(error).__name__) from None
            raise
        return self

    def get_extra_info(self, info: str) -> bool | None:
        """Return whether an idle connection has ended or has data that no request asked for, else None."""
        return (self._has_ended or bool(self._received)) if info == "is_readable" else None


def _proxy(target: httpx.URL) -> httpcore.Proxy | None:
    """Return the proxy that the environment asks for."""
    named = getproxies().get(target.scheme) or getproxies().get("all")
    place = f"{target.host}:{target.port or _PORTS[target.scheme]}"
    if not named or proxy_bypass(target.host) or proxy_bypass(place):
        return None
    try:
        proxy = httpx.URL(named if "://" in named else f"http://{named}")
    except httpx.InvalidURL:
        proxy = httpx.URL()
    if proxy.scheme != "http" or not proxy.host:
        variable = proxy_variable(target.scheme if getproxies().get(target.scheme) else "all")
        raise ClusterRefusedError(f"{variable} must be the address of a proxy that begins with http://")
    return httpcore.Proxy(
        httpcore.URL(scheme=b"http", host=proxy.raw_host, port=proxy.port or 80, target=b"/"),
        auth=(proxy.username, proxy.password) if proxy.userinfo else None,
    )


def _header(response: httpcore.Response, name: bytes) -> str:
    return ", ".join(value.decode("latin-1") for found, value in response.headers if found.lower() == name)


@cache
def _ssl_context() -> ssl.SSLContext:
    """Shared in this process: loading the CA files takes 20 ms or more."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:  # as `ssl.SSLError` is
        raise ClusterRefusedError(unreadable_certificates(error)) from None
