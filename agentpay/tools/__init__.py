"""Tools for models, without a framework: typed functions over a client with an agent-scoped key.

    tools = AgentTools(AgentPay(api_key="ap_agent_…"))
    tools.pay(payment_ref="order-2024-117", to="acct_…", amount_usdc="1.50").status

`AsyncAgentTools` is the same to be awaited. `agentpay.mcp` serves them over MCP, and `agentpay.integrations`
hands them to agent frameworks; arguments, results and wording are the same everywhere.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentpay._async.tools import AsyncAgentTools
    from agentpay._sync.tools import AgentTools
    from agentpay.tools.results import (
        CheckResult,
        ErrorResult,
        FetchResult,
        ListedPayment,
        PaymentList,
        PaymentResult,
        SessionResult,
        UntrustedContent,
    )
    from agentpay.tools.specs import INSTRUCTIONS, TOOLS, ToolInputError, ToolSpec

__all__ = [
    "INSTRUCTIONS",
    "TOOLS",
    "AgentTools",
    "AsyncAgentTools",
    "CheckResult",
    "ErrorResult",
    "FetchResult",
    "ListedPayment",
    "PaymentList",
    "PaymentResult",
    "SessionResult",
    "ToolInputError",
    "ToolSpec",
    "UntrustedContent",
]

_HOMES = {
    "INSTRUCTIONS": "agentpay.tools.specs",
    "TOOLS": "agentpay.tools.specs",
    "ToolSpec": "agentpay.tools.specs",
    "AgentTools": "agentpay._sync.tools",
    "AsyncAgentTools": "agentpay._async.tools",
    "ToolInputError": "agentpay.tools.specs",
}
"""The modules of the public names, unless that is `agentpay.tools.results`."""


if not TYPE_CHECKING:
    # Imported late, because the classes import parts of this package.
    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES.get(name, "agentpay.tools.results")), name)
        globals()[name] = value
        return value
