"""The async client of a whole server: the SDK's client, with what stands beside `/v1` as resources."""

from agentpay._async.client import AsyncAgentPay
from agentpay._http import AsyncHttp
from agentpay._settings import Settings
from agentpay_server.clients._async.console import AsyncConsole
from agentpay_server.clients._async.sandbox import AsyncSandbox
from agentpay_server.clients._async.sessions import AsyncSessions


class AsyncServerClient(AsyncAgentPay):
    """A client of `/v1` and of what stands beside it.

    Attributes:
        sessions: a cap in escrow, charged in small amounts, settled in one transaction.
        console: what an operator does on the dashboard; for operator keys.
        sandbox: what only a test chain can do; for operator keys.
    """

    sessions: AsyncSessions
    console: AsyncConsole
    sandbox: AsyncSandbox

    def _bind(self, settings: Settings, http: AsyncHttp) -> None:
        super()._bind(settings, http)
        self.sessions = AsyncSessions(self._caller)
        self.console = AsyncConsole(self._caller)
        self.sandbox = AsyncSandbox(self._caller)
