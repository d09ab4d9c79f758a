"""The network edge: sends requests and reads responses. Only this module imports httpx.

`Http` and `AsyncHttp` hold the connections of an SDK client and all its copies. Failures are returned as
exceptions of `agentpay.errors`. Once a request was handed over, no exception of another library is raised: it
would hide that the request may have been processed. Retries and the meaning of responses are decided
elsewhere.
"""

import contextlib
import os
import ssl
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from agentpay._calls.options import CallSettings
from agentpay._calls.requests import PreparedRequest, refusal_of
from agentpay._http import failures
from agentpay._http.deadlines import GRACE_SECONDS, BoundedBackend
from agentpay._http.environment import proxy_variable, unreadable_certificates
from agentpay._http.passed import (
    AsyncHttpClient,
    AsyncResponse,
    AsyncTransport,
    HttpClient,
    Response,
    Transport,
    library_of,
)
from agentpay._http.plaintext import is_local
from agentpay._http.pools import CONNECTIONS_MAX, Pools
from agentpay._http.transport import BaseTransport, TimedRequest, body_of, check_stream
from agentpay.contract.bodies import BodyError
from agentpay.contract.headers import is_header_value
from agentpay.contract.responses import RawResponse
from agentpay.errors import AgentPayError, ConfigurationError

__all__ = ["AsyncHttp", "AsyncHttpClient", "AsyncTransport", "Http", "HttpClient", "Transport"]

if TYPE_CHECKING:
    import httpcore

    class Auth(httpx.Auth):
        # Only for type checkers: httpx2 accepts it as a callable.
        def __call__(self, request: Any) -> Any: ...  # noqa: ANN401


_SEND_OPTIONS: Final[Mapping[str, Any]] = {"stream": True, "auth": None, "follow_redirects": False}
"""Arguments of `send`: no authentication or redirects by the HTTP library, and the body is read here."""

# With as many idle connections allowed as connections in total, httpcore's bookkeeping takes cubic time.
_LIMITS: Final = httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=20)

_OK: Final = 200

_ssl_lock = threading.Lock()
_ssl_context: ssl.SSLContext | None = None


def shared_ssl_context() -> ssl.SSLContext:
    """Shared in this process: loading certificates takes tens of milliseconds."""
    global _ssl_context  # noqa: PLW0603 - made once per process, at the first need
    with _ssl_lock:
        if _ssl_context is None:
            _ssl_context = _new_ssl_context()
        return _ssl_context


def _new_ssl_context() -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context()
    except Exception as error:  # noqa: BLE001 - of any kind; nothing was sent
        raise ConfigurationError(f"{unreadable_certificates(error)}. {_CORRECT}") from None


def _renew_lock() -> None:
    global _ssl_lock  # noqa: PLW0603 - the thread that held it at the fork does not exist in the child
    _ssl_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def page_client(connect_seconds: float, read_seconds: float) -> httpx.AsyncClient:
    """For pages of third parties: no proxies, no redirects, no stored state."""
    return httpx.AsyncClient(
        verify=shared_ssl_context(),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(connect_seconds, read=read_seconds),
    )


def call_request(url: str, content: bytes, extensions: Mapping[str, Any]) -> httpx.Request:
    """Return a call that is made by other means than HTTP, as the request that it would be."""
    return httpx.Request("POST", url, content=content, extensions=dict(extensions))


def call_response(
    request: httpx.Request, status: int, headers: Sequence[tuple[str, str]], content: bytes
) -> httpx.Response:
    """Return the outcome of such a call, as the response that it would be."""
    return httpx.Response(status, headers=list(headers), content=content, request=request)


def cookie_of(url: str, headers: Sequence[tuple[str, str]], sent: str | None = None) -> str | None:
    """Return the `Cookie` field of the next request to a URL whose response had these headers.

    Args:
        url: of the response, and of the next request.
        headers: of the response.
        sent: the field of the previous request. Cookies that the response sets replace its cookies.
    """
    if not any(name.lower() == "set-cookie" for name, _ in headers):
        # Most sellers set none, and a cookie jar takes as long as four responses of httpx.
        return sent or None
    request = httpx.Request("GET", url)
    cookies = httpx.Cookies()
    cookies.extract_cookies(httpx.Response(402, headers=list(headers), request=request))
    cookies.set_cookie_header(request)
    set_now = request.headers.get("cookie", "")
    return _merged(sent, set_now if is_header_value(set_now) else None)


def _merged(sent: str | None, new: str | None) -> str | None:
    if not sent or not new:
        return sent or new or None
    pairs = [pair for pair in (each.strip() for each in sent.split(";")) if pair]
    names = {pair.partition("=")[0].strip() for pair in new.split(";")}
    return "; ".join([*(pair for pair in pairs if pair.partition("=")[0].strip() not in names), new])


C = TypeVar("C")


_PROXIED: Final = ("http", "https", "all")
"""The keys of `getproxies` that httpx uses."""

_CORRECT: Final = "Correct it, or pass an http_client"


def _is_proxied(base_url: str) -> bool:
    """Return whether requests may go through a proxy of the environment."""
    return not is_local(base_url) and not getproxies().keys().isdisjoint(_PROXIED)


def _context(base_url: str) -> ssl.SSLContext:
    """Return a context without any certificate where nothing is encrypted: loading them takes long."""
    if urlsplit(base_url).scheme == "http" and not _is_proxied(base_url):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return shared_ssl_context()


def _new(kind: Callable[..., C], limits: httpx.Limits, base_url: str) -> C:
    """Use certificates of the environment, and its proxies except to this machine."""
    context = _context(base_url)
    try:
        return kind(verify=context, limits=limits, trust_env=not is_local(base_url))
    except Exception as error:  # noqa: BLE001 - of any kind; nothing was sent
        named, reason = _unusable_proxy(context) or (proxy_variable("no"), _reason(error))
        raise ConfigurationError(f"{named} cannot be used: {reason}. {_CORRECT}") from None


def _unusable_proxy(context: ssl.SSLContext) -> tuple[str, str] | None:
    """Return what names a proxy that httpx refuses, and why; None if it accepts each."""
    found = getproxies()
    for scheme in _PROXIED:
        if proxy := found.get(scheme):
            try:
                httpx.HTTPTransport(proxy=proxy if "://" in proxy else f"http://{proxy}", verify=context)
            except Exception as error:  # noqa: BLE001 - as above
                return proxy_variable(scheme), _reason(error)
    return None


def _reason(error: Exception) -> str:
    # The text about a URL may quote a part of its password.
    return "it has no valid address" if isinstance(error, httpx.InvalidURL) else f"{error}".rstrip(".")


class BoundedTransport(httpx.BaseTransport):
    """The transport of httpx, whose pool keeps deadlines: httpx passes no network backend on."""

    def __init__(self, context: ssl.SSLContext, limits: httpx.Limits) -> None:
        # With the first request: it takes long to import.
        import httpcore  # noqa: PLC0415

        backend: Any = BoundedBackend(httpcore.SyncBackend())
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=backend,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        import httpcore  # noqa: PLC0415 - as above

        url = request.url
        sent = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _errors_of_httpx():
            response = self._pool.handle_request(sent)
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response),
            extensions=response.extensions,
        )

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, response: "httpcore.Response") -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        with _errors_of_httpx():
            yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


@contextlib.contextmanager
def _errors_of_httpx() -> Iterator[None]:
    """Raise the exception of httpx that has the same name as one of httpcore, or of its successor."""
    try:
        yield
    except Exception as error:
        kind = type(error)
        if kind.__module__.partition(".")[0] not in ("httpcore", "httpcore2"):
            raise
        raise getattr(httpx, kind.__name__, httpx.TransportError)(str(error)) from error


def _new_sync(base_url: str) -> httpx.Client:
    """Return a client that keeps deadlines, unless the environment names proxies."""
    if _is_proxied(base_url):
        return _new(httpx.Client, _LIMITS, base_url)
    return httpx.Client(transport=BoundedTransport(_context(base_url), _LIMITS), trust_env=False)


class Http(BaseTransport):
    def __init__(self, base_url: str, given: HttpClient | None, transport: Transport | None) -> None:
        super().__init__(base_url, given, library_of(given, transport, is_async=False) or httpx)
        self.sleep: Callable[[float], None] = time.sleep
        self._given = given
        self._transport = transport
        self._pools: Pools[httpx.Client] = Pools(partial(_new_sync, base_url), httpx.Client.close)

    def send(self, request: PreparedRequest, call: CallSettings) -> RawResponse | AgentPayError:
        """Send a request once and return its reply, or the exception for a missing one.

        Raises ValueError if an argument is too long for a URL; nothing was sent.
        """
        started = self.monotonic()
        outcome: RawResponse | AgentPayError
        try:
            outcome = self._attempt(self._attempt_of(request, call))
        except AgentPayError as error:
            outcome = error
        self._log(request, outcome, started)
        return outcome

    def _attempt(self, attempt: TimedRequest) -> RawResponse | AgentPayError:
        self._check_usable(self._given, self._transport)
        if self._transport is not None:
            # Used without a client around it, which would add cookies, redirects and authentication.
            return self._exchange(self._transport.handle_request, attempt)
        if self._given is not None:
            return self._exchange(partial(self._given.send, **_SEND_OPTIONS), attempt)
        pool = self._pools.current()
        started = self.monotonic()
        if not pool.enter(attempt.timeout):
            return failures.no_connection(attempt.request, attempt.timeout)
        try:
            attempt = attempt._replace(waited=self.monotonic() - started)
            if attempt.is_too_late:
                return failures.no_connection(attempt.request, attempt.timeout)
            return self._exchange(partial(pool.client.send, **_SEND_OPTIONS), attempt)
        finally:
            pool.leave()

    def _exchange(
        self, sender: Callable[[Any], Response], attempt: TimedRequest
    ) -> RawResponse | AgentPayError:
        built = self._build(attempt)
        try:
            response = sender(built)
            try:
                body = body_of(response)
                for chunk in self._chunks(response, attempt):
                    body.feed(chunk)
                return RawResponse(response.status_code, response.headers, body.finish())
            except BodyError as problem:
                return failures.of_body(str(problem), attempt.request, response.status_code)
            finally:
                with contextlib.suppress(Exception):
                    response.close()
        except Exception as error:  # noqa: BLE001 - whichever library it is of, the request has left
            return self._failure(error, built, attempt)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            # Cancelled or interrupted. Clears frames of the HTTP library, which may hold the request and its
            # key.
            raise error.with_traceback(None)  # noqa: B904 - the same

    def _chunks(self, response: Response, attempt: TimedRequest) -> Iterator[bytes]:
        """Yield the body as it arrives. A complete response is accepted, however late."""
        # Not `iter_raw`, which also closes: an error while closing says nothing about a complete response.
        is_late = False
        for chunk in response.iter_bytes() if response.is_stream_consumed else response.stream:
            if is_late:
                raise TimeoutError
            yield chunk
            is_late = self._is_late(attempt)

    def pieces(
        self, request: PreparedRequest, call: CallSettings
    ) -> Generator[RawResponse | bytes, None, None]:
        """Send a request once; yield its response without the body, then the body as it arrives."""
        self._check_usable(self._given, self._transport)
        attempt = self._attempt_of(request, call)
        built = self._build(attempt)
        with contextlib.ExitStack() as opened:
            status: int | None = None
            try:
                response = self._opened(built, attempt, opened)
                opened.callback(response.close)
                status = response.status_code
                if status == _OK:
                    check_stream(request, response)
                    yield RawResponse(status, response.headers, b"")
                    yield from self._chunks(response, attempt)
                    return
                body = body_of(response)
                for chunk in self._chunks(response, attempt):
                    body.feed(chunk)
                refused = RawResponse(status, response.headers, body.finish())
            except AgentPayError:
                raise
            except BodyError as problem:
                raise failures.of_body(str(problem), request, status) from None
            except Exception as error:  # noqa: BLE001 - whichever library it is of
                raise self._failure(error, built, attempt) from None
        raise refusal_of(request, refused, self.now())

    def _opened(self, built: Any, attempt: TimedRequest, opened: contextlib.ExitStack) -> Response:  # noqa: ANN401
        if self._transport is not None:
            return self._transport.handle_request(built)
        if self._given is not None:
            return self._given.send(built, **_SEND_OPTIONS)
        pool = self._pools.current()
        if not pool.enter(attempt.timeout):
            raise failures.no_connection(attempt.request, attempt.timeout)
        opened.callback(pool.leave)
        return pool.client.send(built, **_SEND_OPTIONS)

    def renew(self) -> None:
        """Use new connections from now on: the existing ones mix up their responses."""
        self._pools.retire()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._pools.close()
        if self._transport is not None and not self._is_inherited:
            self._transport.close()


class AsyncHttp(BaseTransport):
    def __init__(
        self, base_url: str, given: AsyncHttpClient | None, transport: AsyncTransport | None
    ) -> None:
        # Imported here: it takes longer than all of this package, and the sync client does not need it.
        import anyio  # noqa: PLC0415

        from agentpay._http.async_pools import LANE_CONNECTIONS, AsyncPools  # noqa: PLC0415

        super().__init__(base_url, given, library_of(given, transport, is_async=True) or httpx)
        self.sleep: Callable[[float], Awaitable[None]] = anyio.sleep
        self._fail_after = anyio.fail_after
        self._given = given
        self._transport = transport
        limits = httpx.Limits(max_connections=LANE_CONNECTIONS, max_keepalive_connections=LANE_CONNECTIONS)
        self._pools: AsyncPools[httpx.AsyncClient] = AsyncPools(
            partial(_new, httpx.AsyncClient, limits, base_url), httpx.AsyncClient.aclose
        )

    async def send(self, request: PreparedRequest, call: CallSettings) -> RawResponse | AgentPayError:
        started = self.monotonic()
        outcome: RawResponse | AgentPayError
        try:
            outcome = await self._attempt(self._attempt_of(request, call))
        except AgentPayError as error:
            outcome = error
        self._log(request, outcome, started)
        return outcome

    async def _attempt(self, attempt: TimedRequest) -> RawResponse | AgentPayError:
        self._check_usable(self._given, self._transport)
        if self._transport is not None:
            return await self._exchange(self._transport.handle_async_request, attempt)
        if self._given is not None:
            return await self._exchange(partial(self._given.send, **_SEND_OPTIONS), attempt)
        pool = await self._pools.current()
        started = self.monotonic()
        lane = await pool.enter(attempt.timeout)
        if lane is None:
            return failures.no_connection(attempt.request, attempt.timeout)
        try:
            attempt = attempt._replace(waited=self.monotonic() - started)
            if attempt.is_too_late:
                return failures.no_connection(attempt.request, attempt.timeout)
            return await self._exchange(partial(lane.client.send, **_SEND_OPTIONS), attempt)
        finally:
            await pool.leave(lane)

    async def _exchange(
        self,
        sender: Callable[[Any], Awaitable[AsyncResponse]],
        attempt: TimedRequest,
    ) -> RawResponse | AgentPayError:
        built = self._build(attempt)
        try:
            with self._until(attempt):
                return await self._replied(sender, built, attempt)
        except Exception as error:  # noqa: BLE001 - whichever library it is of, the request has left
            return self._failure(error, built, attempt)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            raise error.with_traceback(None)  # noqa: B904 - the same

    async def _replied(
        self,
        sender: Callable[[Any], Awaitable[AsyncResponse]],
        built: Any,  # noqa: ANN401 - a request of the library in use
        attempt: TimedRequest,
    ) -> RawResponse | AgentPayError:
        response = await sender(built)
        try:
            body, is_late = body_of(response), False
            # As in `Http`.
            async for chunk in response.aiter_bytes() if response.is_stream_consumed else response.stream:
                if is_late:
                    raise TimeoutError
                body.feed(chunk)
                is_late = self._is_late(attempt)
            return RawResponse(response.status_code, response.headers, body.finish())
        except BodyError as problem:
            return failures.of_body(str(problem), attempt.request, response.status_code)
        finally:
            with contextlib.suppress(Exception):
                await response.aclose()

    def _until(self, attempt: TimedRequest) -> AbstractContextManager[object]:
        """Cancel the block, which then raises TimeoutError, when the call's deadline has passed."""
        if attempt.ends_at is None:
            return contextlib.nullcontext()
        return self._fail_after(max(self._left(attempt.ends_at), 0.0) + GRACE_SECONDS)

    async def _chunks(self, response: AsyncResponse, attempt: TimedRequest) -> AsyncIterator[bytes]:
        """Yield the body as it arrives: no cancel scope may contain a `yield`, so each read has its own."""
        chunks, is_late = aiter(response.stream), False
        while True:
            with self._until(attempt):
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
            if is_late:
                raise TimeoutError
            yield chunk
            is_late = self._is_late(attempt)

    async def pieces(
        self, request: PreparedRequest, call: CallSettings
    ) -> AsyncGenerator[RawResponse | bytes, None]:
        self._check_usable(self._given, self._transport)
        attempt = self._attempt_of(request, call)
        built = self._build(attempt)
        async with contextlib.AsyncExitStack() as opened:
            status: int | None = None
            try:
                with self._until(attempt):
                    response = await self._opened(built, attempt, opened)
                opened.push_async_callback(response.aclose)
                status = response.status_code
                if status == _OK:
                    check_stream(request, response)
                    yield RawResponse(status, response.headers, b"")
                    async for chunk in self._chunks(response, attempt):
                        yield chunk
                    return
                body = body_of(response)
                async for chunk in self._chunks(response, attempt):
                    body.feed(chunk)
                refused = RawResponse(status, response.headers, body.finish())
            except AgentPayError:
                raise
            except BodyError as problem:
                raise failures.of_body(str(problem), request, status) from None
            except Exception as error:  # noqa: BLE001 - whichever library it is of
                raise self._failure(error, built, attempt) from None
        raise refusal_of(request, refused, self.now())

    async def _opened(
        self,
        built: Any,  # noqa: ANN401 - a request of the library in use
        attempt: TimedRequest,
        opened: contextlib.AsyncExitStack,
    ) -> AsyncResponse:
        if self._transport is not None:
            return await self._transport.handle_async_request(built)
        if self._given is not None:
            return await self._given.send(built, **_SEND_OPTIONS)
        pool = await self._pools.current()
        lane = await pool.enter(attempt.timeout)
        if lane is None:
            raise failures.no_connection(attempt.request, attempt.timeout)
        opened.push_async_callback(pool.leave, lane)
        return await lane.client.send(built, **_SEND_OPTIONS)

    async def renew(self) -> None:
        await self._pools.retire()

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        await self._pools.close()
        if self._transport is not None and not self._is_inherited:
            await self._transport.aclose()
