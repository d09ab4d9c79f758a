"""The seller as an MCP server: what it sells at a path over HTTP is a tool, in every mode.

The result of a tool is the seller's response to a request for its path, in another wrapping: see
`pay402/challenges/tools.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.types import Message, Scope

from agentpay._version import __version__
from agentpay.contract.tool_payments import X402_EXTENSION
from agentpay_server.http.responses import Headers
from agentpay_server.plugins.node.jsonrpc import RpcError
from agentpay_server.plugins.pay402.challenges.tools import ToolError, headers_of, result_of
from agentpay_server.plugins.paywall.channel_desk import UnservedError
from agentpay_server.plugins.paywall.seller import Reply, Seller

_URL: Final = "mcp://tool"
_ANY: Final = {"type": "object"}


class ToolPort:
    """The MCP server over streamable HTTP, each call one request; on the seller's event loop."""

    def __init__(self, seller: Seller) -> None:
        server = server_of(seller, call=_at_once)
        self._manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
        self._running: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()

    async def respond(self, scope: Scope, body: bytes) -> tuple[int, Headers, bytes]:
        """Return the response to a request whose body was read."""
        if scope["method"] != "POST":
            # There is no stream to open, and no session to end.
            return 405, [(b"allow", b"POST"), (b"content-length", b"0")], b""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())
        await self._is_ready.wait()
        status, headers, content = 500, [], b""

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status, headers, content
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message["headers"])
            else:
                content += message.get("body", b"")

        await self._manager.handle_request(scope, receive, send)
        return status, headers, content

    async def _run(self) -> None:
        async with self._manager.run():
            self._is_ready.set()
            await asyncio.Event().wait()


async def _at_once(work: Coroutine[Any, Any, Reply]) -> Reply:
    return await work


def server_of(seller: Seller, call: Callable[[Coroutine[Any, Any, Reply]], Awaitable[Reply]]) -> Server[Any]:
    """Return an MCP server of what the seller sells by single payments, for any transport.

    `call` runs the seller's work on its event loop.
    """

    def sold() -> dict[str, str]:
        return {path.strip("/").replace("/", "_"): path for path in seller.products}

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:  # noqa: ANN401 - of the SDK
        tools = [
            types.Tool(name=name, description=seller.products[path].description, input_schema=_ANY)
            for name, path in sold().items()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(
        context: Any,  # noqa: ANN401 - of the SDK
        params: types.CallToolRequestParams,
    ) -> Any:  # noqa: ANN401 - also a result of the extension, which the SDK passes on
        path = sold().get(params.name)
        if path is None:
            raise MCPError(types.INVALID_PARAMS, f"unknown tool; sold: {', '.join(sold())}")
        payment = headers_of(dict(params.meta or {}))
        try:
            reply = await call(seller.respond("POST", f"{_URL}{path}", payment))
        except (UnservedError, RpcError) as error:
            # Over HTTP the connection drops: there is no result either way.
            raise MCPError(types.INTERNAL_ERROR, "the tool failed") from error
        capabilities = context.session.client_capabilities
        extensions = None if capabilities is None else capabilities.extensions
        try:
            result = result_of(*reply, by_extension=X402_EXTENSION in (extensions or {}))
        except ToolError as asked:
            raise MCPError(asked.code, asked.message, asked.data) from None
        return result if "resultType" in result else types.CallToolResult.model_validate(result)

    made: Server[Any] = Server(
        "agentpay-paywall", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool
    )
    made.extensions[X402_EXTENSION] = {}
    return made
