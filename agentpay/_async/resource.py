"""The base of all resources: turns a prepared request into the model of its response, or into pages.

Every method of a resource takes `CallOptions` and raises the exceptions of `agentpay.errors`; docstrings list
only errors with a specific meaning.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from agentpay._async.caller import AsyncCaller
from agentpay._async.paging import AsyncPages
from agentpay._options import CallOptions
from agentpay._requests import PreparedRequest, prepare
from agentpay.contract.endpoints import Endpoint
from agentpay.contract.pages import PageBody


class AsyncResource:
    """Base of the resources, which depend only on a caller, not on the client."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def _call(self, request: PreparedRequest, options: CallOptions) -> Any:  # noqa: ANN401 - the model
        model, _ = await self._caller.exchange(request, self._caller.begin(options))
        return model

    def _pages(
        self,
        endpoint: Endpoint,
        options: CallOptions,
        *,
        query: Mapping[str, Any],
        path: Mapping[str, str] | None = None,
    ) -> AsyncPages[Any]:
        """Return a list; of `query`, a method's `locals()`, the endpoint's query declares what is sent."""
        declared = () if endpoint.query is None else attrs.fields_dict(endpoint.query)
        given = {name: value for name, value in query.items() if name in declared}

        async def fetch(cursor: str | None) -> PageBody[Any]:
            request = prepare(endpoint, path=path, query={**given, "cursor": cursor})
            body: PageBody[Any] = await self._call(request, options)
            return body

        return AsyncPages(fetch, query["cursor"])
