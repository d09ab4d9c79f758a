"""The endpoints of all extensions that a service may have, except the sandbox."""

from typing import Final

from agentpay.contract.approvals import APPROVAL_ENDPOINTS
from agentpay.contract.console import CONSOLE_ENDPOINTS
from agentpay.contract.deliveries import DELIVERY_ENDPOINTS
from agentpay.contract.identity import WHO_AM_I
from agentpay.contract.operator_keys import OPERATOR_KEY_ENDPOINTS
from agentpay.contract.payments import PAYMENT_ENDPOINTS
from agentpay.contract.search import SEARCH_ENDPOINTS
from agentpay.contract.sessions import SESSION_ENDPOINTS
from agentpay.contract.sign_in import SIGN_IN_ENDPOINTS
from agentpay.contract.spending import SPENDING_ENDPOINTS

EXTENSION_ENDPOINTS: Final = (
    WHO_AM_I,
    *SPENDING_ENDPOINTS,
    *SESSION_ENDPOINTS,
    *PAYMENT_ENDPOINTS,
    *CONSOLE_ENDPOINTS,
    *SEARCH_ENDPOINTS,
    *OPERATOR_KEY_ENDPOINTS,
    *SIGN_IN_ENDPOINTS,
    *APPROVAL_ENDPOINTS,
    *DELIVERY_ENDPOINTS,
)
"""All operations under `EXTENSIONS` that a deployed service may offer."""
