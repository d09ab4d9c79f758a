# Generated from _async by scripts/unasync.py. Edit that one.
"""The resources with methods that return the HTTP response along with the model.

Methods are not duplicated: `Raw` runs each on a copy of its resource that records the last reply. Names
and types of the arguments stay the same. A test compares this list with the resources.
"""

import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from agentpay._sync.accounts import Accounts
from agentpay._sync.caller import Caller
from agentpay._sync.console import (
    AccountDetails,
    Approvals,
    Audit,
    Console,
    ServedRequests,
)
from agentpay._sync.deliveries import Deliveries, Events, RegisteredWebhooks
from agentpay._sync.identity import Identities
from agentpay._sync.keys import AgentKeys, OperatorKeys
from agentpay._sync.origins import Origins
from agentpay._sync.payments import Payments
from agentpay._sync.policies import Policies
from agentpay._sync.resource import Resource
from agentpay._sync.sessions import Sessions
from agentpay._sync.transfers import Transfers
from agentpay._sync.webhooks import Webhooks
from agentpay._options import Call
from agentpay._raw import RawResponse
from agentpay._requests import PreparedRequest, Reply

if TYPE_CHECKING:
    from agentpay._sync.client import AgentPay

P = ParamSpec("P")
T = TypeVar("T")


class _AsyncRecorder(Caller):
    """A caller that records the last reply."""

    reply: Reply

    def exchange(self, request: PreparedRequest, call: Call) -> tuple[Any, Reply]:
        model, self.reply = super().exchange(request, call)
        return model, self.reply


class RawResource:
    """Base of the raw resources; each wraps the resource whose methods it runs."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource


class Raw(Generic[P, T]):
    """A method that returns the raw response; `parse()` returns the result of the wrapped method."""

    def __init__(self, method: Callable[Concatenate[Any, P], T]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, raw: RawResource, owner: type) -> Callable[P, RawResponse[T]]:
        # Wrapped, so that `help` and `inspect.signature` show the method's documentation and arguments.
        @functools.wraps(self._method.__get__(raw._resource))  # noqa: SLF001 - of this module
        def call(*args: P.args, **kwargs: P.kwargs) -> RawResponse[T]:
            resource = copy.copy(raw._resource)  # noqa: SLF001
            usual = resource._caller  # noqa: SLF001
            recorder = resource._caller = _AsyncRecorder(usual.settings, usual.http)  # noqa: SLF001
            model = self._method(resource, *args, **kwargs)
            return RawResponse.of(recorder.reply, model)

        return call


class RawAccounts(RawResource):
    """`client.accounts`, whose methods return raw responses."""

    create: Final = Raw(Accounts.create)
    get: Final = Raw(Accounts.get)
    list: Final = Raw(Accounts.list)
    balance: Final = Raw(Accounts.balance)
    transactions: Final = Raw(Accounts.transactions)
    budget: Final = Raw(Accounts.budget)


class RawPolicies(RawResource):
    """`client.policies`, whose methods return raw responses."""

    get: Final = Raw(Policies.get)
    update: Final = Raw(Policies.update)
    replace: Final = Raw(Policies.replace)
    pause: Final = Raw(Policies.pause)
    resume: Final = Raw(Policies.resume)


class RawTransfers(RawResource):
    """`client.transfers`, whose methods return raw responses."""

    create: Final = Raw(Transfers.create)
    get: Final = Raw(Transfers.get)
    wait: Final = Raw(Transfers.wait)
    list: Final = Raw(Transfers.list)
    check: Final = Raw(Transfers.check)


class RawWebhooks(RawResource):
    """`client.webhooks`, whose methods return raw responses."""

    create: Final = Raw(Webhooks.create)


class RawSessions(RawResource):
    """`client.sessions`, whose methods return raw responses."""

    open: Final = Raw(Sessions.open)
    charge: Final = Raw(Sessions.charge)
    close: Final = Raw(Sessions.close)
    get: Final = Raw(Sessions.get)
    list: Final = Raw(Sessions.list)


class RawPayments(RawResource):
    """`client.payments`, whose methods return raw responses."""

    authorize: Final = Raw(Payments.authorize)
    get: Final = Raw(Payments.get)
    list: Final = Raw(Payments.list)
    report_outcome: Final = Raw(Payments.report_outcome)


class RawOrigins(RawResource):
    """`client.console.origins`, whose methods return raw responses."""

    list: Final = Raw(Origins.list)
    put: Final = Raw(Origins.put)
    get: Final = Raw(Origins.get)
    delete: Final = Raw(Origins.delete)


class RawAccountDetails(RawResource):
    """`client.console.accounts`, whose methods return raw responses."""

    list: Final = Raw(AccountDetails.list)
    get: Final = Raw(AccountDetails.get)
    allow_signing: Final = Raw(AccountDetails.allow_signing)


class RawAgentKeys(RawResource):
    """`client.console.agent_keys`, whose methods return raw responses."""

    create: Final = Raw(AgentKeys.create)
    list: Final = Raw(AgentKeys.list)
    revoke: Final = Raw(AgentKeys.revoke)


class RawOperatorKeys(RawResource):
    """`client.console.operator_keys`, whose methods return raw responses."""

    create: Final = Raw(OperatorKeys.create)
    list: Final = Raw(OperatorKeys.list)
    revoke: Final = Raw(OperatorKeys.revoke)


class RawApprovals(RawResource):
    """`client.console.approvals`, whose methods return raw responses."""

    list: Final = Raw(Approvals.list)
    approve: Final = Raw(Approvals.approve)
    reject: Final = Raw(Approvals.reject)


class RawRegisteredWebhooks(RawResource):
    """`client.console.webhooks`, whose methods return raw responses."""

    list: Final = Raw(RegisteredWebhooks.list)
    delete: Final = Raw(RegisteredWebhooks.delete)
    rotate_secret: Final = Raw(RegisteredWebhooks.rotate_secret)


class RawEvents(RawResource):
    """`client.console.events`, whose methods return raw responses."""

    list: Final = Raw(Events.list)
    replay: Final = Raw(Events.replay)


class RawDeliveries(RawResource):
    """`client.console.deliveries`, whose methods return raw responses."""

    list: Final = Raw(Deliveries.list)
    replay: Final = Raw(Deliveries.replay)


class RawAudit(RawResource):
    """`client.console.audit`, whose methods return raw responses."""

    list: Final = Raw(Audit.list)


class RawServedRequests(RawResource):
    """`client.console.requests`, whose methods return raw responses."""

    list: Final = Raw(ServedRequests.list)


class RawConsole(RawResource):
    """`client.console`, whose methods return raw responses."""

    summary: Final = Raw(Console.summary)
    sign_in: Final = Raw(Console.sign_in)
    sign_in_code: Final = Raw(Console.sign_in_code)

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.accounts: RawAccountDetails = RawAccountDetails(console.accounts)
        self.agent_keys: RawAgentKeys = RawAgentKeys(console.agent_keys)
        self.operator_keys: RawOperatorKeys = RawOperatorKeys(console.operator_keys)
        self.approvals: RawApprovals = RawApprovals(console.approvals)
        self.webhooks: RawRegisteredWebhooks = RawRegisteredWebhooks(console.webhooks)
        self.events: RawEvents = RawEvents(console.events)
        self.deliveries: RawDeliveries = RawDeliveries(console.deliveries)
        self.audit: RawAudit = RawAudit(console.audit)
        self.requests: RawServedRequests = RawServedRequests(console.requests)
        self.origins: RawOrigins = RawOrigins(console.origins)


class RawAgentPay(RawResource):
    """The resources of a client, whose methods return a `RawResponse`."""

    whoami: Final = Raw(Identities.whoami)

    def __init__(self, client: "AgentPay") -> None:
        super().__init__(Identities(client._caller))  # noqa: SLF001
        self.accounts: RawAccounts = RawAccounts(client.accounts)
        self.policies: RawPolicies = RawPolicies(client.policies)
        self.transfers: RawTransfers = RawTransfers(client.transfers)
        self.webhooks: RawWebhooks = RawWebhooks(client.webhooks)
        self.sessions: RawSessions = RawSessions(client.sessions)
        self.payments: RawPayments = RawPayments(client.payments)
        self.console: RawConsole = RawConsole(client.console)
