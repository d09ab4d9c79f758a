"""Every endpoint that this server serves: `/v1`, and the extensions."""

from typing import Final

from agentpay.contract.endpoints import ENDPOINTS
from agentpay.contract.extensions import EXTENSION_ENDPOINTS
from agentpay_server.contract.sandbox import SANDBOX_ENDPOINTS

BOUND_ENDPOINTS: Final = (*ENDPOINTS, *EXTENSION_ENDPOINTS, *SANDBOX_ENDPOINTS)
