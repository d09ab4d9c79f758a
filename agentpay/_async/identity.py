"""The implementation of `client.whoami`, `client.summary`, `client.search` and `client.spend`, extensions."""

from datetime import datetime
from typing import Literal, Unpack

from agentpay._async.resource import AsyncResource
from agentpay._options import CallOptions
from agentpay._requests import prepare
from agentpay.contract import console, identity, search
from agentpay.contract.console import ConsoleSummary
from agentpay.contract.identity import Identity
from agentpay.contract.search import SearchResult, SpendPeriod, SpendReport


class AsyncIdentities(AsyncResource):
    """Calls about the client's own key and its operator."""

    async def whoami(self, **options: Unpack[CallOptions]) -> Identity:
        """Read the identity of this client's key, and whether its money is real.

        An extension.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotSupportedError: the service does not offer this extension.
        """
        answer: Identity = await self._call(prepare(identity.WHO_AM_I), options)
        return answer

    async def summary(self, **options: Unpack[CallOptions]) -> ConsoleSummary:
        """Count accounts, pending approvals, undelivered deliveries and open sessions.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        summary: ConsoleSummary = await self._call(prepare(console.GET_SUMMARY), options)
        return summary

    async def search(
        self, q: str, *, limit: int | None = None, **options: Unpack[CallOptions]
    ) -> SearchResult:
        """Find accounts, transfers, sessions, deposits and events.

        Args:
            q: part of a name, handle, memo or seller's origin; an identifier, address, signature,
                idempotency key or error code; an amount in USDC; or the name of an event type.
            limit: how many of each kind, 1 to 20; 5 by default.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        found: SearchResult = await self._call(
            prepare(search.SEARCH, query={"q": q, "limit": limit}), options
        )
        return found

    async def spend(
        self,
        *,
        account_id: str | None = None,
        by: SpendPeriod | Literal["hour", "day"] = "day",
        since: datetime | None = None,
        until: datetime | None = None,
        **options: Unpack[CallOptions],
    ) -> SpendReport:
        """Sum what was settled, and count rejections, by hour or day in UTC.

        Args:
            account_id: only spends of this account.
            by: `hour` or `day`.
            since: only what is after this time, with a UTC offset; by default 24 hours, or 30 days for `day`.
            until: only what is up to and including this time, with a UTC offset; by default now.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
        """
        query = {"account_id": account_id, "by": by, "since": since, "until": until}
        report: SpendReport = await self._call(prepare(search.READ_SPEND, query=query), options)
        return report
