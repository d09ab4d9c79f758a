"""Posts events to endpoints: requests, results, and allowed addresses (interface W4, W5, W8, W9).

Redirects are not followed. `LookUps` resolves each name once, and the connection goes to the resolved
address. So the checked address (if money is real) is the one connected to, and no name is resolved on the
event loop's own threads.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final
from weakref import WeakValueDictionary

import httpx
from attrs import frozen

from agentpay.contract.addresses import is_public
from agentpay.contract.printable import printable
from agentpay_server.ledger.deliveries import TIMEOUT_SECONDS

# --- DNS look-ups, on dedicated threads, with a limit for each operator
#
# The system's resolver blocks, for half a minute if a name server does not respond, and cannot be cancelled.
# The event loop's own threads resolve the names of the chain and the database, so they do not resolve names
# that customers chose. A look-up occupies its slot until its thread ends, even if its caller has timed out.

LookUp = Callable[[str, int], list[str]]
"""Returns the IP addresses of a host and port, best first, or raises `OSError`."""

LOOK_UPS_AT_ONCE: Final = 64

LOOK_UPS_OF_ONE_OPERATOR: Final = 4
"""Maximum number for one operator, so that its slow name servers delay only its own deliveries."""


def system_look_up(host: str, port: int) -> list[str]:
    """Raises OSError if the name does not resolve, UnicodeError if DNS cannot hold it."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class LookUps:
    """`look_up` may block. An instance belongs to one event loop."""

    def __init__(self, look_up: LookUp = system_look_up) -> None:
        self._look_up = look_up
        self._places = asyncio.Semaphore(LOOK_UPS_AT_ONCE)
        # Waiting and running look-ups hold the references.
        self._places_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def addresses(self, host: str, port: int, *, operator_id: str) -> list[str]:
        """Return the addresses of an ASCII name, best first. Raises as `system_look_up` does."""
        own = self._places_of.get(operator_id)
        if own is None:
            own = self._places_of[operator_id] = asyncio.Semaphore(LOOK_UPS_OF_ONE_OPERATOR)
        await own.acquire()
        try:
            await self._places.acquire()
        except BaseException:
            own.release()
            raise
        found: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

        def end(addresses: list[str], error: BaseException | None) -> None:
            self._places.release()
            own.release()
            if found.done():
                return
            if error is None:
                found.set_result(addresses)
            else:
                found.set_exception(error)

        try:
            self._start(host, port, end)
        except RuntimeError:
            end([], OSError("the system cannot start a thread for the DNS lookup"))
        return await found

    def _start(self, host: str, port: int, end: Callable[[list[str], BaseException | None], None]) -> None:
        """Resolve a name on a new thread, then call `end` on the event loop.

        The thread is a daemon; at exit, the process would wait for the threads of a pool.
        """
        loop = asyncio.get_running_loop()

        def run() -> None:
            addresses: list[str] = []
            failure: BaseException | None = None
            try:
                addresses = self._look_up(host, port)
            except BaseException as error:  # noqa: BLE001 - raised again where the look-up is awaited
                failure = error
            with suppress(RuntimeError):  # The loop is closed, so no caller waits.
                loop.call_soon_threadsafe(end, addresses, failure)

        threading.Thread(target=run, name="agentpay-look-up", daemon=True).start()


_RESPONSE_MAX_BYTES: Final = 64 * 1024
EXCERPT_BYTES: Final = 1024
"""Bytes of a response that are kept for the operator."""

_DRAIN_SECONDS: Final = 1.0
_CONNECTIONS: Final = 256
_ADDRESSES_MAX: Final = 4


@frozen(kw_only=True)
class PostResult:
    """`error` is why no response arrived, so that `status_code` is None.

    `excerpt` is the start of the body as text that is safe to print; None for an empty one.
    """

    status_code: int | None
    error: str | None
    duration_ms: int
    excerpt: str | None = None


class HttpPoster:
    """Posts over HTTP.

    With `public_only`, only https to public addresses. `mounts` are transports for receivers within the
    process, by URL prefix, at most one. `authority` is the file of a certificate authority to trust in
    addition.

    Attributes:
        has_port: whether other processes can reach the server.
    """

    def __init__(
        self,
        *,
        public_only: bool,
        mounts: Mapping[str, httpx.AsyncBaseTransport] | None = None,
        authority: str | None = None,
        look_ups: LookUps | None = None,
    ) -> None:
        self._public_only = public_only
        self._mounts = dict(mounts or {})
        self._authority = authority
        self._within = frozenset(httpx.URL(prefix).raw_host for prefix in self._mounts)
        self._look_ups = look_ups or LookUps()
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._posts = 0
        self.has_port: bool = False

    def is_posting(self) -> bool:
        return self._posts > 0

    @property
    def held(self) -> str:
        """The URLs whose first attempts wait for a manual clock too, as a pattern for LIKE.

        Receivers within the process, unless the server has a port: it then serves real time, as its retries
        do not.
        """
        return "" if self.has_port else next((f"{prefix}%" for prefix in self._mounts), "")

    def is_held(self, url: str) -> bool:
        """Whether `url` is like `held`."""
        return bool(self.held) and url.startswith(self.held.removesuffix("%"))

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, operator_id: str = ""
    ) -> PostResult:
        """A receiver cannot cause an exception. The look-up limit of `operator_id` applies."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        status_code, error, start = None, None, b""
        self._posts += 1
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                response = await self._sent(url, headers, body, operator_id)
            # The status decides; an error while reading the body does not change the result.
            status_code = response.status_code
            start = await _drained(response)
        except TimeoutError:
            error = f"no answer within {TIMEOUT_SECONDS:.0f} s"
        except _ForbiddenAddressError as refusal:
            error = str(refusal)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as failure:
            error = no_response(failure)
        finally:
            self._posts -= 1
        return PostResult(
            status_code=status_code,
            error=error,
            duration_ms=int((loop.time() - started) * 1000),
            excerpt=_text(start),
        )

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def _sent(
        self, url: str, headers: Mapping[str, str], body: bytes, operator_id: str
    ) -> httpx.Response:
        """Return the response as soon as its headers have arrived.

        Raises `_ForbiddenAddressError` if an address is not public, or the scheme is not https.
        """
        target = httpx.URL(url)
        if self._public_only and target.scheme != "https":
            raise _ForbiddenAddressError("refused: the endpoint is not https")
        client = self._clients.get(target.scheme)
        if client is None:
            try:
                client = self._clients[target.scheme] = self._make_client(target.scheme)
            except OSError:
                raise _ForbiddenAddressError(
                    "refused: the file that SSL_CERT_FILE or --webhook-ca names cannot be read"
                ) from None
        request = client.build_request("POST", target, headers=headers, content=body)
        if target.raw_host in self._within and not self._public_only:
            return await client.send(request, stream=True)
        addresses = await self._addresses(target, operator_id)
        if self._public_only and not (addresses and all(is_public(address) for address in addresses)):
            raise _ForbiddenAddressError(
                "refused: the endpoint's name resolves to an address that is not public"
            )
        if not addresses:
            raise OSError("the name has no address")
        *others, last = addresses[:_ADDRESSES_MAX]
        for address in others:
            # Without a connection nothing was sent, so the next address can be tried.
            with contextlib.suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await client.send(_pinned(request, target, address, len(addresses)), stream=True)
        return await client.send(_pinned(request, target, last, 1), stream=True)

    async def _addresses(self, target: httpx.URL, operator_id: str) -> list[str]:
        # Not `host`, which httpx decodes: Python would re-encode some punycode names to other names.
        host = target.raw_host.decode("ascii")
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        port = target.port or (443 if target.scheme == "https" else 80)
        return await self._look_ups.addresses(host, port, operator_id=operator_id)

    def _make_client(self, scheme: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=_ssl_context(self._authority, os.environ.get("SSL_CERT_FILE")),
            follow_redirects=False,
            trust_env=False,
            timeout=TIMEOUT_SECONDS,
            # Connections are pooled by address. A kept-alive one would also serve another name at that
            # address, whose certificate was never checked.
            limits=httpx.Limits(
                max_connections=_CONNECTIONS, max_keepalive_connections=0 if scheme == "https" else None
            ),
            # Do not send one receiver's cookies to another.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            mounts=self._mounts,
        )


@cache
def _ssl_context(authority: str | None, trusted: str | None) -> ssl.SSLContext:
    """Shared in this process: loading the CA file takes 20 ms or more.

    Args:
        authority: the file of an authority to trust in addition.
        trusted: the file of those to trust instead of the usual ones; None or empty for them.

    Raises:
        OSError: a file cannot be read, or is not PEM.
    """
    if trusted:
        context = ssl.create_default_context(cafile=trusted)
    else:
        context = httpx.create_ssl_context(trust_env=False)
    if authority is not None:
        context.load_verify_locations(cafile=authority)
    return context


async def _drained(response: httpx.Response) -> bytes:
    """Read the rest, up to a limit, so that the connection can be reused; return the start."""
    start = b""
    with contextlib.suppress(Exception):
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                read = 0
                async for chunk in response.aiter_raw():
                    read += len(chunk)
                    start += chunk[: EXCERPT_BYTES - len(start)]
                    if read > _RESPONSE_MAX_BYTES:
                        break
        finally:
            await response.aclose()
    return b"" if "content-encoding" in response.headers else start


def _text(start: bytes) -> str | None:
    """Remove control characters, except for line breaks."""
    lines = start.decode("utf-8", "replace").split("\n")
    return "\n".join(printable(line) for line in lines) or None


class _ForbiddenAddressError(Exception): ...


def _pinned(request: httpx.Request, target: httpx.URL, address: str, addresses: int) -> httpx.Request:
    """Connect to one of the host's addresses; the Host header and TLS keep the name."""
    pinned = httpx.Request(
        request.method, target.copy_with(host=address), headers=request.headers, content=request.content
    )
    connect = TIMEOUT_SECONDS / min(addresses, _ADDRESSES_MAX)
    timeout = {**request.extensions["timeout"], "connect": connect}
    pinned.extensions = {
        **request.extensions,
        "sni_hostname": target.raw_host.decode("ascii"),
        "timeout": timeout,
    }
    return pinned


def no_response(failure: BaseException) -> str:
    """Name only the type: the text may contain addresses of the operator's network.

    A fault of TLS is named in OpenSSL's words, which name no more than the endpoint's host.
    """
    cause: BaseException | None = failure if isinstance(failure, httpx.ConnectError) else None
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"no answer: TLS certificate not accepted: {cause.verify_message.rstrip('.')}"
    if cause is not None:
        reason = (cause.reason or "connection closed").replace("_", " ").lower()
        return f"no answer: TLS handshake failed ({reason}), perhaps because the port does not speak TLS"
    return f"no answer: {type(failure).__name__}"
