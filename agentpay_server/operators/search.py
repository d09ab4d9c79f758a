"""Finds an operator's objects by text, and reports spend by hour or day (interface CO23, CO24)."""

from functools import partial
from typing import Final

from agentpay.contract import codec
from agentpay.contract.events import Event
from agentpay.contract.search import (
    SPEND_PERIODS_MAX,
    ReadSpend,
    Search,
    SearchResult,
    SpendEntry,
    SpendPeriod,
    SpendReport,
)
from agentpay.contract.usdc import from_micro
from agentpay_server.accounts import feature as accounts
from agentpay_server.feature import Core
from agentpay_server.ledger.accounts import own_account
from agentpay_server.operators import search_store as store
from agentpay_server.platform.clock import SECOND_US, end_of_millisecond_us, from_us
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import feature as sessions
from agentpay_server.transfers import feature as transfers

_HOUR_US: Final = 3600 * SECOND_US
_MILLISECOND_END_US: Final = 999
_PERIOD_US: Final = {SpendPeriod.HOUR: _HOUR_US, SpendPeriod.DAY: 24 * _HOUR_US}
_DEFAULT_PERIODS: Final = {SpendPeriod.HOUR: 24, SpendPeriod.DAY: 30}


class SearchDesk:
    def __init__(self, core: Core) -> None:
        self._context = core.context
        self._accounts = core.of(accounts.FEATURE).accounts
        self._history = core.of(accounts.FEATURE).history
        self._transfers = core.of(transfers.FEATURE).transfers
        self._sessions = core.of(sessions.FEATURE).sessions

    async def search(self, principal: Principal, query: Search) -> SearchResult:
        """Return up to `limit` objects of each kind."""
        found = await self._context.database.read(store.find, principal.operator_id, query.q, query.limit)
        parts_since_us = found.parts_since_us
        return SearchResult(
            accounts=await self._accounts.some_details(principal, found.accounts) if found.accounts else (),
            transfers=tuple([await self._transfers.get(principal, each) for each in found.transfers]),
            sessions=tuple([await self._sessions.get(principal, each) for each in found.sessions]),
            deposits=tuple(map(self._history.transaction, found.deposits)),
            events=tuple(codec.structure(codec.parse_json(body.encode()), Event) for body in found.events),
            parts_since=None if parts_since_us is None else from_us(parts_since_us),
        )

    async def spend(self, principal: Principal, query: ReadSpend) -> SpendReport:
        """Return all periods from `since` to `until`, the newest 1,000 at most.

        Raises:
            Problem: `not_found`: no such account of the operator.
        """
        database, now_us = self._context.database, self._context.clock.now_us()
        if query.account_id is not None:
            await database.read(own_account, principal, query.account_id)
        bucket_us = _PERIOD_US[query.by]
        until_us = now_us if query.until is None else end_of_millisecond_us(query.until)
        last = store.period_of(until_us, bucket_us)
        if query.since is None:
            first = last - _DEFAULT_PERIODS[query.by]
            since_us = first * bucket_us + _MILLISECOND_END_US
        else:
            since_us = end_of_millisecond_us(query.since)
            first = max(store.period_of(since_us + 1, bucket_us), last - SPEND_PERIODS_MAX + 1)
        spent, rejected = await database.read(
            partial(store.spend, since_us=since_us, until_us=until_us, bucket_us=bucket_us),
            principal.operator_id,
            query.account_id,
        )
        return SpendReport(
            data=tuple(
                SpendEntry(
                    at=from_us(period * bucket_us),
                    settled_usdc=from_micro(spent.get(period, 0)),
                    rejected=rejected.get(period, 0),
                )
                for period in range(first, last + 1)
            )
        )
