"""The tools of `agentpay.tools` for the Claude Agent SDK (packages `claude-agent-sdk` and the extra `mcp`).

    ClaudeAgentOptions(mcp_servers={"agentpay": sdk_server(AsyncAgentTools(client))})

A person decides in `ClaudeAgentOptions(can_use_tool=…)`, which can allow the names in `READ_ONLY` at once.
"""

# The framework need not be installed where types are checked; pyright then takes this module for it.
# pyright: reportMissingImports=false, reportCallIssue=false, reportGeneralTypeIssues=false

from agentpay._loading import needing
from agentpay.tools import TOOLS, AsyncAgentTools

with needing("agentpay.integrations.claude_agent_sdk", package="claude-agent-sdk"):
    from claude_agent_sdk import McpSdkServerConfig
with needing("agentpay.integrations.claude_agent_sdk", extra="mcp"):
    from agentpay.mcp import server

__all__ = ["READ_ONLY", "sdk_server"]

READ_ONLY = tuple(f"mcp__agentpay__{spec.name}" for spec in TOOLS.values() if not spec.moves_money)
"""Names of the tools that cannot spend, where the server is named `agentpay` in `mcp_servers`."""


def sdk_server(tools: AsyncAgentTools) -> McpSdkServerConfig:
    """Return an MCP server in this process for `ClaudeAgentOptions(mcp_servers=…)`.

    Args:
        tools: the tools of one account.
    """
    return McpSdkServerConfig(type="sdk", name="agentpay", instance=server(tools))
