# Generated from _async by scripts/unasync.py. Edit that one.
"""The sync client of a whole server: the SDK's client, with the console and the sandbox as resources."""

from agentpay._sync.client import AgentPay
from agentpay._http import Http
from agentpay._settings import Settings
from agentpay_server.clients._sync.console import Console
from agentpay_server.clients._sync.sandbox import Sandbox


class ServerClient(AgentPay):
    """A client of `/v1` and of what stands beside it, for an operator key.

    Attributes:
        console: what an operator does on the dashboard.
        sandbox: what only a test chain can do.
    """

    console: Console
    sandbox: Sandbox

    def _bind(self, settings: Settings, http: Http) -> None:
        super()._bind(settings, http)
        self.console = Console(self._exchange)
        self.sandbox = Sandbox(self._exchange)
