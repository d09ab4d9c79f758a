"""The endpoints of all extensions that a service may have, except the sandbox."""

from typing import Final

from agentpay.contract.ext.approvals import APPROVAL_ENDPOINTS
from agentpay.contract.ext.console import CONSOLE_ENDPOINTS
from agentpay.contract.ext.deliveries import DELIVERY_ENDPOINTS
from agentpay.contract.ext.identity import WHO_AM_I
from agentpay.contract.ext.operator_keys import OPERATOR_KEY_ENDPOINTS
from agentpay.contract.ext.payments import PAYMENT_ENDPOINTS
from agentpay.contract.ext.search import SEARCH_ENDPOINTS
from agentpay.contract.ext.sessions import SESSION_ENDPOINTS
from agentpay.contract.ext.sign_in import SIGN_IN_ENDPOINTS
from agentpay.contract.ext.spending import SPENDING_ENDPOINTS

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
