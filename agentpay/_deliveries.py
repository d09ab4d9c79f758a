"""The headers of a webhook delivery, for the server and for `agentpay.testing` (interface W5, W9, W12)."""

from agentpay._version import __version__
from agentpay.contract.signature_headers import NEXT_SIGNATURE_HEADER, SIGNATURE_HEADER
from agentpay.webhooks import WebhookSecrets, sign


def signed_headers(
    body: bytes,
    *,
    event_id: str,
    attempt: int,
    secret: WebhookSecrets,
    next_secret: WebhookSecrets | None = None,
) -> dict[str, str]:
    """`attempt` counts from 1. `next_secret` signs a second header, while a rotation overlaps."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"agentpay-server/{__version__}",
        "X-Service-Event-Id": event_id,
        "X-Service-Delivery-Attempt": str(attempt),
        SIGNATURE_HEADER: sign(body, secret),
    }
    if next_secret is not None:
        headers[NEXT_SIGNATURE_HEADER] = sign(body, next_secret)
    return headers
