"""The resources once more, with methods that return the response beside the model.

A method is not written twice: `AsyncRaw` runs it on a copy of its resource that notes the last reply. Its
arguments keep their names and types. A test holds this list against the resources.
"""

import copy
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from agentpay._async.accounts import AsyncAccounts
from agentpay._async.caller import AsyncCaller
from agentpay._async.policies import AsyncPolicies
from agentpay._async.resource import AsyncResource
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
    """A caller that notes the last reply."""

    reply: Reply

    async def exchange(self, request: PreparedRequest, call: Call) -> tuple[Any, Reply]:
        model, self.reply = await super().exchange(request, call)
        return model, self.reply


class AsyncRawResource:
    """Base of the raw resources: they hold the resource whose methods they run."""

    def __init__(self, resource: AsyncResource) -> None:
        self._resource = resource


class AsyncRaw(Generic[P, T]):
    """A method of a resource that returns the response, of which `parse()` is what the method returns."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, raw: AsyncRawResource, owner: type) -> Callable[P, Awaitable[RawResponse[T]]]:
        async def call(*args: P.args, **kwargs: P.kwargs) -> RawResponse[T]:
            resource = copy.copy(raw._resource)  # noqa: SLF001 - of this module
            usual = resource._caller  # noqa: SLF001
            recorder = resource._caller = _AsyncRecorder(usual.settings, usual.http)  # noqa: SLF001
            model = await self._method(resource, *args, **kwargs)
            return RawResponse.of(recorder.reply, model)

        return call


class AsyncRawAccounts(AsyncRawResource):
    """`client.accounts`, with responses."""

    create: Final = AsyncRaw(AsyncAccounts.create)
    get: Final = AsyncRaw(AsyncAccounts.get)
    list: Final = AsyncRaw(AsyncAccounts.list)
    balance: Final = AsyncRaw(AsyncAccounts.balance)
    transactions: Final = AsyncRaw(AsyncAccounts.transactions)


class AsyncRawPolicies(AsyncRawResource):
    """`client.policies`, with responses."""

    get: Final = AsyncRaw(AsyncPolicies.get)
    update: Final = AsyncRaw(AsyncPolicies.update)
    replace: Final = AsyncRaw(AsyncPolicies.replace)
    pause: Final = AsyncRaw(AsyncPolicies.pause)
    resume: Final = AsyncRaw(AsyncPolicies.resume)


class AsyncRawTransfers(AsyncRawResource):
    """`client.transfers`, with responses."""

    create: Final = AsyncRaw(AsyncTransfers.create)
    get: Final = AsyncRaw(AsyncTransfers.get)
    wait: Final = AsyncRaw(AsyncTransfers.wait)


class AsyncRawWebhooks(AsyncRawResource):
    """`client.webhooks`, with responses."""

    create: Final = AsyncRaw(AsyncWebhooks.create)


class AsyncRawAgentPay:
    """The resources of a client, whose methods return a `RawResponse`."""

    def __init__(self, client: "AsyncAgentPay") -> None:
        self.accounts: AsyncRawAccounts = AsyncRawAccounts(client.accounts)
        self.policies: AsyncRawPolicies = AsyncRawPolicies(client.policies)
        self.transfers: AsyncRawTransfers = AsyncRawTransfers(client.transfers)
        self.webhooks: AsyncRawWebhooks = AsyncRawWebhooks(client.webhooks)
