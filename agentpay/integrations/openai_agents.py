"""The tools of `agentpay.tools` for the OpenAI Agents SDK (package `openai-agents`).

`Agent(name="Buyer", tools=function_tools(AsyncAgentTools(client)))`
"""

# The framework need not be installed where types are checked.
# pyright: reportMissingImports=false

import json
from typing import Any

from agentpay._loading import needing
from agentpay.tools import TOOLS, AsyncAgentTools, ToolSpec
from agentpay.tools.specs import NeedsApproval, is_needed

with needing("agentpay.integrations.openai_agents", package="openai-agents"):
    from agents import FunctionTool, RunContextWrapper
    from agents.tool_context import ToolContext

__all__ = ["function_tools"]


def function_tools(tools: AsyncAgentTools, *, needs_approval: NeedsApproval = False) -> list[FunctionTool]:
    """Return the tools for `Agent(tools=…)`.

    Args:
        tools: the tools of one account.
        needs_approval: which calls of tools that can spend stop the run until a person approves them:
            `result.interruptions`, then `state.approve` or `state.reject`.
    """
    return [_function_tool(tools, spec, needs_approval) for spec in TOOLS.values()]


def _function_tool(tools: AsyncAgentTools, spec: ToolSpec, needs_approval: NeedsApproval) -> FunctionTool:
    async def invoke(_context: ToolContext[Any], arguments: str) -> str:
        try:
            given = json.loads(arguments or "{}")
        except ValueError:
            given = None
        if not isinstance(given, dict):
            given = {"arguments": "not a JSON object"}  # refused as an unknown argument
        return json.dumps(await tools.call(spec.name, given), ensure_ascii=False)

    async def ask(_context: RunContextWrapper[Any], arguments: dict[str, Any], _call_id: str) -> bool:
        return is_needed(needs_approval, spec.name, arguments)

    return FunctionTool(
        name=spec.name,
        description=spec.description,
        params_json_schema=dict(spec.input_schema),
        on_invoke_tool=invoke,
        # Strict schemas make every argument required, and optional ones must stay absent.
        strict_json_schema=False,
        needs_approval=ask if spec.moves_money else False,
    )
