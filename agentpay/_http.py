"""The edge to the network, and the one module that imports httpx: requests go out, replies come back.

`Http` and `AsyncHttp` hold one HTTP client each, made at the first request and shared by all copies of an
SDK client. What goes wrong on the way comes back as a value of `agentpay.errors`; no exception of httpx
leaves. Whether to send again, and what a reply means, is decided elsewhere.
"""

# `timeout` is handed to the HTTP exchange, which answers with an outcome; `asyncio.timeout` would lose it.
# ruff: noqa: ASYNC109

import logging
import random
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Final, TypeAlias

import httpx

from agentpay._requests import PreparedRequest, Reply
from agentpay._settings import ApiKey, logger
from agentpay._version import __version__
from agentpay.errors import (
    AgentPayError,
    APIConnectionError,
    APITimeoutError,
    ClosedClientError,
    ConfigurationError,
    DecodingError,
)

__all__ = ["AsyncHttp", "AsyncHttpClient", "AsyncTransport", "Http", "HttpClient", "Transport"]

HttpClient: TypeAlias = httpx.Client
AsyncHttpClient: TypeAlias = httpx.AsyncClient
Transport: TypeAlias = httpx.BaseTransport
AsyncTransport: TypeAlias = httpx.AsyncBaseTransport

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
"""The largest body of an answer that is read, in bytes. A full page of the contract is far below."""

_URLS_KEPT: Final = 128

_NOT_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)
"""Failures before the first byte of a request has left."""

_ssl_lock = threading.Lock()
_ssl_context: ssl.SSLContext | None = None


def shared_ssl_context() -> ssl.SSLContext:
    """Return the one TLS context of this process: loading the certificates takes tens of milliseconds."""
    global _ssl_context  # noqa: PLW0603 - made once per process, at the first need
    with _ssl_lock:
        if _ssl_context is None:
            _ssl_context = httpx.create_ssl_context()
        return _ssl_context


class _Edge:
    """What `Http` and `AsyncHttp` share: all that needs no waiting."""

    def __init__(self, base_url: str, given: HttpClient | AsyncHttpClient | None) -> None:
        try:
            host = httpx.URL(base_url).netloc
        except httpx.InvalidURL:
            raise ConfigurationError("base_url must be an address such as https://api.example.com") from None
        self.closed = False
        # Time and chance of retries and polling: a simulation sets its own.
        self.now: Callable[[], float] = time.time
        self.monotonic: Callable[[], float] = time.monotonic
        self.random: Callable[[], float] = random.random
        # The same few paths again and again: to take an address apart is most of what a request costs.
        self._url = lru_cache(maxsize=_URLS_KEPT)(lambda target: httpx.URL(base_url + target))
        # The defaults of a given client stay, where the contract does not decide.
        self._defaults = httpx.Headers(given.headers if given is not None else None)
        self._defaults.update(
            {
                "Host": host.decode("ascii"),
                "Accept": "application/json",
                # Bodies are small, and a few bytes that unfold into gigabytes cannot be sent.
                "Accept-Encoding": "identity",
                "Connection": "keep-alive",
                "User-Agent": f"agentpay-python/{__version__}",
            }
        )

    def headers(self, api_key: ApiKey) -> httpx.Headers:
        """Return the headers that every request under this key has. Their `repr` hides the key."""
        headers = self._defaults.copy()
        headers["Authorization"] = f"Bearer {api_key.reveal()}"
        return headers

    def _build(
        self, request: PreparedRequest, headers: httpx.Headers, timeout: float | None
    ) -> httpx.Request:
        # `httpx.Client.build_request` would merge URL, headers and cookies anew for every call.
        content = request.content
        built = httpx.Request(
            request.endpoint.method,
            self._url(request.target),
            headers=headers,
            stream=httpx.ByteStream(content or b""),
            extensions={"timeout": {"connect": timeout, "read": timeout, "write": timeout, "pool": timeout}},
        )
        if content is not None:
            built.headers["Content-Type"] = "application/json"
            built.headers["Content-Length"] = str(len(content))
        if request.if_match is not None:
            built.headers["If-Match"] = request.if_match
        built.read()  # so that event hooks of a given client may look at the content
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("sending %s %s %r", built.method, request.target, built.headers)
        return built

    def _log(self, request: PreparedRequest, outcome: Reply | AgentPayError, started: float) -> None:
        milliseconds = (self.monotonic() - started) * 1000
        method = request.endpoint.method
        if isinstance(outcome, Reply):
            request_id = outcome.headers.get("x-request-id", "-")
            logger.info(
                "%s %s: %d in %.0f ms (request %s)",
                method,
                request.target,
                outcome.status,
                milliseconds,
                request_id,
            )
        else:
            logger.info(
                "%s %s: %s after %.0f ms", method, request.target, type(outcome).__name__, milliseconds
            )


def _failure(error: httpx.HTTPError, request: PreparedRequest, timeout: float | None) -> AgentPayError:
    """The exception of ours that stands for one of httpx, which is not kept: its frames hold the API key."""
    may_have_been_processed = not isinstance(error, _NOT_SENT)
    if isinstance(error, httpx.DecodingError):
        return DecodingError(
            f"the body of the answer to {request.endpoint.name} cannot be decompressed. "
            "Check that base_url is the address of the service"
        )
    processed = (
        "The request may have been processed" if may_have_been_processed else "The request was not sent"
    )
    if isinstance(error, httpx.TimeoutException):
        return APITimeoutError(
            f"no answer to {request.endpoint.name} within {timeout or 0:g} s ({type(error).__name__}). "
            f"{processed}. Call again later, or with a longer timeout",
            may_have_been_processed=may_have_been_processed,
        )
    return APIConnectionError(
        f"no answer to {request.endpoint.name}: {str(error) or 'connection lost'} ({type(error).__name__}). "
        f"{processed}. Check the network and base_url, then call again",
        may_have_been_processed=may_have_been_processed,
    )


class _Body:
    """The body of one answer as it comes in, up to `BODY_MAX_BYTES`."""

    def __init__(self, request: PreparedRequest, response: httpx.Response) -> None:
        self._request = request
        self._response = response
        self._chunks: list[bytes] = []
        self._size = 0

    def takes(self, chunk: bytes) -> bool:
        """Keep a chunk and tell whether another one may come."""
        self._size += len(chunk)
        self._chunks.append(chunk)
        return self._size <= BODY_MAX_BYTES

    def outcome(self) -> Reply | DecodingError:
        """Return the reply, or the error when its body is too large."""
        if self._size <= BODY_MAX_BYTES:
            return Reply(self._response.status_code, self._response.headers, b"".join(self._chunks))
        return DecodingError(
            f"the answer to {self._request.endpoint.name} is larger than {BODY_MAX_BYTES} bytes. "
            "Check that base_url is the address of the service",
            status=self._response.status_code,
        )


class Http(_Edge):
    """The edge of the sync client."""

    def __init__(self, base_url: str, given: HttpClient | None, transport: Transport | None) -> None:
        super().__init__(base_url, given)
        self.sleep: Callable[[float], None] = time.sleep
        self._client = given
        self._owned = given is None
        self._transport = transport
        self._lock = threading.Lock()

    def _sender(self) -> Callable[[httpx.Request], httpx.Response]:
        if self.closed:
            raise ClosedClientError
        if self._transport is not None:
            # A client around it would add what is never used here: cookies, redirects, authentication.
            return self._transport.handle_request
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = HttpClient(verify=shared_ssl_context())
        if self._client.is_closed:
            raise ClosedClientError
        return partial(self._client.send, stream=True, auth=None, follow_redirects=False)

    def send(
        self, request: PreparedRequest, headers: httpx.Headers, timeout: float | None
    ) -> Reply | AgentPayError:
        """Send a request once and return its reply, or the exception that stands for a missing one.

        Raises:
            ClosedClientError: the client is closed.
        """
        sender = self._sender()
        started = self.monotonic()
        outcome: Reply | AgentPayError
        try:
            response = sender(self._build(request, headers, timeout))
            body = _Body(request, response)
            try:
                for chunk in response.iter_bytes():
                    if not body.takes(chunk):
                        break
            finally:
                response.close()
            outcome = body.outcome()
        except httpx.HTTPError as error:
            outcome = _failure(error, request, timeout)
        except BaseException as error:
            if isinstance(error, Exception):
                raise
            # Cancelled or interrupted: frames of the HTTP library may hold what is sent, the key included.
            raise error.with_traceback(None)  # noqa: B904 - the same exception
        self._log(request, outcome, started)
        return outcome

    def close(self) -> None:
        """Close the connections, unless the HTTP client was given."""
        if self.closed:
            return
        self.closed = True
        if self._transport is not None:
            self._transport.close()
        elif self._owned and self._client is not None:
            self._client.close()


async def _sleep(seconds: float) -> None:
    # Loading asyncio takes longer than loading all of this package, and the sync client never needs it.
    import asyncio  # noqa: PLC0415

    await asyncio.sleep(seconds)


class AsyncHttp(_Edge):
    """The edge of the async client."""

    def __init__(
        self, base_url: str, given: AsyncHttpClient | None, transport: AsyncTransport | None
    ) -> None:
        super().__init__(base_url, given)
        self.sleep: Callable[[float], Awaitable[None]] = _sleep
        self._client = given
        self._owned = given is None
        self._transport = transport

    def _sender(self) -> Callable[[httpx.Request], Awaitable[httpx.Response]]:
        if self.closed:
            raise ClosedClientError
        if self._transport is not None:
            # A client around it would add what is never used here: cookies, redirects, authentication.
            return self._transport.handle_async_request
        if self._client is None:
            self._client = AsyncHttpClient(verify=shared_ssl_context())
        if self._client.is_closed:
            raise ClosedClientError
        return partial(self._client.send, stream=True, auth=None, follow_redirects=False)

    async def send(
        self, request: PreparedRequest, headers: httpx.Headers, timeout: float | None
    ) -> Reply | AgentPayError:
        """Send a request once and return its reply, or the exception that stands for a missing one.

        Raises:
            ClosedClientError: the client is closed.
        """
        sender = self._sender()
        started = self.monotonic()
        outcome: Reply | AgentPayError
        try:
            response = await sender(self._build(request, headers, timeout))
            body = _Body(request, response)
            try:
                async for chunk in response.aiter_bytes():
                    if not body.takes(chunk):
                        break
            finally:
                await response.aclose()
            outcome = body.outcome()
        except httpx.HTTPError as error:
            outcome = _failure(error, request, timeout)
        except BaseException as error:
            if isinstance(error, Exception):
                raise
            # Cancelled or interrupted: frames of the HTTP library may hold what is sent, the key included.
            raise error.with_traceback(None)  # noqa: B904 - the same exception
        self._log(request, outcome, started)
        return outcome

    async def close(self) -> None:
        """Close the connections, unless the HTTP client was given."""
        if self.closed:
            return
        self.closed = True
        if self._transport is not None:
            await self._transport.aclose()
        elif self._owned and self._client is not None:
            await self._client.aclose()
