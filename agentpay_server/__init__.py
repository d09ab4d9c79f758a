"""The reference server: the whole service, with real Solana transactions, in process or on a port."""

from agentpay_server.chain.rpc.settings import Finality, RpcSettings
from agentpay_server.clients import AsyncServerClient, ServerClient
from agentpay_server.embedded.inbox import Receipt, WebhookInbox
from agentpay_server.embedded.server import AgentPayServer
from agentpay_server.settings import OnchainMemo, PolicyUpdate, Settings

__all__ = [
    "AgentPayServer",
    "AsyncServerClient",
    "Finality",
    "OnchainMemo",
    "PolicyUpdate",
    "Receipt",
    "RpcSettings",
    "ServerClient",
    "Settings",
    "WebhookInbox",
]
