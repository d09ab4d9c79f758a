"""Checks of a request from a socket, before the application sees it (interface R19).

The framing must be unambiguous: otherwise the port refuses the request as malformed HTTP. The target must be
a path or an absolute URL, and the host one that the port accepts: otherwise the request is marked, and the
application refuses it, with response, log line and metric like any other refusal. In-process requests skip
these checks.
"""

import re
from typing import Final
from urllib.parse import unquote

from starlette.types import Scope

from agentpay.contract.errors import ErrorCode, FieldError
from agentpay_server.http.hosts import Hosts, host_of
from agentpay_server.http.messages import REFUSED
from agentpay_server.platform.errors import Problem, invalid, quote

HEAD_MAX_BYTES: Final = 64 * 1024
"""Maximum size of the request line and all headers, of which one may repeat a seller's challenge."""

_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)([^?#]*)(?:\?([^#]*))?", re.IGNORECASE)
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_SAME_SITES: Final = frozenset({b"same-origin", b"none"})
"""Of requests by this server's pages and by the user."""

_OTHER_FORMS: Final = frozenset({"CONNECT", "OPTIONS"})
"""Methods whose target may be neither a path nor a URL (RFC 9112, 3.2.3 and 3.2.4)."""


def malformed() -> Problem:
    """A 400 for bytes that are not a request, or that two parsers could frame differently."""
    message = (
        f"must be well-formed HTTP/1.1 with one Host, at most {HEAD_MAX_BYTES} bytes of request line and "
        "headers, and a body framed by Content-Length or by Transfer-Encoding, not by both"
    )
    return invalid(FieldError(field="request", message=message))


def admit(scope: Scope, hosts: Hosts) -> bool:
    """Store a fault under `REFUSED`; replace an absolute target by its path.

    Returns whether the framing is unambiguous. If not, the start of the next request is unknown.
    """
    if not _is_framed(scope):
        return False
    try:
        authority = _authority(scope)
        _check_host(authority, hosts)
        _check_origin(scope, authority)
    except Problem as problem:
        scope[REFUSED] = problem
    return True


def _is_framed(scope: Scope) -> bool:
    """The parser has checked the rest: one Host, one length, one coding."""
    version, headers = scope["http_version"], scope["headers"]
    if len(_target(scope)) + sum(len(name) + len(value) + 4 for name, value in headers) > HEAD_MAX_BYTES:
        return False
    names = {name for name, _ in headers}
    if b"transfer-encoding" in names:
        # HTTP/1.0 has no Transfer-Encoding, so the end of such a body is unknown.
        return version == "1.1" and b"content-length" not in names
    return version in ("1.1", "1.0")


def _target(scope: Scope) -> bytes:
    raw_path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return raw_path + b"?" + query if query else raw_path


def _authority(scope: Scope) -> str | None:
    """Replace an absolute target by its path; return the requested host with its port."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), None)
    target = _target(scope)
    if target.startswith(b"/"):
        return host
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        authority, path, query = absolute.groups()
        _set_path(scope, path or b"/", query or b"")
        # An absolute target overrides the Host header (RFC 9112, 3.2.2).
        return str(authority.decode("latin-1"))
    if scope["method"] in _OTHER_FORMS:
        _set_path(scope, target, b"")
        return host
    raise invalid(FieldError(field="request", message="must be for a path or an absolute http URL"))


def _set_path(scope: Scope, raw_path: bytes, query: bytes) -> None:
    scope["raw_path"], scope["query_string"] = raw_path, query
    scope["path"] = unquote(raw_path.decode("ascii", "replace"))


def _check_host(authority: str | None, hosts: Hosts) -> None:
    """HTTP/1.0 without a host (None) is accepted: no browser sends it."""
    if authority is None:
        return
    host = host_of(authority)
    if host is None:
        raise invalid(FieldError(field="host", message="must be one host name or IP address"))
    if host not in hosts:
        raise Problem(
            ErrorCode.MISDIRECTED_REQUEST,
            f"This server does not accept requests for the host {quote(host)}. To accept them, start it with "
            f"--allowed-host {quote(host)}, or pass allowed_hosts to listen().",
            says_what_to_do=True,
        )


def _check_origin(scope: Scope, authority: str | None) -> None:
    """Refuse a write that a page of another origin sends.

    Browsers report the origin in Sec-Fetch-Site or in Origin; programs send neither.
    """
    if scope["method"] in _READS:
        return
    named = {name: value for name, value in scope["headers"] if name in (b"sec-fetch-site", b"origin")}
    site, origin = named.get(b"sec-fetch-site"), named.get(b"origin")
    if site is not None:
        is_allowed = site in _SAME_SITES
    else:
        is_allowed = origin is None or (
            authority is not None
            and origin.partition(b"://")[2].decode("latin-1").lower() == authority.lower()
        )
    if not is_allowed:
        raise Problem(
            ErrorCode.FORBIDDEN,
            "A page of another origin sent this request. Send it from a program, or from the console of this "
            "server.",
            says_what_to_do=True,
        )
