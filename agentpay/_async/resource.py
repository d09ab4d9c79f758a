"""The base of all resources: turns an endpoint and arguments into the model of the response, or into pages.

Every method of a resource takes `CallOptions` and raises the exceptions of `agentpay.errors`; docstrings list
only errors with a specific meaning.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from agentpay._async.caller import AsyncCaller
from agentpay._async.paging import AsyncPages
from agentpay._calls.options import CallOptions, CallSettings
from agentpay._calls.requests import prepare
from agentpay.contract.endpoints import Endpoint, M
from agentpay.contract.pages import PageBody
from agentpay.contract.responses import RawResponse
from agentpay.contract.suggestions import no_attribute

T = TypeVar("T")


class AsyncResource:
    """Base of the resources, which depend only on a caller, not on the client."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    if not TYPE_CHECKING:  # type checkers would accept every name

        def __getattr__(self, name: str) -> object:
            """Raise the error for a method that does not exist. It names the existing ones."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property, whose own error this raises
            raise no_attribute(self, name, [each for each in dir(self) if not each.startswith("_")])

    async def _call(self, endpoint: Endpoint[M], arguments: Mapping[str, object], options: CallOptions) -> M:
        """Return the response to the arguments of a method, its `locals()`, as the endpoint declares both."""
        model, _ = await self._exchange(endpoint, arguments, self._caller.begin(options, arguments))
        return model

    async def _exchange(
        self,
        endpoint: Endpoint[M],
        arguments: Mapping[str, object],
        call: CallSettings,
        *,
        if_match: str | None = None,
    ) -> tuple[M, RawResponse]:
        """Do what `_call` does, within a call that has begun; return the reply, too."""
        return await self._caller.exchange(prepare(endpoint, arguments, if_match=if_match), call)

    def _pages(
        self, endpoint: Endpoint[PageBody[T]], arguments: Mapping[str, Any], options: CallOptions
    ) -> AsyncPages[T]:
        """Return a list, whose pages are fetched with a method's arguments; see `_call`."""

        async def fetch(cursor: str | None) -> PageBody[T]:
            return await self._call(endpoint, {**arguments, "cursor": cursor}, options)

        return AsyncPages(fetch, arguments["cursor"])
