"""The classes of the clients' attributes, of pages and of streams, for annotations."""

from agentpay._async.accounts import AsyncAccounts
from agentpay._async.approvals import AsyncApprovals
from agentpay._async.console import AsyncAuditLog, AsyncConsole, AsyncRequestLogs
from agentpay._async.deliveries import AsyncDeliveries, AsyncEvents
from agentpay._async.event_stream import AsyncEventStream
from agentpay._async.keys import AsyncAgentKeys, AsyncOperatorKeys
from agentpay._async.paging import AsyncPage, AsyncPages
from agentpay._async.payments import AsyncPayments
from agentpay._async.policies import AsyncPolicies
from agentpay._async.sellers import AsyncSellers
from agentpay._async.sessions import AsyncSessions
from agentpay._async.transfers import AsyncTransfers
from agentpay._async.webhooks import AsyncWebhooks
from agentpay._sync.accounts import Accounts
from agentpay._sync.approvals import Approvals
from agentpay._sync.console import AuditLog, Console, RequestLogs
from agentpay._sync.deliveries import Deliveries, Events
from agentpay._sync.event_stream import EventStream
from agentpay._sync.keys import AgentKeys, OperatorKeys
from agentpay._sync.paging import Page
from agentpay._sync.payments import Payments
from agentpay._sync.policies import Policies
from agentpay._sync.sellers import Sellers
from agentpay._sync.sessions import Sessions
from agentpay._sync.transfers import Transfers
from agentpay._sync.webhooks import Webhooks

__all__ = [
    "Accounts",
    "AgentKeys",
    "Approvals",
    "AsyncAccounts",
    "AsyncAgentKeys",
    "AsyncApprovals",
    "AsyncAuditLog",
    "AsyncConsole",
    "AsyncDeliveries",
    "AsyncEventStream",
    "AsyncEvents",
    "AsyncOperatorKeys",
    "AsyncPage",
    "AsyncPages",
    "AsyncPayments",
    "AsyncPolicies",
    "AsyncRequestLogs",
    "AsyncSellers",
    "AsyncSessions",
    "AsyncTransfers",
    "AsyncWebhooks",
    "AuditLog",
    "Console",
    "Deliveries",
    "EventStream",
    "Events",
    "OperatorKeys",
    "Page",
    "Payments",
    "Policies",
    "RequestLogs",
    "Sellers",
    "Sessions",
    "Transfers",
    "Webhooks",
]
