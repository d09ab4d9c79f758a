"""HTTP clients and transports passed by the caller: which are accepted, and the library of each.

httpx and its successor httpx2 are distinguished by class names, so that neither imports the other.
"""

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, Protocol

from agentpay.errors import ConfigurationError

LIBRARIES: Final = ("httpx", "httpx2")


class _Response(Protocol):
    status_code: int
    is_stream_consumed: bool

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def stream(self) -> Any: ...  # noqa: ANN401 - the body as it arrives


class Response(_Response, Protocol):
    def iter_bytes(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class AsyncResponse(_Response, Protocol):
    def aiter_bytes(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class _AnyClient(Protocol):
    @property
    def is_closed(self) -> bool: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class HttpClient(_AnyClient, Protocol):
    """An `httpx.Client` or an `httpx2.Client`."""

    def send(self, request: Any, *, stream: bool, auth: None, follow_redirects: bool) -> Response:  # noqa: ANN401 - a request of either library
        ...


class AsyncHttpClient(_AnyClient, Protocol):
    """An `httpx.AsyncClient` or an `httpx2.AsyncClient`."""

    async def send(self, request: Any, *, stream: bool, auth: None, follow_redirects: bool) -> AsyncResponse:  # noqa: ANN401 - a request of either library
        ...


class Transport(Protocol):
    def handle_request(self, request: Any) -> Response:  # noqa: ANN401 - a request of either library
        ...

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    async def handle_async_request(self, request: Any) -> AsyncResponse:  # noqa: ANN401 - a request of either library
        ...

    async def aclose(self) -> None: ...


def library_of(http_client: object, transport: object, *, is_async: bool) -> ModuleType | None:
    """Return the library of a given client or transport; httpx unless it is recognized as httpx2's."""
    if http_client is not None and transport is not None:
        raise ConfigurationError("pass http_client or transport, not both")
    if http_client is not None:
        _check_client(http_client, is_async=is_async)
    if transport is not None:
        _check_transport(transport, is_async=is_async)
    return next(
        (sys.modules[library] for library, _ in _classes(http_client if transport is None else transport)),
        None,
    )


def class_names(value: object) -> frozenset[str]:
    """Return the names of the httpx or httpx2 classes that a value is an instance of."""
    return frozenset(name for _, name in _classes(value))


def _classes(value: object) -> Iterator[tuple[str, str]]:
    for kind in type(value).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in LIBRARIES:
            yield library, kind.__name__


def _check_client(given: object, *, is_async: bool) -> None:
    wanted, other = ("AsyncClient", "Client") if is_async else ("Client", "AsyncClient")
    names = class_names(given)
    if wanted in names:
        return
    hint = ""
    if other in names:
        hint = f"; {'AgentPay' if is_async else 'AsyncAgentPay'} takes that one"
    elif any(hasattr(given, method) for method in ("handle_request", "handle_async_request")):
        hint = "; pass a transport as transport"
    article = "an" if is_async else "a"
    raise ConfigurationError(
        f"http_client must be {article} {wanted} of httpx or httpx2, not {_described(given)}{hint}"
    )


def _check_transport(given: object, *, is_async: bool) -> None:
    wanted, other = ("handle_async_request", "handle_request")
    if not is_async:
        wanted, other = other, wanted
    # Transports need no base class. A class passed instead of an instance would be called without `self`.
    if callable(getattr(given, wanted, None)) and not isinstance(given, type):
        return
    hint = ""
    if hasattr(given, other) and not isinstance(given, type):
        hint = f"; {'AgentPay' if is_async else 'AsyncAgentPay'} takes that one"
    elif class_names(given) & {"Client", "AsyncClient"}:
        hint = "; pass a client as http_client"
    kind = "an async" if is_async else "a sync"
    raise ConfigurationError(
        f"transport must be {kind} transport of httpx or httpx2, with {wanted}, not {_described(given)}{hint}"
    )


def _described(given: object) -> str:
    kind = given if isinstance(given, type) else type(given)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return f"the class {name}" if isinstance(given, type) else name
