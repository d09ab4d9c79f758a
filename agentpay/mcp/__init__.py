"""The tools of `agentpay.tools` as an MCP server: `agentpay-mcp`, or `python -m agentpay.mcp`.

It needs the extra `mcp`. It is a separate process with an agent-scoped key, over stdio or streamable HTTP;
`server` makes the server for a host that brings its own transport.
"""

from typing import TYPE_CHECKING

from agentpay._loading import load

if TYPE_CHECKING:
    from agentpay.mcp.serving import bearer_app, server

__all__ = ["bearer_app", "server"]


if not TYPE_CHECKING:
    # Late: `python -m agentpay.mcp` reports a missing extra in one line.
    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(load("agentpay.mcp.serving", part="agentpay.mcp", extra="mcp"), name)
