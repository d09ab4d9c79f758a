"""Receivers of webhooks for web frameworks: a router of events, and a module for each framework.

`WebhookRouter` knows no framework; `agentpay.integrations.starlette` (FastAPI too), `.flask` and `.django`
each put it behind a route. Importing this package imports none of them.
"""

from agentpay.integrations.router import WebhookRouter
from agentpay.integrations.seen import MemorySeenEvents, SeenEvents

__all__ = ["MemorySeenEvents", "SeenEvents", "WebhookRouter"]
