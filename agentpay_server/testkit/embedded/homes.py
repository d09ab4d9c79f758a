"""The resources of the first operator, as attributes of the embedded server: those of its client."""

from collections.abc import Iterable

from agentpay._sync.accounts import Accounts
from agentpay._sync.approvals import Approvals
from agentpay._sync.client import AgentPay
from agentpay._sync.deliveries import Deliveries, Events
from agentpay._sync.keys import AgentKeys, OperatorKeys
from agentpay._sync.logs import AuditLog, RequestLogs
from agentpay._sync.payments import Payments
from agentpay._sync.policies import Policies
from agentpay._sync.sellers import Sellers
from agentpay._sync.sessions import Sessions
from agentpay._sync.transfers import Transfers
from agentpay._sync.webhooks import Webhooks
from agentpay.contract.deliveries import Delivery
from agentpay.contract.events import Event
from agentpay_server.testkit.embedded.recorder import Records


class RecordedEvents(Records[Event], Events):
    """The newest events of all operators, and the methods of `client.events`."""

    def __init__(self, records: Iterable[Event], home: Events) -> None:
        Records.__init__(self, records)
        Events.__init__(self, home._caller)  # noqa: SLF001 - another one of this class


class RecordedDeliveries(Records[Delivery], Deliveries):
    """The newest deliveries, and the methods of `client.deliveries`."""

    def __init__(self, records: Iterable[Delivery], home: Deliveries) -> None:
        Records.__init__(self, records)
        Deliveries.__init__(self, home._caller)  # noqa: SLF001 - another one of this class


class Homes:
    """Everything but events and deliveries, which the server records too."""

    @property
    def _operator(self) -> AgentPay:
        raise NotImplementedError

    @property
    def accounts(self) -> Accounts:
        """Accounts of the first operator."""
        return self._operator.accounts

    @property
    def policies(self) -> Policies:
        """Spending policies of the first operator's accounts."""
        return self._operator.policies

    @property
    def transfers(self) -> Transfers:
        """Transfers from the first operator's accounts."""
        return self._operator.transfers

    @property
    def payments(self) -> Payments:
        """Payments behind HTTP 402 from the first operator's accounts."""
        return self._operator.payments

    @property
    def sessions(self) -> Sessions:
        """Sessions of the first operator's accounts."""
        return self._operator.sessions

    @property
    def webhooks(self) -> Webhooks:
        """Webhooks of the first operator."""
        return self._operator.webhooks

    @property
    def approvals(self) -> Approvals:
        """Transfers that wait for the first operator's approval."""
        return self._operator.approvals

    @property
    def agent_keys(self) -> AgentKeys:
        """Keys that are bound to one account of the first operator."""
        return self._operator.agent_keys

    @property
    def operator_keys(self) -> OperatorKeys:
        """Keys of the first operator with full access."""
        return self._operator.operator_keys

    @property
    def sellers(self) -> Sellers:
        """What the first operator allows each seller to be paid."""
        return self._operator.sellers

    @property
    def audit_log(self) -> AuditLog:
        """The first operator's changes, and who made them."""
        return self._operator.audit_log

    @property
    def request_logs(self) -> RequestLogs:
        """The first operator's requests that the server has responded to."""
        return self._operator.request_logs
