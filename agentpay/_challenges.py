"""Extracts the challenge of a seller's 402 from the response of any HTTP library.

Only header fields with a challenge are sent to the service, and the body only if it may be a challenge of
x402 version 1: cookies and pages stay with the caller. A URL is sent without its query, which may contain
secrets.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from attrs import frozen

from agentpay.contract.json_text import print_json
from agentpay.contract.payments import MAX_HEADERS

BODY_MAX_BYTES: Final = 32 * 1024
"""The largest body of a 402 that is read. A challenge is far smaller."""

HEADERS_MAX_CHARACTERS: Final = 32 * 1024

ENCODED_MAX_BYTES: Final = 56 * 1024
"""Leaves 8 KiB of a request to the service for other fields."""

URL_MAX_CHARACTERS: Final = 2_048

Pairs = Mapping[str, str] | Iterable[tuple[str, str]]

_PAYMENT: Final = re.compile(r"(?:^|,)[ \t]*payment[ \t]", re.IGNORECASE)
"""The scheme of MPP within `WWW-Authenticate`, which may list others."""

_NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE: Final = r'(?:"(?:[^"\\]|\\.)*"|[^\s,"=][^\s,"]*)'
_PARAMETER: Final = re.compile(rf"({_NAME})[ \t]*=[ \t]*({_VALUE})")
_LISTED: Final = re.compile(
    rf"[ \t,]*(?P<challenge>(?P<scheme>{_NAME})(?P<parameters>"
    rf"(?:[ \t,]+{_NAME}[ \t]*=[ \t]*{_VALUE})+|[ \t]+[A-Za-z0-9\-._~+/]+=*|))(?=[ \t]*(?:,|$))"
)
"""Some schemes have a token instead of parameters, as in `Negotiate YII=`."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class ChallengeTooLargeError(ValueError):
    """Nothing is paid: a challenge is larger than any payment needs."""


@frozen(kw_only=True)
class Challenge:
    """A seller's 402.

    `origin` is scheme, host and port; `url` has no query; `headers` are only the fields with challenges, and
    `body` only if it may be one.
    """

    origin: str
    url: str | None
    method: str | None
    headers: tuple[tuple[str, str], ...]
    body: str | None

    def __bool__(self) -> bool:
        return bool(self.headers) or self.body is not None


def challenge_of(
    response: object = None,
    *,
    origin: str | None = None,
    url: object = None,
    method: str | None = None,
    headers: Pairs | None = None,
    body: bytes | str | None = None,
) -> Challenge:
    """Return the challenge of a response of any library; explicit arguments take precedence over it.

    Responses have `url`, `headers` and `content`. `origin` is by default that of `url`. A body larger than
    `BODY_MAX_BYTES` is not a challenge.

    Raises:
        TypeError: an argument is missing or has a wrong type.
        ValueError: the response is not a 402, its challenge is too large, or the URL is not http or https.
    """
    if response is not None:
        status = getattr(response, "status_code", getattr(response, "status", 402))
        if status != 402:
            raise ValueError(f"the response is {status}, not 402: it asks for no payment")
        url = getattr(response, "url", None) if url is None else url
        method = _method_of(response) if method is None else method
        headers = getattr(response, "headers", None) if headers is None else headers
        body = _content_of(response) if body is None else body
    if (url is None and origin is None) or headers is None:
        raise TypeError(
            "pass response=, the 402 as your HTTP library returned it, or its url= and headers= (and body=)"
        )
    challenge = Challenge(
        origin=origin_of(str(url)) if origin is None else origin,
        url=None if url is None else _split_url(str(url))[1],
        method=method,
        headers=challenge_headers(headers),
        body=challenge_body(body),
    )
    # Escaped characters take up to six times their size.
    if len(print_json([challenge.url, challenge.headers, challenge.body])) > ENCODED_MAX_BYTES:
        raise ChallengeTooLargeError(
            f"the challenge is longer than {ENCODED_MAX_BYTES} bytes of JSON, which no payment needs"
        )
    return challenge


def origin_of(url: str) -> str:
    """Normalize scheme, host and port, without the final dot of a host."""
    return _split_url(url)[0]


@lru_cache(maxsize=128)
def _split_url(url: str) -> tuple[str, str | None]:
    """Return the origin, and the URL without secrets; None if it is too long."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise ValueError(f"url must be an address such as https://api.example.com, not {url[:64]!r}")
    if ":" in host:
        host = f"[{host}]"
    elif not host.isascii():
        host = host.encode("idna").decode("ascii")
    port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
    origin = f"{parts.scheme}://{host}{port}"
    shown = origin + parts.path
    return origin, shown if len(shown) <= URL_MAX_CHARACTERS else None


def challenge_headers(headers: Pairs) -> tuple[tuple[str, str], ...]:
    """Return the fields with challenges, unchanged."""
    given: Any = headers
    for name in ("multi_items", "items"):
        if callable(pairs := getattr(given, name, None)):
            given = pairs()
            break
    found = tuple((str(name), str(value)) for name, value in given if _holds_challenge(str(name), str(value)))
    if len(found) > MAX_HEADERS:
        raise ChallengeTooLargeError(
            f"the challenge has more than {MAX_HEADERS} header fields, which no payment needs"
        )
    if sum(len(value) for _, value in found) > HEADERS_MAX_CHARACTERS:
        raise ChallengeTooLargeError(
            f"the challenge is longer than {HEADERS_MAX_CHARACTERS} characters, which no payment needs"
        )
    return found


def _holds_challenge(name: str, value: str) -> bool:
    name = name.lower()
    return name == "payment-required" or (name == "www-authenticate" and _PAYMENT.search(value) is not None)


def beside_authorization(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the challenges whose payment is presented in another header than `Authorization`."""
    for name, value in headers:
        if name.lower() != "www-authenticate":
            yield name, value
        elif kept := _kept_of_list(value):
            yield name, kept


def _kept_of_list(field: str) -> str:
    """Keep what `beside_authorization` keeps; nothing if it is not a list of challenges."""
    kept, position = [], 0
    while listed := _LISTED.match(field, position):
        position = listed.end()
        parameters = _PARAMETER.findall(listed["parameters"])
        # A value with escapes is not unescaped: its challenge is left out.
        into = [value.strip('"').lower() for parameter, value in parameters if parameter.lower() == "header"]
        if listed["scheme"].lower() == "payment" and into == ["payment-authorization"]:
            kept.append(listed["challenge"])
    return "" if field[position:].strip(" \t,") else ", ".join(kept)


def challenge_body(body: bytes | str | None) -> str | None:
    """Return a body that may be a challenge of x402 version 1."""
    if not body:
        return None
    content = body.encode("utf-8", "replace") if isinstance(body, str) else bytes(body)
    if len(content) > BODY_MAX_BYTES or content.lstrip()[:1] != b"{" or b"x402Version" not in content:
        return None
    if b"\0" in content:  # It is not JSON, and the service refuses such text.
        return None
    return content.decode("utf-8", "replace")


def _method_of(response: object) -> str | None:
    try:
        method = getattr(getattr(response, "request", response), "method", None)
    except RuntimeError:  # httpx raises this for a response without a request.
        return None
    return method if isinstance(method, str) else None


def _content_of(response: object) -> bytes | None:
    for name in ("content", "data"):
        try:
            content = getattr(response, name, None)
        except RuntimeError:  # httpx raises this for a streaming response.
            raise TypeError("the response was not read: call response.read() first, or pass body=") from None
        if isinstance(content, bytes):
            return content
    return None
