"""The seller as an MCP server: what it sells at a path over HTTP is a tool, in every mode.

The result of a tool is the seller's response to a request for its path, in another wrapping: x402 asks in the
error of a tool, or by its extension of MCP if the client knows it; MPP asks by a JSON-RPC error.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.types import Message, Scope

from agentpay._pay402.tool_messages import (
    EXTENSION,
    MPP_CHALLENGES,
    MPP_CODE,
    MPP_PAYMENT,
    MPP_RECEIPT,
    PAYMENT_REQUIRED,
    X402_PAYMENT,
    X402_RECEIPT,
)
from agentpay._version import __version__
from agentpay_server.http.responses import Headers
from agentpay_server.plugins.node.jsonrpc import RpcError
from agentpay_server.plugins.pay402.challenges import fields, mpp
from agentpay_server.plugins.paywall.channel_desk import UnservedError
from agentpay_server.plugins.paywall.seller import Reply, Seller

_URL: Final = "mcp://tool"
_RECEIPTS: Final = {
    "payment-response": X402_RECEIPT,
    "x-payment-response": X402_RECEIPT,
    "payment-receipt": MPP_RECEIPT,
}
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
        payment = _presented(dict(params.meta or {}))
        try:
            reply = await call(seller.respond("POST", f"{_URL}{path}", payment))
        except (UnservedError, RpcError) as error:
            # Over HTTP the connection drops: there is no result either way.
            raise MCPError(types.INTERNAL_ERROR, "the tool failed") from error
        capabilities = context.session.client_capabilities
        extensions = None if capabilities is None else capabilities.extensions
        return _result(reply, by_extension=EXTENSION in (extensions or {}))

    made: Server[Any] = Server(
        "agentpay-paywall", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool
    )
    made.extensions[EXTENSION] = {}
    return made


def _presented(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the header that would present the payment of a call over HTTP."""
    paid = meta.get(X402_PAYMENT)
    if isinstance(paid, dict):
        name = "payment-signature" if paid.get("x402Version") == 2 else "x-payment"
        return [(name, fields.encoded(paid))]
    credential = meta.get(MPP_PAYMENT)
    if not isinstance(credential, dict):
        return []
    challenge = credential.get("challenge")
    wrapped = {name: _in_header(value) for name, value in dict(challenge or {}).items()}
    return [("authorization", f"Payment {fields.encoded_for_url({**credential, 'challenge': wrapped})}")]


def _in_header(value: object) -> object:
    return fields.encoded_for_url(value) if isinstance(value, dict) else value


def _result(reply: Reply, *, by_extension: bool) -> types.CallToolResult | dict[str, Any]:
    status, headers, body = reply
    content = json.loads(body) if body else {}
    meta = {_RECEIPTS[name]: _decoded(value) for name, value in headers if name in _RECEIPTS}
    if status == 402:
        return _asking(headers, content, meta, by_extension=by_extension)
    return _tool_result(content, is_error=status != 200, meta=meta)


def _asking(
    headers: Iterable[tuple[str, str]], content: dict[str, Any], meta: dict[str, Any], *, by_extension: bool
) -> types.CallToolResult | dict[str, Any]:
    required = content if "x402Version" in content else None
    challenges: list[dict[str, Any]] = []
    for name, value in headers:
        if name == "payment-required":
            required = _decoded(value)
        elif name == "www-authenticate":
            challenges += map(_challenge, mpp.challenges_in(value))
    if required is None:
        message = str(content.get("message") or content.get("error") or "Payment Required")
        raise MCPError(MPP_CODE, message, {"httpStatus": 402, "challenges": challenges})
    if challenges:
        meta[MPP_CHALLENGES] = {"httpStatus": 402, "challenges": challenges}
    if by_extension and required.get("x402Version") == 2:
        return {"resultType": PAYMENT_REQUIRED, "paymentRequired": required, "_meta": meta}
    return _tool_result(required, is_error=True, meta=meta)


def _tool_result(content: dict[str, Any], *, is_error: bool, meta: dict[str, Any]) -> types.CallToolResult:
    text = types.TextContent(text=json.dumps(content))
    return types.CallToolResult(content=[text], structured_content=content, is_error=is_error, _meta=meta)


def _challenge(parameters: Iterable[tuple[str, str]]) -> dict[str, Any]:
    encoded = ("request", "opaque")
    return {name: _decoded(value) if name in encoded else value for name, value in parameters}


def _decoded(value: str) -> dict[str, Any]:
    text = value.replace("-", "+").replace("_", "/")
    decoded: dict[str, Any] = json.loads(base64.b64decode(text + "=" * (-len(text) % 4)))
    return decoded
