"""Tools for models, without a framework: typed functions over a client with an agent-scoped key.

    tools = AgentTools(AgentPay(api_key="ap_agent_…"))
    tools.pay(payment_ref="order-2024-117", to="acct_…", amount_usdc="1.50").status

`AsyncAgentTools` is the same to be awaited. `agentpay.mcp` serves them over MCP, and `agentpay.integrations`
hands them to agent frameworks; arguments, results and wording are the same everywhere.
"""

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from agentpay._async.tools import AsyncAgentTools
    from agentpay._sync.tools import AgentTools

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


if not TYPE_CHECKING:
    # Late, because these classes import parts of this package.
    def __getattr__(name: str) -> object:
        if name == "AgentTools":
            from agentpay._sync.tools import AgentTools as tools  # noqa: PLC0415, N813 - as above
        elif name == "AsyncAgentTools":
            from agentpay._async.tools import AsyncAgentTools as tools  # noqa: PLC0415, N813 - as above
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return tools
