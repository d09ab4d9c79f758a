"""Webhook receivers for web frameworks: an event router, and a module for each framework.

`WebhookRouter` is independent of frameworks; `agentpay.integrations.starlette`, `.fastapi`, `.flask`
and `.django` each connect it to a route. `.opentelemetry` observes a client, `.pympp` pays for clients of
pympp. Importing this package imports none of them.
"""

from agentpay.integrations.router import WebhookRouter
from agentpay.integrations.seen import MemorySeenEvents, SeenEvents

__all__ = ["MemorySeenEvents", "SeenEvents", "WebhookRouter"]
