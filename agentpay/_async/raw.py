"""The resources with methods that return the HTTP response along with the model.

Methods are not duplicated: `AsyncRaw` runs each on a copy of its resource that records the last reply. Names
and types of the arguments stay the same. A test compares this list with the resources.
"""

import copy
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from agentpay._async.accounts import AsyncAccounts
from agentpay._async.caller import AsyncCaller
from agentpay._async.console import (
    AsyncAccountDetails,
    AsyncApprovals,
    AsyncAudit,
    AsyncConsole,
    AsyncServedRequests,
)
from agentpay._async.deliveries import AsyncDeliveries, AsyncEvents, AsyncRegisteredWebhooks
from agentpay._async.identity import AsyncIdentities
from agentpay._async.keys import AsyncAgentKeys, AsyncOperatorKeys
from agentpay._async.origins import AsyncOrigins
from agentpay._async.payments import AsyncPayments
from agentpay._async.policies import AsyncPolicies
from agentpay._async.resource import AsyncResource
from agentpay._async.sessions import AsyncSessions
from agentpay._async.transfers import AsyncTransfers
from agentpay._async.webhooks import AsyncWebhooks
from agentpay._options import Call
from agentpay._raw import RawResponse
from agentpay._requests import PreparedRequest, Reply

if TYPE_CHECKING:
    from agentpay._async.client import AsyncAgentPay

P = ParamSpec("P")
T = TypeVar("T")


class _AsyncRecorder(AsyncCaller):
    """A caller that records the last reply."""

    reply: Reply

    async def exchange(self, request: PreparedRequest, call: Call) -> tuple[Any, Reply]:
        model, self.reply = await super().exchange(request, call)
        return model, self.reply


class AsyncRawResource:
    """Base of the raw resources; each wraps the resource whose methods it runs."""

    def __init__(self, resource: AsyncResource) -> None:
        self._resource = resource


class AsyncRaw(Generic[P, T]):
    """A method that returns the raw response; `parse()` returns the result of the wrapped method."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, raw: AsyncRawResource, owner: type) -> Callable[P, Awaitable[RawResponse[T]]]:
        # Wrapped, so that `help` and `inspect.signature` show the method's documentation and arguments.
        @functools.wraps(self._method.__get__(raw._resource))  # noqa: SLF001 - of this module
        async def call(*args: P.args, **kwargs: P.kwargs) -> RawResponse[T]:
            resource = copy.copy(raw._resource)  # noqa: SLF001
            usual = resource._caller  # noqa: SLF001
            recorder = resource._caller = _AsyncRecorder(usual.settings, usual.http)  # noqa: SLF001
            model = await self._method(resource, *args, **kwargs)
            return RawResponse.of(recorder.reply, model)

        return call


class AsyncRawAccounts(AsyncRawResource):
    """`client.accounts`, whose methods return raw responses."""

    create: Final = AsyncRaw(AsyncAccounts.create)
    get: Final = AsyncRaw(AsyncAccounts.get)
    list: Final = AsyncRaw(AsyncAccounts.list)
    balance: Final = AsyncRaw(AsyncAccounts.balance)
    transactions: Final = AsyncRaw(AsyncAccounts.transactions)
    budget: Final = AsyncRaw(AsyncAccounts.budget)


class AsyncRawPolicies(AsyncRawResource):
    """`client.policies`, whose methods return raw responses."""

    get: Final = AsyncRaw(AsyncPolicies.get)
    update: Final = AsyncRaw(AsyncPolicies.update)
    replace: Final = AsyncRaw(AsyncPolicies.replace)
    pause: Final = AsyncRaw(AsyncPolicies.pause)
    resume: Final = AsyncRaw(AsyncPolicies.resume)


class AsyncRawTransfers(AsyncRawResource):
    """`client.transfers`, whose methods return raw responses."""

    create: Final = AsyncRaw(AsyncTransfers.create)
    get: Final = AsyncRaw(AsyncTransfers.get)
    wait: Final = AsyncRaw(AsyncTransfers.wait)
    list: Final = AsyncRaw(AsyncTransfers.list)
    check: Final = AsyncRaw(AsyncTransfers.check)


class AsyncRawWebhooks(AsyncRawResource):
    """`client.webhooks`, whose methods return raw responses."""

    create: Final = AsyncRaw(AsyncWebhooks.create)


class AsyncRawSessions(AsyncRawResource):
    """`client.sessions`, whose methods return raw responses."""

    open: Final = AsyncRaw(AsyncSessions.open)
    charge: Final = AsyncRaw(AsyncSessions.charge)
    close: Final = AsyncRaw(AsyncSessions.close)
    get: Final = AsyncRaw(AsyncSessions.get)
    list: Final = AsyncRaw(AsyncSessions.list)


class AsyncRawPayments(AsyncRawResource):
    """`client.payments`, whose methods return raw responses."""

    authorize: Final = AsyncRaw(AsyncPayments.authorize)
    get: Final = AsyncRaw(AsyncPayments.get)
    list: Final = AsyncRaw(AsyncPayments.list)
    report_outcome: Final = AsyncRaw(AsyncPayments.report_outcome)


class AsyncRawOrigins(AsyncRawResource):
    """`client.console.origins`, whose methods return raw responses."""

    list: Final = AsyncRaw(AsyncOrigins.list)
    put: Final = AsyncRaw(AsyncOrigins.put)
    get: Final = AsyncRaw(AsyncOrigins.get)
    delete: Final = AsyncRaw(AsyncOrigins.delete)


class AsyncRawAccountDetails(AsyncRawResource):
    """`client.console.accounts`, whose methods return raw responses."""

    list: Final = AsyncRaw(AsyncAccountDetails.list)
    get: Final = AsyncRaw(AsyncAccountDetails.get)
    allow_signing: Final = AsyncRaw(AsyncAccountDetails.allow_signing)


class AsyncRawAgentKeys(AsyncRawResource):
    """`client.console.agent_keys`, whose methods return raw responses."""

    create: Final = AsyncRaw(AsyncAgentKeys.create)
    list: Final = AsyncRaw(AsyncAgentKeys.list)
    revoke: Final = AsyncRaw(AsyncAgentKeys.revoke)


class AsyncRawOperatorKeys(AsyncRawResource):
    """`client.console.operator_keys`, whose methods return raw responses."""

    create: Final = AsyncRaw(AsyncOperatorKeys.create)
    list: Final = AsyncRaw(AsyncOperatorKeys.list)
    revoke: Final = AsyncRaw(AsyncOperatorKeys.revoke)


class AsyncRawApprovals(AsyncRawResource):
    """`client.console.approvals`, whose methods return raw responses."""

    list: Final = AsyncRaw(AsyncApprovals.list)
    approve: Final = AsyncRaw(AsyncApprovals.approve)
    reject: Final = AsyncRaw(AsyncApprovals.reject)


class AsyncRawRegisteredWebhooks(AsyncRawResource):
    """`client.console.webhooks`, whose methods return raw responses."""

    list: Final = AsyncRaw(AsyncRegisteredWebhooks.list)
    delete: Final = AsyncRaw(AsyncRegisteredWebhooks.delete)
    rotate_secret: Final = AsyncRaw(AsyncRegisteredWebhooks.rotate_secret)


class AsyncRawEvents(AsyncRawResource):
    """`client.console.events`, whose methods return raw responses."""

    list: Final = AsyncRaw(AsyncEvents.list)
    replay: Final = AsyncRaw(AsyncEvents.replay)


class AsyncRawDeliveries(AsyncRawResource):
    """`client.console.deliveries`, whose methods return raw responses."""

    list: Final = AsyncRaw(AsyncDeliveries.list)
    replay: Final = AsyncRaw(AsyncDeliveries.replay)


class AsyncRawAudit(AsyncRawResource):
    """`client.console.audit`, whose methods return raw responses."""

    list: Final = AsyncRaw(AsyncAudit.list)


class AsyncRawServedRequests(AsyncRawResource):
    """`client.console.requests`, whose methods return raw responses."""

    list: Final = AsyncRaw(AsyncServedRequests.list)


class AsyncRawConsole(AsyncRawResource):
    """`client.console`, whose methods return raw responses."""

    summary: Final = AsyncRaw(AsyncConsole.summary)
    sign_in: Final = AsyncRaw(AsyncConsole.sign_in)
    sign_in_code: Final = AsyncRaw(AsyncConsole.sign_in_code)

    def __init__(self, console: AsyncConsole) -> None:
        super().__init__(console)
        self.accounts: AsyncRawAccountDetails = AsyncRawAccountDetails(console.accounts)
        self.agent_keys: AsyncRawAgentKeys = AsyncRawAgentKeys(console.agent_keys)
        self.operator_keys: AsyncRawOperatorKeys = AsyncRawOperatorKeys(console.operator_keys)
        self.approvals: AsyncRawApprovals = AsyncRawApprovals(console.approvals)
        self.webhooks: AsyncRawRegisteredWebhooks = AsyncRawRegisteredWebhooks(console.webhooks)
        self.events: AsyncRawEvents = AsyncRawEvents(console.events)
        self.deliveries: AsyncRawDeliveries = AsyncRawDeliveries(console.deliveries)
        self.audit: AsyncRawAudit = AsyncRawAudit(console.audit)
        self.requests: AsyncRawServedRequests = AsyncRawServedRequests(console.requests)
        self.origins: AsyncRawOrigins = AsyncRawOrigins(console.origins)


class AsyncRawAgentPay(AsyncRawResource):
    """The resources of a client, whose methods return a `RawResponse`."""

    whoami: Final = AsyncRaw(AsyncIdentities.whoami)

    def __init__(self, client: "AsyncAgentPay") -> None:
        super().__init__(AsyncIdentities(client._caller))  # noqa: SLF001
        self.accounts: AsyncRawAccounts = AsyncRawAccounts(client.accounts)
        self.policies: AsyncRawPolicies = AsyncRawPolicies(client.policies)
        self.transfers: AsyncRawTransfers = AsyncRawTransfers(client.transfers)
        self.webhooks: AsyncRawWebhooks = AsyncRawWebhooks(client.webhooks)
        self.sessions: AsyncRawSessions = AsyncRawSessions(client.sessions)
        self.payments: AsyncRawPayments = AsyncRawPayments(client.payments)
        self.console: AsyncRawConsole = AsyncRawConsole(client.console)
