"""The tools of `agentpay.tools` as an MCP server, and paying the tools of other MCP servers.

It needs the extra `mcp`. `agentpay-mcp`, or `python -m agentpay.mcp`, is a separate process with an
agent-scoped key, over stdio or streamable HTTP; `server` makes the server for a host that brings its own
transport. `PaidTools` calls tools over a connected client of MCP, and pays the tools that ask for it.
"""

from typing import TYPE_CHECKING

from agentpay._loading import load

if TYPE_CHECKING:
    from agentpay.mcp.paying import PaidToolResult, PaidTools, X402Extension
    from agentpay.mcp.serving import bearer_app, server

__all__ = ["PaidToolResult", "PaidTools", "X402Extension", "bearer_app", "server"]


if not TYPE_CHECKING:
    # Late: `python -m agentpay.mcp` reports a missing extra in one line.
    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "serving" if name in ("bearer_app", "server") else "paying"
        return getattr(load(f"agentpay.mcp.{home}", part="agentpay.mcp", extra="mcp"), name)
