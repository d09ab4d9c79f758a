"""The tools of `agentpay.tools` for LangChain and LangGraph (package `langchain`).

`create_agent(model, tools=function_tools(AsyncAgentTools(client)))`
"""

# The framework need not be installed where types are checked.
# pyright: reportMissingImports=false

import json
from typing import Any

from agentpay._loading import needing
from agentpay.tools import TOOLS, AgentTools, AsyncAgentTools, ToolSpec
from agentpay.tools.specs import NeedsApproval, is_needed

with needing("agentpay.integrations.langchain", package="langchain"):
    from langchain_core.tools import StructuredTool

__all__ = ["function_tools"]


def function_tools(
    tools: AsyncAgentTools | AgentTools, *, needs_approval: NeedsApproval = False
) -> list[StructuredTool]:
    """Return the tools for `create_agent(tools=…)` or a `ToolNode`.

    Args:
        tools: the tools of one account: async ones for `ainvoke`, the others for `invoke`.
        needs_approval: which calls of tools that can spend interrupt the graph until a person approves them,
            with `Command(resume=True)`; anything else rejects the call. The graph needs a checkpointer.
    """
    return [_tool(tools, spec, needs_approval) for spec in TOOLS.values()]


def _tool(
    tools: AsyncAgentTools | AgentTools, spec: ToolSpec, needs_approval: NeedsApproval
) -> StructuredTool:
    run: Any = tools.call

    async def acall(**arguments: Any) -> str:  # noqa: ANN401 - a JSON value
        if _is_rejected(needs_approval, spec, arguments):
            return _REJECTED
        return json.dumps(await run(spec.name, arguments), ensure_ascii=False)

    def call(**arguments: Any) -> str:  # noqa: ANN401 - a JSON value
        if _is_rejected(needs_approval, spec, arguments):
            return _REJECTED
        return json.dumps(run(spec.name, arguments), ensure_ascii=False)

    # The tools are async if the account's are. LangChain reports a call of the wrong kind.
    is_async = isinstance(tools, AsyncAgentTools)
    return StructuredTool(
        name=spec.name,
        description=spec.description,
        args_schema=dict(spec.input_schema),
        func=None if is_async else call,
        coroutine=acall if is_async else None,
    )


def _is_rejected(needs_approval: NeedsApproval, spec: ToolSpec, arguments: dict[str, Any]) -> bool:
    if not is_needed(needs_approval, spec.name, arguments):
        return False
    from langgraph.types import interrupt  # noqa: PLC0415 - tools without approval need no graph

    return interrupt({"tool": spec.name, "arguments": arguments}) is not True


_REJECTED = json.dumps(
    {
        "error": "rejected_by_person",
        "message": "A person rejected this call. Nothing was paid.",
        "next_step": "Tell the user. Do not pay it another way.",
    }
)
