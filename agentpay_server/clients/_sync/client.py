# Generated from _async by scripts/unasync.py. Edit that one.
"""The sync client of a whole server: the SDK's client, with what stands beside `/v1` as resources."""

from agentpay._sync.client import AgentPay
from agentpay._http import Http
from agentpay._settings import Settings
from agentpay_server.clients._sync.console import Console
from agentpay_server.clients._sync.sandbox import Sandbox
from agentpay_server.clients._sync.sessions import Sessions


class ServerClient(AgentPay):
    """A client of `/v1` and of what stands beside it.

    Attributes:
        sessions: a cap in escrow, charged in small amounts, settled in one transaction.
        console: what an operator does on the dashboard; for operator keys.
        sandbox: what only a test chain can do; for operator keys.
    """

    sessions: Sessions
    console: Console
    sandbox: Sandbox

    def _bind(self, settings: Settings, http: Http) -> None:
        super()._bind(settings, http)
        self.sessions = Sessions(self._caller)
        self.console = Console(self._caller)
        self.sandbox = Sandbox(self._caller)
