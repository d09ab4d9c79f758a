# Generated from _async by scripts/unasync.py. Edit that one.
"""The implementation of `client.whoami`, `client.summary`, `client.search` and `client.spend`, extensions."""

from datetime import datetime
from typing import Literal, Unpack

from agentpay._sync.resource import Resource
from agentpay._calls.options import CallOptions
from agentpay.contract.ext import console, identity, search
from agentpay.contract.ext.console import ConsoleSummary
from agentpay.contract.ext.identity import Identity
from agentpay.contract.ext.search import SearchResult, SpendPeriod, SpendReport


class Identities(Resource):
    """Calls about the client's own key and its operator."""

    def whoami(self, **options: Unpack[CallOptions]) -> Identity:
        """Read the identity of this client's key, and whether its money is real.

        An extension.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotSupportedError: the service does not offer this extension.
        """
        return self._call(identity.WHO_AM_I, locals(), options)

    def summary(self, **options: Unpack[CallOptions]) -> ConsoleSummary:
        """Count accounts, pending approvals, undelivered deliveries and open sessions.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._call(console.GET_SUMMARY, locals(), options)

    def search(
        self, q: str, *, limit: int | None = None, **options: Unpack[CallOptions]
    ) -> SearchResult:
        """Find accounts, transfers, sessions, deposits and events.

        Args:
            q: part of a name, handle, memo or seller's origin; an identifier, address, signature,
                idempotency key or error code; an amount in USDC; or the name of an event type.
            limit: how many of each kind, 1 to 20; 5 by default.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._call(search.SEARCH, locals(), options)

    def spend(
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
        return self._call(search.READ_SPEND, locals(), options)
