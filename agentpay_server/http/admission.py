"""Admission: of a request from a socket (interface R19), and of as many as a key or operator may have.

Checks of a socket run before the application sees the request. The framing must be unambiguous: otherwise
the port refuses the request as malformed HTTP. The target must be a path or an absolute URL, and the host
one that the port accepts: otherwise the request is marked, and the application refuses it, with response,
log line and metric like any other refusal. In-process requests skip these checks.

A request takes a place of work when its work begins, not while its body arrives, so slow bodies delay no
work. Agent keys leave a quarter of their operator's places to its operator keys, which can therefore always
pause or revoke them. Slow bodies are bounded for each key. A connection that waits for a body gives way to
new connections (`port.py`), so they cannot exclude others either.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final
from urllib.parse import unquote

from starlette.types import Scope

from agentpay.contract.errors import ErrorCode, FieldError
from agentpay_server.http.hosts import Hosts, host_of
from agentpay_server.http.requests import REFUSED
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.platform.clock import SECOND_US, Clock
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem, invalid, quote
from agentpay_server.platform.principals import Principal

HEAD_MAX_BYTES: Final = 64 * 1024
"""Maximum size of the request line and all headers, of which one may repeat a seller's challenge."""

_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)([^?#]*)(?:\?([^#]*))?", re.IGNORECASE)
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_SAME_SITES: Final = frozenset({b"same-origin", b"none"})
"""Of requests by this server's pages and by the user."""

_OTHER_FORMS: Final = frozenset({"CONNECT", "OPTIONS"})
"""Methods whose target may be neither a path nor a URL (RFC 9112, 3.2.3 and 3.2.4)."""

_MINUTE_US = 60 * SECOND_US
_KEPT_MAX = 10_000


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


class RateLimit:
    """Allows each key `per_minute` requests at once, and as many more each minute.

    The state of a key is the time at which its bucket is full again (generic cell rate algorithm).
    """

    def __init__(self, clock: Clock, per_minute: int) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._full_at_us: dict[str, int] = {}
        self._kept_max = _KEPT_MAX

    def capture(self) -> Restore:
        return captured(self, "_full_at_us")

    def take(self, key_id: str) -> None:
        """Count a request; `rate_limited` names the time until the next one is allowed."""
        now_us = self._clock.now_us()
        cost_us = _MINUTE_US // self._per_minute
        full_at_us = max(self._full_at_us.get(key_id, 0), now_us) + cost_us
        wait_us = full_at_us - now_us - cost_us * self._per_minute
        if wait_us > 0:
            raise Problem(
                ErrorCode.RATE_LIMITED,
                f"The limit is {self._per_minute} requests per minute and key.",
                retry_after_seconds=math.ceil(wait_us / SECOND_US),
            )
        self._full_at_us[key_id] = full_at_us
        if len(self._full_at_us) > self._kept_max:
            # Addresses without a key are unbounded. Dropping full buckets has no effect.
            self._full_at_us = {name: full for name, full in self._full_at_us.items() if full > now_us}
            self._kept_max = max(2 * len(self._full_at_us), _KEPT_MAX)


class Places:
    """`share` is how many requests of one operator may be worked on; None for requests in process."""

    def __init__(self) -> None:
        self._bodies: Counter[str] = Counter()
        self._work: Counter[str] = Counter()
        self._work_of_agents: Counter[str] = Counter()

    def for_body(self, principal: Principal, share: int | None) -> AbstractContextManager[None]:
        """Count a body that is awaited.

        Raises:
            Problem: `rate_limited` if the key awaits half as many bodies as its operator has places.
        """
        if share is None:
            return nullcontext()
        problem = "This key has {} requests whose body is incomplete, which is the limit."
        return _counted((self._bodies, principal.key_id, max(share // 2, 1), problem))

    def for_work(self, principal: Principal, share: int | None) -> AbstractContextManager[None]:
        """Count a request that is worked on.

        Raises:
            Problem: `rate_limited` if no place is left for keys of this kind.
        """
        if share is None:
            return nullcontext()
        problem = "This operator has {} requests in progress, which is the limit."
        of_all = self._work, principal.operator_id, share, problem
        if not principal.is_agent:
            return _counted(of_all)
        problem = "This operator's agent keys have {} requests in progress, the limit."
        return _counted(
            (self._work_of_agents, principal.operator_id, max(share * 3 // 4, 1), problem), of_all
        )


@contextmanager
def _counted(*wanted: tuple[Counter[str], str, int, str]) -> Iterator[None]:
    for counts, name, limit, problem in wanted:
        if counts[name] >= limit:
            raise Problem(
                ErrorCode.RATE_LIMITED,
                f"{problem.format(limit)} Retry when one of them has ended.",
                says_what_to_do=True,
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
    for counts, name, *_ in wanted:
        counts[name] += 1
    try:
        yield
    finally:
        for counts, name, *_ in wanted:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
