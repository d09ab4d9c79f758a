"""A webhook receiver for FastAPI: `app.add_route("/webhooks", receiver(webhooks), methods=["POST"])`."""

from agentpay.integrations.starlette import receiver

__all__ = ["receiver"]
