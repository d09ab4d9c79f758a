"""Finds an operator's objects by text, and reports spend by hour or day (interface CO23, CO24)."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from agentpay.contract import codec
from agentpay.contract.accounts import Account
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
from agentpay.contract.sessions import Session
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import from_micro
from agentpay_server.ledger.accounts import own_account
from agentpay_server.ledger.context import Context
from agentpay_server.operators import search_store as store
from agentpay_server.platform.clock import SECOND_US, from_us, to_us
from agentpay_server.platform.principals import Principal

T = TypeVar("T")

_AMOUNT: Final = re.compile(r"(\d{1,12})(?:\.(\d{1,6}))?(?: ?usdc)?\Z", re.ASCII | re.IGNORECASE)
_HOUR_US: Final = 3600 * SECOND_US
_PERIOD_US: Final = {SpendPeriod.HOUR: _HOUR_US, SpendPeriod.DAY: 24 * _HOUR_US}
_DEFAULT_US: Final = {SpendPeriod.HOUR: 24 * _HOUR_US, SpendPeriod.DAY: 30 * 24 * _HOUR_US}


class SearchDesk:
    """The features that own the objects read them, because a feature does not import another."""

    def __init__(
        self,
        context: Context,
        *,
        accounts: Callable[[Principal, Sequence[str]], Awaitable[tuple[Account, ...]]],
        transfer: Callable[[Principal, str], Awaitable[Transfer]],
        session: Callable[[Principal, str], Awaitable[Session]],
    ) -> None:
        self._context = context
        self._accounts = accounts
        self._transfer = transfer
        self._session = session

    async def search(self, principal: Principal, query: Search) -> SearchResult:
        """Return up to `limit` objects of each kind.

        Raises:
            Problem: `chain_unavailable`, if accounts were found whose balance cannot be read.
        """
        accounts, transfers, sessions, events = await self._context.database.read(
            store.find, principal.operator_id, query.q, _micro(query.q), query.limit
        )
        return SearchResult(
            accounts=await self._accounts(principal, accounts) if accounts else (),
            transfers=tuple([await self._transfer(principal, each) for each in transfers]),
            sessions=tuple([await self._session(principal, each) for each in sessions]),
            events=tuple(codec.structure(codec.parse_json(body.encode()), Event) for body in events),
        )

    async def spend(self, principal: Principal, query: ReadSpend) -> SpendReport:
        """Return all periods from `since` to now, the newest 1,000 at most.

        Raises:
            Problem: `not_found`: no such account of the operator.
        """
        database, now_us = self._context.database, self._context.clock.now_us()
        if query.account_id is not None:
            await database.read(own_account, principal, query.account_id)
        bucket_us = _PERIOD_US[query.by]
        since_us = now_us - _DEFAULT_US[query.by] if query.since is None else to_us(query.since)
        last = now_us // bucket_us
        first = max(since_us // bucket_us, last - SPEND_PERIODS_MAX + 1)
        spent, rejected = await database.read(
            store.spend, principal.operator_id, query.account_id, first * bucket_us, bucket_us
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


def _micro(q: str) -> int | None:
    """Return the amount that a text is, in micro-USDC."""
    match = _AMOUNT.match(q)
    return None if match is None else int(match[1]) * 1_000_000 + int((match[2] or "").ljust(6, "0"))
