"""Every endpoint that this server serves: `/v1`, and what stands beside it."""

from typing import Final

from agentpay.contract.endpoints import ENDPOINTS
from agentpay_server.contract.approvals import APPROVAL_ENDPOINTS
from agentpay_server.contract.console import CONSOLE_ENDPOINTS
from agentpay_server.contract.operator_keys import OPERATOR_KEY_ENDPOINTS
from agentpay_server.contract.sandbox import SANDBOX_ENDPOINTS
from agentpay_server.contract.sessions import SESSION_ENDPOINTS
from agentpay_server.contract.webhooks import WEBHOOK_ENDPOINTS

BOUND_ENDPOINTS: Final = (
    *ENDPOINTS,
    *SESSION_ENDPOINTS,
    *CONSOLE_ENDPOINTS,
    *OPERATOR_KEY_ENDPOINTS,
    *APPROVAL_ENDPOINTS,
    *WEBHOOK_ENDPOINTS,
    *SANDBOX_ENDPOINTS,
)
