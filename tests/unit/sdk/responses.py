"""What a client makes of a response that it did not ask for, without a connection."""

from typing import Any

from agentpay._calls.requests import PreparedRequest, read
from agentpay.contract.endpoints import Endpoint
from agentpay.contract.responses import RawResponse


def received(endpoint: Endpoint[Any], status: int, body: bytes, *, now: float = 0.0, **headers: str) -> Any:
    """Return the model or the exception."""
    request = PreparedRequest(endpoint=endpoint, target=endpoint.path)
    return read(request, RawResponse(status, headers, body), now=now)
