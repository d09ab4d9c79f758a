"""The async client of a whole server: the SDK's client, with the console and the sandbox as resources."""

from agentpay._async.client import AsyncAgentPay
from agentpay._http import AsyncHttp
from agentpay._settings import Settings
from agentpay_server.clients._async.console import AsyncConsole
from agentpay_server.clients._async.sandbox import AsyncSandbox


class AsyncServerClient(AsyncAgentPay):
    """A client of `/v1` and of what stands beside it, for an operator key.

    Attributes:
        console: what an operator does on the dashboard.
        sandbox: what only a test chain can do.
    """

    console: AsyncConsole
    sandbox: AsyncSandbox

    def _bind(self, settings: Settings, http: AsyncHttp) -> None:
        super()._bind(settings, http)
        self.console = AsyncConsole(self._exchange)
        self.sandbox = AsyncSandbox(self._exchange)
