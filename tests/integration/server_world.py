"""What the tests against a running server share: where its clock stands, and plain HTTP beside the SDK."""

from collections.abc import Callable
from datetime import UTC, datetime

import httpx

from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.embedded.transports import EmbeddedTransport

START = datetime(2026, 1, 1, tzinfo=UTC)

Funded = Callable[..., Account]
"""Makes an account that holds an amount of USDC: `funded("100")`, `funded("2.5", name="Payer")`."""


def raw_client(server: AgentPayServer, api_key: str | None = None) -> httpx.Client:
    """Return a plain HTTP client of the server, in process.

    Args:
        server: the server.
        api_key: the key that it sends; the operator's if None, no header at all if empty.
    """
    world = server._running
    key = server.operator_key if api_key is None else api_key
    return httpx.Client(
        transport=EmbeddedTransport(world._app, world._owner),
        base_url="http://agentpay.invalid",
        headers={"Authorization": f"Bearer {key}"} if key else {},
    )
