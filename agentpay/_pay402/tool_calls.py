"""Calling a tool of an MCP server that a model named, as `fetching` fetches a page: with the same limits.

The name of the server is resolved once, and each connection goes to the checked address. The result of the
tool is returned as the page that a seller over HTTP would have sent.
"""

# The extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import anyio
import anyio.to_thread
import httpx2
from anyio.abc import TaskStatus
from anyio.from_thread import start_blocking_portal
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, CallToolResult, RequestParamsMeta

from agentpay._http.clients import shared_ssl_context
from agentpay._pay402.fetching import (
    BODY_MAX_BYTES,
    CONNECT_SECONDS,
    FetchedPage,
    FetchFailedError,
    FetchRefusedError,
    PageRequest,
    Target,
    addresses_of,
    allowed_address,
    no_response,
)
from agentpay._pay402.messages import IDEMPOTENCY_KEY
from agentpay._pay402.tool_messages import ToolReply, meta_of, reply_of, reply_of_error
from agentpay.contract.ext.payments import site_of
from agentpay.mcp.paying import NO_REPLY, X402Extension

_START_SECONDS: Final = 20.0
"""How long connecting may take, and the first messages."""

_END_SECONDS: Final = 5.0
"""How long the server may take to end the session."""

_RESPONSE_MAX_BYTES: Final = 4 * BODY_MAX_BYTES
"""Of one response: a result holds its content as text and as JSON, and is itself in JSON."""


class AsyncToolFetcher:
    """Calls one tool, as a context: unpaid, then with a payment.

    Args:
        target: the MCP server.
        tool: the tool.
        arguments: its arguments.
    """

    def __init__(self, target: Target, tool: str, arguments: Mapping[str, Any]) -> None:
        self._target, self._tool, self._arguments = target, tool, arguments
        self._client: Client | None = None
        self._failure: Exception | None = None
        self._ended = anyio.Event()
        self._context = self._connection()

    async def __aenter__(self) -> Self:
        """Connect; a failure is raised by `fetch`."""
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._context.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[None]:
        raised = None
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._connected)
            try:
                yield
            except Exception as error:  # noqa: BLE001 - of the caller, which the group would wrap
                raised = error
            finally:
                self._ended.set()
        if raised is not None:
            raise raised

    async def _connected(self, *, task_status: TaskStatus[None]) -> None:
        """Stay connected until the context ends: the SDK cancels the task whose connection breaks."""
        try:
            found = await anyio.to_thread.run_sync(addresses_of, self._target)
            guarded = _Guarded(self._target, allowed_address(found, self._target))
            # Reads end with what waits for them: connecting, a call, closing.
            timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)
            # Around what the SDK waits for, however slowly each part arrives.
            with anyio.move_on_after(_START_SECONDS) as scope:
                async with httpx2.AsyncClient(transport=guarded, timeout=timeout, trust_env=False) as http:
                    streams = streamable_http_client(self._target.url, http_client=http)
                    made = Client(streams, read_timeout_seconds=_START_SECONDS, extensions=[X402Extension()])
                    async with made as self._client:
                        # Otherwise it drops a paid result that breaks the tool's schema, or if no list comes.
                        made.session.validate_tool_result = _unchecked  # type: ignore[assignment,method-assign]
                        scope.deadline = math.inf
                        task_status.started()
                        await self._ended.wait()
                        scope.deadline = anyio.current_time() + _END_SECONDS
        except FetchRefusedError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - of the SDK, in groups or not
            self._failure = self._failed(error)
        if self._client is None:
            task_status.started()

    async def fetch(self, request: PageRequest) -> FetchedPage:
        """Return the result of the tool as a page; its headers may present a payment.

        Raises:
            FetchRefusedError: the name resolves to a private address; nothing was sent.
            FetchFailedError: no result arrived.
        """
        if self._client is None:
            raise self._failure or self._failed(TimeoutError())
        meta: RequestParamsMeta = {}
        for name, value in request.headers.items():
            if name == IDEMPOTENCY_KEY:
                continue
            meta |= meta_of(name, value)  # type: ignore[typeddict-item]  # its keys are open
        try:
            with anyio.fail_after(CONNECT_SECONDS + request.read_seconds):
                result = await self._client.call_tool(
                    self._tool,
                    dict(self._arguments),
                    read_timeout_seconds=request.read_seconds,
                    meta=meta or None,
                )
        except MCPError as error:
            if error.code in NO_REPLY:
                is_closed = error.code == CONNECTION_CLOSED
                raise self._failed(ConnectionError() if is_closed else TimeoutError()) from None
            reply = reply_of_error(error.code, error.message, error.data)
            return self._page(reply, reply.body, "application/json")
        except Exception as error:  # noqa: BLE001 - of the SDK
            raise self._failed(error) from None
        shown = result.model_dump(by_alias=True, exclude_none=True, mode="json")
        reply = reply_of(shown)
        if reply.status == 402:
            return self._page(reply, reply.body, "application/json")
        return self._page(reply, *_content_of(shown))

    def _page(self, reply: ToolReply, body: bytes, kind: str) -> FetchedPage:
        return FetchedPage(
            status=reply.status,
            headers=(*reply.headers, ("content-type", kind)),
            body=body[:BODY_MAX_BYTES],
            is_truncated=len(body) > BODY_MAX_BYTES,
        )

    def _failed(self, error: BaseException) -> FetchFailedError:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, MCPError):
            return FetchFailedError(f"{self._target.origin} did not respond as an MCP server does")
        return no_response(type(error).__name__, self._target)


class ToolFetcher:
    """Calls one tool, synchronously; see `AsyncToolFetcher`."""

    def __init__(self, target: Target, tool: str, arguments: Mapping[str, Any]) -> None:
        self._fetcher = AsyncToolFetcher(target, tool, arguments)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(self._portal.wrap_async_context_manager(self._fetcher))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def fetch(self, request: PageRequest) -> FetchedPage:
        """Return the result of the tool as a page; see `AsyncToolFetcher.fetch`."""
        return self._portal.call(self._fetcher.fetch, request)


async def _unchecked(_name: str, _result: CallToolResult) -> None:
    """Take a result as it is: a model reads it as text."""


def _content_of(result: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return what a tool returned, for a model, and its type: only the text if it has no other content."""
    content, structured = result.get("content") or [], result.get("structuredContent")
    if structured is None and len(content) == 1 and content[0].get("type") == "text":
        return content[0]["text"].encode("utf-8", "replace"), "text/plain"
    whole = {"content": content} if structured is None else structured
    return json.dumps(whole, ensure_ascii=False).encode("utf-8", "replace"), "application/json"


class _Guarded(httpx2.AsyncBaseTransport):
    """Connects to the checked address of one origin, and reads no endless response."""

    def __init__(self, target: Target, address: str) -> None:
        self._target, self._address = target, address
        self._inner = httpx2.AsyncHTTPTransport(verify=shared_ssl_context(), trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if site_of(str(request.url)).origin != self._target.origin:
            raise httpx2.UnsupportedProtocol("another origin than that of the MCP server", request=request)
        sent = httpx2.Request(
            request.method,
            request.url.copy_with(host=self._address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": self._target.host},
        )
        sent.headers["accept-encoding"] = "identity"
        response = await self._inner.handle_async_request(sent)
        # Decompressed, a small response can fill the memory.
        response.headers.pop("content-encoding", None)
        response.stream = _Bounded(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - of the library
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > _RESPONSE_MAX_BYTES:
                raise httpx2.ReadError("the response is too large")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
