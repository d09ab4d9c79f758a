"""Clients of a whole server: `/v1` as the SDK has it, and sessions, console and sandbox beside it.

They speak HTTP like any client, to a server in process or to one on a port.
"""

from agentpay_server.clients._async.client import AsyncServerClient
from agentpay_server.clients._sync.client import ServerClient

__all__ = ["AsyncServerClient", "ServerClient"]
