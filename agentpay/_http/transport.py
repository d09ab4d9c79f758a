"""The I/O-free part of the sync and async network edges: building requests and describing failures.

The HTTP library is a parameter: a caller's client may be of httpx or of its successor.
"""

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from agentpay._calls.invalid import InvalidArgumentError
from agentpay._calls.options import CallSettings
from agentpay._calls.requests import PreparedRequest
from agentpay._calls.settings import ClientSettings, Steps, logger
from agentpay._http import failures, plaintext
from agentpay._http.deadlines import LEAST_SECONDS, StepsUntil
from agentpay._http.passed import (
    AsyncHttpClient,
    AsyncResponse,
    AsyncTransport,
    HttpClient,
    Response,
    Transport,
    class_names,
)
from agentpay._version import __version__
from agentpay.contract.bodies import Body
from agentpay.contract.printable import printable
from agentpay.contract.responses import RawResponse
from agentpay.errors import AgentPayError, ClosedClientError, ConfigurationError

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
"""The largest response body that is read, in bytes. A full page is far smaller."""

LEAST_LEFT: Final = 0.1
"""The part of the timeout that must remain after waiting for a connection, or the request is not sent."""

Headers: TypeAlias = MutableMapping[str, str]

_STREAM: Final = "text/event-stream"

_URLS_KEPT: Final = 128

_SHOWN: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "if-match",
        "user-agent",
    }
)
"""Header fields whose values may be logged: any other may be a secret."""


class TimedRequest(NamedTuple):
    """A request that is about to be sent.

    Attributes:
        timeout: seconds for each step, including the wait for a connection; None means no limit.
        ends_at: when all steps must be finished, on the monotonic clock; None means no limit.
        waited: seconds spent waiting for a connection.
        steps: seconds for each kind of step, where they differ; `timeout` is then for the wait.
    """

    request: PreparedRequest
    headers: Headers
    timeout: float | None
    ends_at: float | None = None
    waited: float = 0.0
    steps: Steps | None = None

    @property
    def is_too_late(self) -> bool:
        """Whether the wait has left too little of the timeout to send the request."""
        return self.timeout is not None and self.timeout - self.waited < self.timeout * LEAST_LEFT


class CallSpan(Protocol):
    """`headers` are added to the call's requests, such as trace context."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    def succeeded(self, model: object, reply: RawResponse) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class Observer(Protocol):
    """Observes each call of a client, for example for tracing. It must not raise or change a call."""

    def begin(self, request: PreparedRequest) -> CallSpan: ...


class BaseTransport:
    def __init__(
        self, base_url: str, given: HttpClient | AsyncHttpClient | None, library: ModuleType
    ) -> None:
        # A given client or transport accepts only requests of the same library.
        self._library: Any = library
        try:
            address = self._library.URL(base_url)
        except self._library.InvalidURL:
            raise ConfigurationError("base_url must be an address such as https://api.example.com") from None
        self.closed = False
        self.observer: Observer | None = None
        # Time and randomness of retries and polling; a simulation replaces them.
        self.now: Callable[[], float] = time.time
        self.monotonic: Callable[[], float] = time.monotonic
        self.random: Callable[[], float] = random.random
        self._base_url = base_url
        is_proxied = _is_proxied(given, address, self._library)
        self._is_exposed = plaintext.is_exposed(base_url, is_proxied=is_proxied)
        self._has_hooks = given is not None
        self._first_process: int | None = None
        # Parsing a URL is most of the cost of a request, and the same few paths recur.
        self._url = lru_cache(maxsize=_URLS_KEPT)(lambda target: self._library.URL(base_url + target))
        # The defaults of a given client apply where the interface does not decide.
        self._defaults = self._library.Headers(given.headers if given is not None else None)
        self._defaults.update(
            {
                "Host": address.netloc.decode("ascii"),
                "Accept": "application/json",
                # Bodies are small. Compressed ones are decompressed within a limit.
                "Accept-Encoding": "identity",
                "Connection": "keep-alive",
                "User-Agent": f"agentpay-python/{__version__}",
            }
        )

    def headers(self, settings: ClientSettings) -> Headers:
        """Their `repr` hides the key."""
        headers: Headers = self._defaults.copy()
        if settings.app_info:
            headers["User-Agent"] += f" {settings.app_info}"
        headers.update(settings.default_headers)
        headers["Authorization"] = f"Bearer {settings.api_key.reveal()}"
        return headers

    def _attempt_of(self, request: PreparedRequest, call: CallSettings) -> TimedRequest:
        steps = call.timeout if isinstance(call.timeout, Steps) else None
        timeout = call.timeout if not isinstance(call.timeout, Steps) else call.timeout.pool
        if call.ends_at is not None:
            left = max(self._left(call.ends_at), LEAST_SECONDS)
            timeout = left if timeout is None else min(timeout, left)
        return TimedRequest(request, call.headers, timeout, call.ends_at, steps=steps)

    def warn_if_exposed(self) -> None:
        if self._is_exposed:
            plaintext.warn(self._base_url)
            self._is_exposed = False

    def _build(self, attempt: TimedRequest) -> Any:  # noqa: ANN401 - a request of the library in use
        # `httpx.Client.build_request` would merge URL, headers and cookies again for every call.
        request, headers, timeout, ends_at, waited, each = attempt
        library, content = self._library, request.content
        try:
            url = self._url(request.target)
        except library.InvalidURL:
            raise InvalidArgumentError(
                f"an argument of {request.endpoint.name} is too long for a URL"
            ) from None
        left = None if timeout is None else timeout - waited
        steps = {"connect": left, "read": left, "write": left, "pool": left}
        if each is not None:
            steps |= each._asdict()
        built = library.Request(
            request.endpoint.method,
            url,
            headers=headers,
            stream=library.ByteStream(content or b""),
            extensions={
                "timeout": steps if ends_at is None else StepsUntil(steps, partial(self._left, ends_at))
            },
        )
        if content is not None:
            built.headers["Content-Type"] = "application/json"
            built.headers["Content-Length"] = str(len(content))
        if request.if_match is not None:
            built.headers["If-Match"] = request.if_match
        built.read()  # so that event hooks of a given client can read the content
        if logger.isEnabledFor(logging.DEBUG):
            shown = {name: value if name in _SHOWN else "[secure]" for name, value in built.headers.items()}
            logger.debug("sending %s %s %r", built.method, request.target, shown)
        return built

    def _left(self, ends_at: float) -> float:
        return ends_at - self.monotonic()

    def _is_late(self, attempt: TimedRequest) -> bool:
        return attempt.ends_at is not None and self.monotonic() >= attempt.ends_at

    @property
    def _is_inherited(self) -> bool:
        """Whether the given client or transport may hold connections of the parent process."""
        return self._first_process not in (None, os.getpid())

    def _check_usable(
        self, given: HttpClient | AsyncHttpClient | None, transport: Transport | AsyncTransport | None
    ) -> None:
        """Refuse a closed client, or one or a transport of another process: it cannot be recreated."""
        if self.closed or (given is not None and given.is_closed):
            raise ClosedClientError
        if given is None and transport is None:
            return
        if self._first_process is None:
            self._first_process = os.getpid()
        elif self._is_inherited:
            raise ConfigurationError(
                "http_client or transport was used before this process was forked, and would mix up the "
                "responses of both processes: create the client in each process"
            )

    def _failure(self, error: Exception, built: object, attempt: TimedRequest) -> AgentPayError:
        return failures.of_exception(
            error,
            attempt.request,
            attempt.timeout if attempt.steps is None else _step_of(error, attempt.steps),
            attempt.waited,
            secret=attempt.headers["Authorization"].removeprefix("Bearer "),
            is_of_request=not self._has_hooks or _is_about(error, built),
            is_past_deadline=self._is_late(attempt),
        )

    def _log(self, request: PreparedRequest, outcome: RawResponse | AgentPayError, started: float) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        milliseconds = (self.monotonic() - started) * 1000
        if isinstance(outcome, RawResponse):
            request_id = printable(outcome.headers.get("x-request-id", "-"))
            what = f"{outcome.status_code} in {milliseconds:.0f} ms (request {request_id})"
        else:
            what = f"{type(outcome).__name__} after {milliseconds:.0f} ms"
        with contextlib.suppress(Exception):  # a failing log handler must not hide the outcome of a payment
            logger.info("%s %s: %s", request.endpoint.method, request.target, what)


def _is_proxied(given: Any, address: object, library: Any) -> bool:  # noqa: ANN401 - of the library in use
    """Return whether a given client has a transport for an address that connects elsewhere, as a proxy."""
    choose = getattr(given, "_transport_for_url", None)
    chosen = None if choose is None else choose(address)
    # A mount of another kind is a stand-in of a test.
    connects = isinstance(chosen, (library.HTTPTransport, library.AsyncHTTPTransport))
    return connects and chosen is not given._transport  # noqa: SLF001 - httpx has no other way to ask


def _step_of(error: Exception, steps: Steps) -> float | None:
    """Return the seconds that the step was allowed to take that an error of the HTTP library ended."""
    names = class_names(error)
    return next((getattr(steps, name) for name in steps._fields if f"{name.title()}Timeout" in names), None)


def _is_about(error: Exception, built: object) -> bool:
    try:
        return bool(error.request is built)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # httpx raises RuntimeError for an exception without a request
        return False


def body_of(response: Response | AsyncResponse) -> Body:
    # If an event hook has read the response, its content is already decompressed.
    coding = "" if response.is_stream_consumed else response.headers.get("content-encoding", "")
    return Body(coding, limit=BODY_MAX_BYTES)


def check_stream(request: PreparedRequest, response: Response | AsyncResponse) -> None:
    """Refuse a success that is no readable stream of events, such as a page of a proxy."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    coding = response.headers.get("content-encoding", "").strip().lower()
    if kind != _STREAM or coding not in ("", "identity"):
        status = response.status_code
        raise failures.of_body(f"({status}) is not a readable stream of events", request, status)
