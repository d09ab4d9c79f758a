"""The MCP server: a thin layer over `AsyncAgentTools` that lists the tools, calls them and asks for approval.

`agentpay.tools` has the tools and their texts. A refusal is a result; `isError` marks calls with invalid
arguments and failed reads, neither of which pays.
"""

# The extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types.version import is_version_at_least
from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay._version import __version__
from agentpay.tools import INSTRUCTIONS, TOOLS, AsyncAgentTools, ToolSpec

ASK_SECONDS: Final = 30.0
"""Maximum wait for a person's approval, in seconds. After that, the payment stays pending."""

PROGRESS_SECONDS: Final = 5.0
"""Pause before each report of progress, in seconds."""

_LATE_SECONDS: Final = 15.0
"""How much later than its `wait_seconds` a call may end, at most: it reads before and after the wait."""

PATH: Final = "/mcp"

_APPROVAL: Final = "approval"
_STATELESS_SINCE: Final = "2026-07-28"
"""From this protocol version on, a server asks by an interim result, and the host repeats the call."""


def server(tools: AsyncAgentTools) -> Server[Any]:
    """Return an MCP server of the tools of one account.

    Args:
        tools: the tools. Their client stays the caller's to close.
    """
    listing = types.ListToolsResult(tools=[_tool(spec) for spec in TOOLS.values()])

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:  # noqa: ANN401 - of the SDK
        return listing

    async def call_tool(
        context: Any,  # noqa: ANN401 - of the SDK
        params: types.CallToolRequestParams,
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name not in TOOLS:
            raise MCPError(types.INVALID_PARAMS, f"unknown tool; available: {', '.join(TOOLS)}")
        async with _reporting(context, params):
            result = await tools.call(params.name, params.arguments)
        # Only for calls that request a payment, because a model may read one many times.
        if TOOLS[params.name].moves_money and result.get("approval_url"):
            asked = await _asked(context, params, result)
            if isinstance(asked, types.InputRequiredResult):
                return asked
            if asked:
                now = await tools.get_payment(payment_ref=result["payment_ref"])
                result = {**result, **now.to_dict()}
        return types.CallToolResult(
            content=[types.TextContent(text=json.dumps(result, ensure_ascii=False))],
            structured_content=result,
            is_error="error" in result and "decision" not in result,
        )

    return Server(
        "agentpay",
        version=__version__,
        title="AgentPay",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def bearer_app(
    mcp_server: Server[Any], token: str, *, host: str, allowed_hosts: tuple[str, ...] = ()
) -> ASGIApp:
    """Return the server as an ASGI application at `/mcp`: streamable HTTP, with a bearer token.

    Args:
        mcp_server: the server.
        token: the required bearer token.
        host: the address of the port. On a loopback address, Host and Origin of requests must be loopback
            names.
        allowed_hosts: additional values of Host, such as `tools.example.com` or `tools.example.com:*`.
    """
    names = [*_LOOPBACK, *allowed_hosts] if host in _LOOPBACK_ADDRESSES or allowed_hosts else []
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(names),
        allowed_hosts=names,
        allowed_origins=[f"{scheme}://{name}" for scheme in ("http", "https") for name in names],
    )
    return _Bearer(
        mcp_server.streamable_http_app(streamable_http_path=PATH, transport_security=security), token
    )


_LOOPBACK_ADDRESSES: Final = ("127.0.0.1", "localhost", "::1")
_LOOPBACK: Final = ("127.0.0.1:*", "localhost:*", "[::1]:*", "127.0.0.1", "localhost", "[::1]")


class _Bearer:
    """Responds 401 to a request without the token, before reading its body."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and not self._is_allowed(scope):
            headers = [(b"www-authenticate", b"Bearer"), (b"content-type", b"application/json")]
            body = b'{"error":"unauthorized","message":"Send Authorization: Bearer with the token"}'
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        values = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        if scope["type"] != "http" or len(values) != 1 or values[0][:7].lower() != b"bearer ":
            return False
        return hmac.compare_digest(hashlib.sha256(values[0][7:].strip()).digest(), self._digest)


def _tool(spec: ToolSpec) -> types.Tool:
    return types.Tool(
        name=spec.name,
        title=spec.title,
        description=spec.description,
        input_schema=dict(spec.input_schema),
        output_schema=dict(spec.output_schema),
        annotations=types.ToolAnnotations(
            read_only_hint=not spec.moves_money,
            destructive_hint=spec.moves_money,
            idempotent_hint=spec.idempotent,
            open_world_hint=spec.moves_money,
        ),
    )


@asynccontextmanager
async def _reporting(
    context: Any,  # noqa: ANN401 - of the SDK
    params: types.CallToolRequestParams,
) -> AsyncIterator[None]:
    """Report progress while a tool runs, if the host asks for it: a host may give up on a silent call."""
    spec = TOOLS[params.name]
    limit = (params.arguments or {}).get("wait_seconds")
    # A wait may end a little later than its limit: a total that is passed would confuse a host.
    total = limit + _LATE_SECONDS if isinstance(limit, int | float) and limit > 0 else None

    async def report() -> None:
        started = anyio.current_time()
        while True:
            await anyio.sleep(PROGRESS_SECONDS)
            passed = anyio.current_time() - started
            with suppress(Exception):  # the outcome of a payment is worth more than its progress
                message = f"{spec.title}: still waiting after {passed:.0f} s"
                await context.session.report_progress(passed, total, message)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(report)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


async def _asked(
    context: Any,  # noqa: ANN401 - of the SDK
    params: types.CallToolRequestParams,
    result: Mapping[str, Any],
) -> types.InputRequiredResult | bool:
    """Ask a person to open the approval page, if the host can show one.

    Returns:
        With a host of the newer protocol, the request for it; otherwise whether a person was asked.
    """
    capabilities = context.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    if elicitation is None or elicitation.url is None:
        return False
    message = f"Approve the payment of {result['amount_usdc']} USDC to {result['to']}?"
    url = result["approval_url"]
    if is_version_at_least(context.protocol_version, _STATELESS_SINCE):
        if params.input_responses is not None:
            return True
        request = types.ElicitRequest(params=types.ElicitRequestURLParams(message=message, url=url))
        return types.InputRequiredResult(input_requests={_APPROVAL: request})
    with anyio.move_on_after(ASK_SECONDS):
        try:
            await context.session.elicit_url(
                message, url, elicitation_id=result["transfer_id"], related_request_id=context.request_id
            )
        except Exception:  # noqa: BLE001 - the payment waits for approval whether or not the host can ask
            return False
        return True
    return True
