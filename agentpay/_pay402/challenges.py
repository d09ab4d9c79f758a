"""Extracts the challenge of a seller's 402 from the response of any HTTP library.

Only header fields with a challenge are sent to the service, and the body only if it may be a challenge of
x402 version 1: cookies and pages stay with the caller. A URL is sent without its query, which may contain
secrets.
"""

import base64
import binascii
import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

from attrs import frozen

from agentpay._calls.invalid import InvalidArgumentError
from agentpay.contract.ext.payments import MAX_HEADERS, parse_url, site_of
from agentpay.contract.json_text import print_json
from agentpay.contract.printable import without_hidden

BODY_MAX_BYTES: Final = 32 * 1024
"""The largest body of a 402 that is read. A challenge is far smaller."""

HEADERS_MAX_CHARACTERS: Final = 32 * 1024

ENCODED_MAX_BYTES: Final = 56 * 1024
"""Leaves 8 KiB of a request to the service for other fields."""

Pairs = Mapping[str, str] | Iterable[tuple[str, str]]

_PAYMENT: Final = re.compile(r"(?:^|,)[ \t]*payment[ \t]", re.IGNORECASE)
"""The scheme of MPP within `WWW-Authenticate`, which may list others."""

_NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE: Final = r'(?:"(?:[^"\\]|\\.)*"|[^\s,"=][^\s,"]*)'
_PARAMETER: Final = re.compile(rf"({_NAME})[ \t]*=[ \t]*({_VALUE})")
_LISTED: Final = re.compile(
    rf"[ \t,]*(?P<challenge>(?P<scheme>{_NAME})(?P<parameters>"
    rf"(?:[ \t,]+{_NAME}[ \t]*=[ \t]*{_VALUE})+|(?P<token>[ \t]+[A-Za-z0-9\-._~+/]+=*)|))(?=[ \t]*(?:,|$))"
)
"""Some schemes have a token instead of parameters, as in `Negotiate YII=`."""

_AS_IT_IS: Final = "%!#$%&'()*+,/:;=@[]~"
"""What a path keeps; everything else but letters, digits and `_.-` is percent-encoded."""

KEY_MAX_CHARACTERS: Final = 128

REASON_MAX_CHARACTERS: Final = 500

_CODES: Final = ("error", "errorReason")
_SENTENCES: Final = ("errorMessage", "detail", "message", "title")
"""Where x402, MPP (RFC 9457) and plain APIs put the reason of a refusal, the most specific first."""

_RECEIPT_FIELDS: Final = ("payment-response", "payment-receipt", "x-payment-response")
"""Header fields in which a seller sends its receipt."""

_RECEIPT_MAX_CHARACTERS: Final = 4_096

NO_RESPONSE: Final = 504
"""Reported as the seller's status if it did not respond to a voucher."""


def receipt_in(headers: Iterable[tuple[str, str]]) -> str | None:
    """Return the receipt among the header fields of a seller's response; None without one."""
    found = next((value for name, value in headers if name.lower() in _RECEIPT_FIELDS), None)
    return None if found is None else found[:_RECEIPT_MAX_CHARACTERS]


def sells_by_session(headers: Iterable[tuple[str, str]]) -> bool:
    """Return whether the header fields of a 402 may offer a session."""
    return any(name.lower() == "www-authenticate" and "session" in value for name, value in headers)


class ChallengeTooLargeError(ValueError):
    """Nothing is paid: every challenge is larger than any payment needs."""


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
    `BODY_MAX_BYTES` is not a challenge. Of several challenges, the ones that are too large are left out.

    Raises:
        TypeError: an argument is missing or has a wrong type.
        ValueError: the response is not a 402, its challenges are too large, or the URL is not http or https.
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
    return _fitting(
        origin=origin_of(str(url)) if origin is None else origin,
        url=None if url is None else url_sent(str(url)),
        method=method,
        headers=challenge_headers(headers),
        body=challenge_body(body),
    )


def _fitting(
    *,
    origin: str,
    url: str | None,
    method: str | None,
    headers: tuple[tuple[str, str], ...],
    body: str | None,
) -> Challenge:
    """Return a challenge without what is too large to be sent: the service reads each field alone."""
    characters, size = HEADERS_MAX_CHARACTERS, ENCODED_MAX_BYTES - len(print_json(url))
    kept: list[tuple[str, str]] = []
    for name, value in headers:
        # Escaped characters take up to six times their size.
        encoded = len(print_json([name, value]))
        if len(value) <= characters and encoded <= size and len(kept) < MAX_HEADERS:
            kept.append((name, value))
            characters, size = characters - len(value), size - encoded
    content = None if body is None or len(print_json(body)) > size else body
    if not kept and content is None and (headers or body is not None):
        raise ChallengeTooLargeError(
            f"the challenge is longer than {HEADERS_MAX_CHARACTERS} characters, or than {ENCODED_MAX_BYTES} "
            "bytes of JSON, which no payment needs"
        )
    return Challenge(origin=origin, url=url, method=method, headers=tuple(kept), body=content)


def origin_of(url: str) -> str:
    """Normalize scheme, host and port, without the final dot of a host."""
    return _split_url(url)[0]


def url_sent(url: str) -> str | None:
    """Return a URL as the service is told it: without secrets; None if the service would not accept it."""
    return _split_url(url)[1]


@lru_cache(maxsize=128)
def _split_url(url: str) -> tuple[str, str | None]:
    """Return the origin, and the URL without secrets; None if the service would not accept it."""
    try:
        origin = site_of(url).origin
    except ValueError:
        message = f"url must be an address such as https://api.example.com, not {url[:64]!r}"
        raise ValueError(message) from None
    try:
        return origin, parse_url(origin + quote(urlsplit(url).path, safe=_AS_IT_IS))
    except ValueError:
        return origin, None


def challenge_headers(headers: Pairs) -> tuple[tuple[str, str], ...]:
    """Return the fields with challenges, unchanged."""
    given: Any = headers
    for name in ("multi_items", "items"):
        if callable(pairs := getattr(given, name, None)):
            given = pairs()
            break
    return tuple((str(name), str(value)) for name, value in given if _holds_challenge(str(name), str(value)))


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
        # In a token there are none, and a search would take quadratic time.
        parameters = [] if listed["token"] else _PARAMETER.findall(listed["parameters"])
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
    content = content.removeprefix(codecs.BOM_UTF8)  # Some servers begin a document with it.
    if len(content) > BODY_MAX_BYTES or content.lstrip()[:1] != b"{" or b"x402Version" not in content:
        return None
    if b"\0" in content:  # It is not JSON, and the service refuses such text.
        return None
    return content.decode("utf-8", "replace")


def payment_key(extensions: Mapping[str, Any]) -> str | None:
    """Return the key that the caller gave a request of httpx; None if no key was given.

    A falsy key is refused and not replaced by a random one, under which each attempt would be a new purchase.

    Raises:
        InvalidRequestError: it is not a string of 1 to 128 characters.
    """
    if "payment_key" not in extensions:
        return None
    key = extensions["payment_key"]
    advice = "pass the key of this purchase, or leave payment_key out for a random one"
    if not isinstance(key, str):
        raise InvalidArgumentError(f"payment_key must be a string, not {type(key).__name__}: {advice}")
    if not 1 <= len(key) <= KEY_MAX_CHARACTERS:
        raise InvalidArgumentError(f"payment_key must have 1 to 128 characters, not {len(key)}: {advice}")
    return key


def refusal_reason(headers: Iterable[tuple[str, str]], body: bytes | None) -> str | None:
    """Return the reason of a seller's 402 in the seller's words, on one line; None without one.

    x402 version 2 has it in the `PAYMENT-REQUIRED` header, or after a failed settlement in the
    `PAYMENT-RESPONSE` header; MPP and x402 version 1 have it in the body.
    """
    sent = {name.lower(): value for name, value in headers}
    fields = [_decoded(sent.get(name, "")) for name in ("payment-required", "payment-response")]
    given: dict[str, Any] = {}
    for content in (*fields, (body or b"")[:BODY_MAX_BYTES]):
        given = {**_object_of(content), **given}
    found = [_first_text(given, names) for names in (_CODES, _SENTENCES)]
    return ": ".join(dict.fromkeys(filter(None, found)))[:REASON_MAX_CHARACTERS] or None


def _decoded(value: str) -> bytes:
    try:
        text = value[:HEADERS_MAX_CHARACTERS].strip().rstrip("=").replace("-", "+").replace("_", "/")
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (ValueError, binascii.Error):
        return b""


def _object_of(content: bytes) -> dict[str, Any]:
    """Return a JSON object, with the fields of an object `error` within; empty if it is none."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    error = value.get("error")
    return {**value, **error} if isinstance(error, dict) else value


def _first_text(given: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first text that is not blank, on one line."""
    found = (given.get(name) for name in names)
    text = next((each for each in found if isinstance(each, str) and each.strip()), "")
    return " ".join(without_hidden(text[: 2 * REASON_MAX_CHARACTERS]).split())


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
