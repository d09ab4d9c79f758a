"""The reference server: the whole service, with real Solana transactions, in process or on a port.

Names are imported on first use, because pytest loads this package's plugin in every test run.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentpay_server.clients import AsyncSandbox, Sandbox
    from agentpay_server.database.runner import DatabaseUnavailableError, StartRefusedError
    from agentpay_server.platform.settings import OnchainMemo, PolicyUpdate, Settings
    from agentpay_server.plugins.cluster.settings import Finality, RpcSettings
    from agentpay_server.testkit.embedded.inbox import Receipt, WebhookInbox
    from agentpay_server.testkit.embedded.recorder import ChainTransaction, RecordedRequest, Records
    from agentpay_server.testkit.embedded.server import AgentPayServer
    from agentpay_server.testkit.embedded.world import CannotListenError

__all__ = [
    "AgentPayServer",
    "AsyncSandbox",
    "CannotListenError",
    "ChainTransaction",
    "DatabaseUnavailableError",
    "Finality",
    "OnchainMemo",
    "PolicyUpdate",
    "Receipt",
    "RecordedRequest",
    "Records",
    "RpcSettings",
    "Sandbox",
    "Settings",
    "StartRefusedError",
    "WebhookInbox",
]

_HOMES = {
    "AgentPayServer": "agentpay_server.testkit.embedded.server",
    "AsyncSandbox": "agentpay_server.clients",
    "CannotListenError": "agentpay_server.testkit.embedded.world",
    "ChainTransaction": "agentpay_server.testkit.embedded.recorder",
    "DatabaseUnavailableError": "agentpay_server.database.runner",
    "Finality": "agentpay_server.plugins.cluster.settings",
    "OnchainMemo": "agentpay_server.platform.settings",
    "PolicyUpdate": "agentpay_server.platform.settings",
    "Receipt": "agentpay_server.testkit.embedded.inbox",
    "RecordedRequest": "agentpay_server.testkit.embedded.recorder",
    "Records": "agentpay_server.testkit.embedded.recorder",
    "RpcSettings": "agentpay_server.plugins.cluster.settings",
    "Sandbox": "agentpay_server.clients",
    "Settings": "agentpay_server.platform.settings",
    "StartRefusedError": "agentpay_server.database.runner",
    "WebhookInbox": "agentpay_server.testkit.embedded.inbox",
}


if not TYPE_CHECKING:
    # Type checkers assume that a module with `__getattr__` has every name.
    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from agentpay._loading import load  # noqa: PLC0415 - not in a run that uses nothing of this

        value: object = getattr(load(_HOMES[name], part="the server", extra="test"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
