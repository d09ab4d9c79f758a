"""The client of the sandbox, which works through a client of the service, in process or on a port."""

from agentpay_server.clients._async.sandbox import AsyncSandbox
from agentpay_server.clients._sync.sandbox import Sandbox

__all__ = ["AsyncSandbox", "Sandbox"]
