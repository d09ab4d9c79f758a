"""Posting an event to an endpoint: headers, one request, an answer or none, where it may go (D44, D46).

One httpx client is shared by all deliveries. Redirects are not followed. Where money is real the address that
a name resolves to is checked, and then that very address is connected to, so that resolving it a second time
cannot lead elsewhere.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx
from attrs import frozen

from agentpay._version import __version__
from agentpay.contract.signature_headers import NEXT_SIGNATURE_HEADER, SIGNATURE_HEADER
from agentpay.webhooks import WebhookSecrets, sign
from agentpay_server.domain.addresses import is_public
from agentpay_server.domain.deliveries import TIMEOUT_SECONDS

_ANSWER_MAX_BYTES: Final = 64 * 1024
_DRAIN_SECONDS: Final = 1.0
_CONNECTIONS: Final = 256


@frozen(kw_only=True)
class Answer:
    """What came of a post.

    Attributes:
        status_code: the HTTP status; None when there was no answer.
        error: what kept an answer from coming; None when there was one.
        duration_ms: how long it took.
    """

    status_code: int | None
    error: str | None
    duration_ms: int


def signed_headers(
    body: bytes,
    *,
    event_id: str,
    attempt: int,
    secret: WebhookSecrets,
    next_secret: WebhookSecrets | None = None,
) -> dict[str, str]:
    """Return the headers that an event is posted with (contract, "Authentication", 5; D44, D45).

    Args:
        body: what is posted.
        event_id: the event.
        attempt: number of the attempt, from 1.
        secret: signs the contract's header.
        next_secret: signs a second header while a rotation overlaps.
    """
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"agentpay-server/{__version__}",
        "X-Service-Event-Id": event_id,
        "X-Service-Delivery-Attempt": str(attempt),
        SIGNATURE_HEADER: sign(body, secret),
    }
    if next_secret is not None:
        headers[NEXT_SIGNATURE_HEADER] = sign(body, next_secret)
    return headers


class HttpPoster:
    """Posts over HTTP.

    Args:
        public_only: whether only https to public addresses is allowed.
        mounts: transports for receivers within the process, by URL prefix.
    """

    def __init__(
        self, *, public_only: bool, mounts: Mapping[str, httpx.AsyncBaseTransport] | None = None
    ) -> None:
        self._public_only = public_only
        self._mounts = dict(mounts or {})
        self._client: httpx.AsyncClient | None = None
        self._posts = 0

    def is_posting(self) -> bool:
        """Return whether a receiver has yet to answer."""
        return self._posts > 0

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Post `body` and return what came of it; nothing is raised for what a receiver does."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        status_code, error = None, None
        self._posts += 1
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer = await self._sent(url, headers, body)
            # The status line is the answer; what becomes of the rest changes nothing.
            status_code = answer.status_code
            await _drain(answer)
        except TimeoutError:
            error = f"no answer within {TIMEOUT_SECONDS:.0f} s"
        except _ForbiddenAddressError as refusal:
            error = str(refusal)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as failure:
            # The kind alone: the text may hold addresses of the operator's network. A name that DNS cannot
            # hold, such as one with a label of 64 characters, is a UnicodeError.
            error = f"no answer: {type(failure).__name__}"
        finally:
            self._posts -= 1
        return Answer(status_code=status_code, error=error, duration_ms=int((loop.time() - started) * 1000))

    async def close(self) -> None:
        """Let go of connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _sent(self, url: str, headers: Mapping[str, str], body: bytes) -> httpx.Response:
        """Return the answer to a post as soon as its head is there."""
        client = self._client
        if client is None:
            client = self._client = self._make_client()
        request = client.build_request("POST", url, headers=headers, content=body)
        if self._public_only:
            await _pin(request)
        return await client.send(request, stream=True)

    def _make_client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=_ssl_context(),
            follow_redirects=False,
            trust_env=False,
            timeout=TIMEOUT_SECONDS,
            # A pinned connection is known by its address alone: kept open, it would also serve another name
            # at that address, which its certificate never vouched for.
            limits=httpx.Limits(
                max_connections=_CONNECTIONS, max_keepalive_connections=0 if self._public_only else None
            ),
            # What one receiver sets is no business of the next.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            mounts=self._mounts,
        )


@cache
def _ssl_context() -> ssl.SSLContext:
    """Return the TLS context of all posters in this process: reading the CA file takes 20 ms or more."""
    return httpx.create_ssl_context(trust_env=False)


async def _drain(answer: httpx.Response) -> None:
    """Read the rest of an answer, so that its connection can be used again; not without end, never shown."""
    with contextlib.suppress(httpx.HTTPError, OSError, TimeoutError):
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                read = 0
                async for chunk in answer.aiter_raw():
                    read += len(chunk)
                    if read > _ANSWER_MAX_BYTES:
                        break
        finally:
            await answer.aclose()


class _ForbiddenAddressError(Exception):
    """The endpoint is not where an event may be posted to."""


async def _pin(request: httpx.Request) -> None:
    """Resolve the host of `request`, check every address, and direct the request to one of those.

    Raises:
        _ForbiddenAddressError: an address is not public, or the scheme is not https.
        OSError: the name does not resolve.
    """
    url = request.url
    if url.scheme != "https":
        raise _ForbiddenAddressError("refused: the endpoint is not https")
    found = await asyncio.get_running_loop().getaddrinfo(
        url.host, url.port or 443, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(is_public(address) for address in addresses):
        raise _ForbiddenAddressError("refused: the endpoint's name leads to an address that is not public")
    # The certificate is still that of the name: both the Host header and TLS keep it.
    request.extensions = {**request.extensions, "sni_hostname": url.host}
    request.url = url.copy_with(host=addresses[0])
