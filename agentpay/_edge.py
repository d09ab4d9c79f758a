"""What both edges to the network share: requests are built and failures named here, and nothing waits.

The HTTP library is given, since a client that the caller brings may be of httpx or of its successor.
"""

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

from agentpay import _exposure, _failures
from agentpay._given import AsyncHttpClient, AsyncResponse, HttpClient, Response
from agentpay._requests import PreparedRequest, Reply
from agentpay._settings import ApiKey, logger
from agentpay._version import __version__
from agentpay.contract.bodies import Body
from agentpay.contract.printable import printable
from agentpay.errors import AgentPayError, ConfigurationError

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
"""The largest body of an answer that is read, in bytes. A full page of the contract is far below."""

LEAST_LEFT: Final = 0.1
"""Part of the timeout that a wait for a connection must leave: with less, a request may well end in doubt."""

Headers: TypeAlias = MutableMapping[str, str]
"""Headers of the library in use."""

_URLS_KEPT: Final = 128


class Attempt(NamedTuple):
    """A request that is about to be sent.

    Attributes:
        request: what is sent.
        headers: the headers that every request has.
        timeout: seconds that each step may take, the wait for a connection included; None is without limit.
        waited: seconds that it waited for a connection.
    """

    request: PreparedRequest
    headers: Headers
    timeout: float | None
    waited: float = 0.0

    @property
    def is_too_late(self) -> bool:
        """Whether the wait has left too little of the timeout to send anything."""
        return self.timeout is not None and self.timeout - self.waited < self.timeout * LEAST_LEFT


class Edge:
    """What `Http` and `AsyncHttp` share: all that needs no waiting."""

    def __init__(
        self, base_url: str, given: HttpClient | AsyncHttpClient | None, library: ModuleType
    ) -> None:
        # A given client or transport takes requests of its own library alone.
        self._library: Any = library
        try:
            host = self._library.URL(base_url).netloc
        except self._library.InvalidURL:
            raise ConfigurationError("base_url must be an address such as https://api.example.com") from None
        self.closed = False
        # Time and chance of retries and polling: a simulation sets its own.
        self.now: Callable[[], float] = time.time
        self.monotonic: Callable[[], float] = time.monotonic
        self.random: Callable[[], float] = random.random
        self._base_url = base_url
        self._is_exposed = _exposure.is_exposed(base_url)
        self._has_hooks = given is not None
        self._first_process: int | None = None
        # The same few paths again and again: to take an address apart is most of what a request costs.
        self._url = lru_cache(maxsize=_URLS_KEPT)(lambda target: self._library.URL(base_url + target))
        # The defaults of a given client stay, where the contract does not decide.
        self._defaults = self._library.Headers(given.headers if given is not None else None)
        self._defaults.update(
            {
                "Host": host.decode("ascii"),
                "Accept": "application/json",
                # Bodies are small. One that is compressed all the same is decompressed with a limit.
                "Accept-Encoding": "identity",
                "Connection": "keep-alive",
                "User-Agent": f"agentpay-python/{__version__}",
            }
        )

    def headers(self, api_key: ApiKey) -> Headers:
        """Return the headers that every request under this key has. Their `repr` hides the key."""
        headers: Headers = self._defaults.copy()
        headers["Authorization"] = f"Bearer {api_key.reveal()}"
        return headers

    def warn_if_exposed(self) -> None:
        """Warn, once, before a key is sent where others can read it."""
        if self._is_exposed:
            _exposure.warn(self._base_url)
            self._is_exposed = False

    def _build(self, attempt: Attempt) -> Any:  # noqa: ANN401 - a request of the library in use
        # `httpx.Client.build_request` would merge URL, headers and cookies anew for every call.
        request, headers, timeout, waited = attempt
        library, content = self._library, request.content
        try:
            url = self._url(request.target)
        except library.InvalidURL:
            raise ValueError(f"an argument of {request.endpoint.name} is too long for an address") from None
        left = None if timeout is None else timeout - waited
        built = library.Request(
            request.endpoint.method,
            url,
            headers=headers,
            stream=library.ByteStream(content or b""),
            extensions={"timeout": {"connect": left, "read": left, "write": left, "pool": left}},
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

    @property
    def _is_inherited(self) -> bool:
        """Whether what was given may hold connections of the parent process."""
        return self._first_process not in (None, os.getpid())

    def _check_process(self) -> None:
        """Refuse a given client or transport that another process has used: it cannot be made anew."""
        if self._first_process is None:
            self._first_process = os.getpid()
        elif self._is_inherited:
            raise ConfigurationError(
                "http_client or transport was used before this process was forked, and would mix up the "
                "answers of both processes: make the client in each process"
            )

    def _failure(self, error: Exception, built: object, attempt: Attempt) -> AgentPayError:
        return _failures.of_exception(
            error,
            attempt.request,
            attempt.timeout,
            attempt.waited,
            secret=attempt.headers["Authorization"].removeprefix("Bearer "),
            is_of_request=not self._has_hooks or _is_about(error, built),
        )

    def _log(self, request: PreparedRequest, outcome: Reply | AgentPayError, started: float) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        milliseconds = (self.monotonic() - started) * 1000
        if isinstance(outcome, Reply):
            request_id = printable(outcome.headers.get("x-request-id", "-"))
            what = f"{outcome.status} in {milliseconds:.0f} ms (request {request_id})"
        else:
            what = f"{type(outcome).__name__} after {milliseconds:.0f} ms"
        with contextlib.suppress(
            Exception
        ):  # a log handler that fails must not hide what became of a payment
            logger.info("%s %s: %s", request.endpoint.method, request.target, what)


def _is_about(error: Exception, built: object) -> bool:
    try:
        return bool(error.request is built)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # httpx raises the latter where it has not said which
        return False


def body_of(response: Response | AsyncResponse) -> Body:
    # What an event hook has read already is decompressed.
    coding = "" if response.is_stream_consumed else response.headers.get("content-encoding", "")
    return Body(coding, limit=BODY_MAX_BYTES)
