"""The tools of `agentpay.tools` for Pydantic AI (package `pydantic-ai`).

`Agent(model, tools=function_tools(AsyncAgentTools(client)))`
"""

# The framework need not be installed where types are checked; pyright then takes this module for it.
# pyright: reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from collections.abc import Mapping
from typing import Any

from agentpay._loading import needing
from agentpay.tools import TOOLS, AsyncAgentTools, ToolSpec
from agentpay.tools.specs import NeedsApproval, is_needed

with needing("agentpay.integrations.pydantic_ai", package="pydantic-ai-slim"):
    from pydantic_ai import ApprovalRequired, RunContext, Tool

__all__ = ["function_tools"]


def function_tools(tools: AsyncAgentTools, *, needs_approval: NeedsApproval = False) -> list[Tool[Any]]:
    """Return the tools for `Agent(tools=…)`.

    Args:
        tools: the tools of one account.
        needs_approval: which calls of tools that can spend are deferred until a person approves them. The
            agent needs `DeferredToolRequests` among its output types.
    """
    return [_tool(tools, spec, needs_approval) for spec in TOOLS.values()]


def _tool(tools: AsyncAgentTools, spec: ToolSpec, needs_approval: NeedsApproval) -> Tool[Any]:
    async def call(context: RunContext[Any], **arguments: Any) -> Mapping[str, Any]:  # noqa: ANN401 - JSON
        if not context.tool_call_approved and is_needed(needs_approval, spec.name, arguments):
            raise ApprovalRequired(metadata={"tool": spec.name})
        return await tools.call(spec.name, arguments)

    return Tool.from_schema(
        call,
        name=spec.name,
        description=spec.description,
        json_schema=dict(spec.input_schema),
        takes_ctx=True,
    )
