"""Fetching a page that a model named: no private address, no redirect, a bounded body.

The name is resolved here, and the connection goes to the checked address, so that a name which later resolves
differently reaches nothing. Proxies of the environment are not used, because they would resolve the name
themselves.
"""

import contextlib
import socket
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from attrs import frozen

from agentpay._http.clients import page_client
from agentpay._pay402.tool_messages import url_of
from agentpay.contract.addresses import is_public
from agentpay.contract.ext.payments import Site, site_of
from agentpay.contract.headers import is_header_name, is_header_value
from agentpay.contract.printable import printable

BODY_MAX_BYTES: Final = 256 * 1024
"""Maximum number of bytes read from a body, before and after decompression."""

CONNECT_SECONDS: Final = 10.0
_GZIP_BITS: Final = 31
_DECIDED: Final = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "host",
        "payment-authorization",
        "payment-signature",
        "proxy-authorization",
        "transfer-encoding",
        "upgrade",
        "x-payment",
    }
)
"""Header fields that a model must not set: they would redirect the request, or replace a payment."""
_CONFIGURED: Final = (
    "only whoever runs these tools can allow the origin, with --allow-private-origin. No other ref helps."
)


class FetchRefusedError(Exception):
    """The page was not fetched, and nothing was sent. The message says why.

    Attributes:
        next_step: what a model should do about it.
        may_retry: whether the same reference can help, at once or with corrected arguments.
    """

    def __init__(self, message: str, next_step: str, *, may_retry: bool = False) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.may_retry = may_retry


def _wrong(argument: str, message: str) -> FetchRefusedError:
    step = f"Correct {argument}, and call again with the same ref."
    return FetchRefusedError(message, step, may_retry=True)


class FetchFailedError(Exception):
    """No complete response arrived. The request may have been sent."""


@frozen(kw_only=True)
class Target:
    """The target of a request.

    Attributes:
        url: the whole URL.
        origin: normalized scheme, host and port.
        host: the host to resolve.
        port: the port.
        is_private_allowed: whether the configuration of the tools allows this origin to be private.
    """

    url: str
    origin: str
    host: str
    port: int
    is_private_allowed: bool

    def redirected(self, location: str, private_origins: Iterable[str]) -> "Target":
        """Return the target of a redirect, which must have the same origin.

        Raises:
            FetchRefusedError: the origin differs.
        """
        target = target_of(urljoin(self.url, location), private_origins)
        if target.origin != self.origin:
            raise FetchRefusedError(
                f"{self.origin} redirects to another origin, {printable(target.origin)[:200]}, which is not "
                "followed",
                "Fetch that other URL only if the user's task asks for it.",
            )
        return target


@frozen(kw_only=True)
class PageRequest:
    """A request for a page, with checked headers; `fetcher` is what sends it."""

    target: Target
    fetcher: Any = None
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    read_seconds: float = 20.0
    tool: str | None = None

    @property
    def sold_at(self) -> str:
        """The URL of what is bought: of a tool, that of its MCP server with the name of the tool."""
        return self.target.url if self.tool is None else url_of(self.target.url, self.tool)


@frozen(kw_only=True)
class FetchedPage:
    """A response, whatever its status.

    Attributes:
        status: HTTP status.
        headers: names in lower case, and values.
        body: at most the first `BODY_MAX_BYTES` of the body.
        is_truncated: whether the body was longer.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    is_truncated: bool

    @property
    def is_success(self) -> bool:
        """Whether the status says that the page was delivered."""
        return 200 <= self.status < 300

    def header(self, name: str) -> str | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key == name), None)


def origin_of(url: str) -> str:
    """Return normalized scheme, host and port of a URL.

    Raises:
        FetchRefusedError: it is not http or https, or has a user name.
    """
    return target_of(url, (), is_any=True).origin


def private_origin(text: str) -> str:
    """Return the normalized form of a configured origin; port `*` means any.

    Raises:
        ValueError: it is not an origin.
    """
    is_any_port = text.endswith(":*")
    try:
        origin = origin_of(text.removesuffix(":*"))
    except FetchRefusedError:
        raise ValueError(
            f"{text!r} is not an origin such as http://127.0.0.1:8000 or http://127.0.0.1:*"
        ) from None
    return f"{origin}:*" if is_any_port else origin


def target_of(url: str, private_origins: Iterable[str], *, is_any: bool = False) -> Target:
    """Return the target of a URL.

    Args:
        url: the URL.
        private_origins: origins that may be private and need no https; port `*` means any.
        is_any: whether every origin is one of them.

    Raises:
        FetchRefusedError: the URL is not https, or http where that is allowed.
    """
    site = _site(url)
    origin = site.origin
    is_private_allowed = is_any or not {origin, f"{site.portless}:*"}.isdisjoint(private_origins)
    if site.scheme != "https" and not is_private_allowed:
        raise FetchRefusedError(
            f"url must be https: a payment over http can be read on its way ({origin})",
            f"Use the https address of the page. If it has none, tell the user: {_CONFIGURED}",
        )
    return Target(
        url=url, origin=origin, host=site.host, port=site.port, is_private_allowed=is_private_allowed
    )


def _site(url: str) -> Site:
    with contextlib.suppress(ValueError):
        is_plain = url.isprintable() and "\\" not in url and " " not in url
        if is_plain and urlsplit(url).username is None:
            return site_of(url)
    raise _wrong(
        "url", "url must be an address such as https://api.example.com/forecast, without a user name"
    )


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers of a model's request.

    Raises:
        FetchRefusedError: a field is reserved for the tool, or cannot be sent.
    """
    for name, value in (headers or {}).items():
        if name.lower() in _DECIDED:
            message = f"headers must not set {printable(name)[:64]}, which the tool decides"
            raise _wrong("headers", message)
        if not (is_header_name(name) and is_header_value(value)):
            raise _wrong("headers", "headers must have names and printable ASCII values of HTTP headers")
    return dict(headers or {})


class Fetcher:
    """Fetches pages, synchronously."""

    def fetch(self, request: PageRequest) -> FetchedPage:
        """Return the response to a request.

        Raises:
            FetchRefusedError: the name resolves to a private address; nothing was sent.
            FetchFailedError: no response arrived.
        """
        from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - only this tool needs it

        # Only an event loop ends a request at a deadline: a blocking read is bounded, their number is not.
        with start_blocking_portal() as portal:
            return portal.call(AsyncFetcher().fetch, request)


class AsyncFetcher:
    """Fetches pages."""

    async def fetch(self, request: PageRequest) -> FetchedPage:
        """Return the response to a request.

        Raises:
            FetchRefusedError: the name resolves to a private address; nothing was sent.
            FetchFailedError: no response arrived.
        """
        import anyio.to_thread  # noqa: PLC0415 - only this tool needs it

        found = await anyio.to_thread.run_sync(addresses_of, request.target)
        address = allowed_address(found, request.target)
        response: Any = None
        body, is_whole = bytearray(), False
        try:
            # One deadline from connecting to the end of the body, however slowly each part arrives.
            with anyio.move_on_after(CONNECT_SECONDS + request.read_seconds):
                async with (
                    page_client(CONNECT_SECONDS, request.read_seconds) as client,
                    client.stream(**_sent(request, address)) as response,
                ):
                    async for chunk in response.aiter_raw():
                        body += chunk
                        if len(body) > BODY_MAX_BYTES:
                            break
                    else:
                        is_whole = True
        except Exception as error:  # noqa: BLE001 - of the HTTP library, whichever it is
            raise no_response(type(error).__name__, request.target) from None
        if response is None:
            raise no_response("TimeoutError", request.target)
        return _page(response, bytes(body[:BODY_MAX_BYTES]), is_truncated=not is_whole)


def addresses_of(target: Target) -> list[str]:
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise FetchRefusedError(
            f"the host of {printable(target.origin)[:200]} cannot be resolved",
            "Check the host in url, or call again later with the same ref.",
            may_retry=True,
        ) from None
    return [str(each[4][0]) for each in found]


def allowed_address(addresses: list[str], target: Target) -> str:
    """Return the address to connect to. All addresses of the name must be public.

    Raises:
        FetchRefusedError: an address is private.
    """
    if not addresses or (not target.is_private_allowed and not all(map(is_public, addresses))):
        raise FetchRefusedError(
            f"{printable(target.origin)[:200]} is a private address, which the configuration of these tools "
            "does not allow",
            f"Use a public address of the page. If it has none, tell the user: {_CONFIGURED}",
        )
    return addresses[0]


def _sent(request: PageRequest, address: str) -> dict[str, Any]:
    parts = urlsplit(request.target.url)
    literal = f"[{address}]" if ":" in address else address
    path = parts.path or "/"
    return {
        "method": request.method,
        # Connects to the checked address under the requested name.
        "url": f"{parts.scheme}://{literal}:{request.target.port}{path}"
        + (f"?{parts.query}" if parts.query else ""),
        "headers": {
            **request.headers,
            "Host": request.target.origin.partition("://")[2],
            "Accept-Encoding": "identity",
        },
        "content": request.body,
        "extensions": {"sni_hostname": request.target.host},
    }


def _page(response: Any, body: bytes, *, is_truncated: bool) -> FetchedPage:  # noqa: ANN401 - of either library
    headers = tuple((name.lower(), value) for name, value in response.headers.multi_items())
    if (response.headers.get("content-encoding") or "identity").lower() == "gzip":
        decompressor = zlib.decompressobj(_GZIP_BITS)
        with contextlib.suppress(zlib.error):
            body = decompressor.decompress(body, BODY_MAX_BYTES)
            is_truncated = is_truncated or bool(decompressor.unconsumed_tail)
    return FetchedPage(status=response.status_code, headers=headers, body=body, is_truncated=is_truncated)


def no_response(reason: str, target: Target) -> FetchFailedError:
    """Return the error for a request without a response; `reason` is the kind of failure alone."""
    # The text of an exception may contain the page's URL with a secret.
    return FetchFailedError(f"no response came from {target.origin} ({reason})")
