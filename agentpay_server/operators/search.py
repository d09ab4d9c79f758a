"""Finds an operator's objects by text, and reports spend by hour or day (interface CO23, CO24)."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
    Select,
    Table,
    bindparam,
    func,
    literal_column,
    or_,
    select,
)

from agentpay.contract import codec
from agentpay.contract.events import Event
from agentpay.contract.ext.search import (
    SPEND_PERIODS_MAX,
    ReadSpend,
    Search,
    SearchResult,
    SpendEntry,
    SpendPeriod,
    SpendReport,
)
from agentpay.contract.usdc import from_micro
from agentpay_server.accounts import feature as accounts_feature
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import (
    accounts,
    entries,
    events,
    payments,
    sessions,
    transfers,
)
from agentpay_server.feature import Core
from agentpay_server.ledger import finding
from agentpay_server.ledger.accounts import ENTRIES, own_account
from agentpay_server.ledger.finding import OPERATOR, Q
from agentpay_server.platform.clock import SECOND_US, end_of_millisecond_us, from_us
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import feature as sessions_feature
from agentpay_server.transfers import feature as transfers_feature

# Everything is looked for by an index, or among all accounts. Only parts of memos and origins have no index,
# and are looked for in the newest rows. Sums read the events of the time that they cover.

NEWEST: Final = 10_000
"""How many of the newest rows are searched for parts of memos and origins."""

_PATTERN: Final[BindParameter[str]] = bindparam("pattern")


_Statement = tuple[Select[Any], frozenset[str]]
"""A statement, and the names of its parameters and constants."""


def _first(statement: Select[Any], table: Table) -> _Statement:
    """Return the statement for the newest rows."""
    limited = statement.order_by(table.c.seq.desc()).limit(bindparam("count"))
    return limited, frozenset(limited.compile().params)


def _each(found: Select[Any], table: Table, conditions: Mapping[str, Any]) -> tuple[_Statement, ...]:
    return tuple(_first(statement, table) for statement in finding.each(found, table, conditions))


def _like(column: Column[Any]) -> Any:  # noqa: ANN401 - a condition
    return column.ilike(_PATTERN, escape="\\")


def _newest(table: Table) -> Any:  # noqa: ANN401 - an alias of its newest rows
    rows = select(table).where(table.c.operator_id == OPERATOR).order_by(table.c.seq.desc())
    return rows.limit(NEWEST).subquery()


_transfers, _payments = map(_newest, (transfers, payments))
_ACCOUNTS: Final = (
    _first(
        select(accounts.c.account_id).where(
            accounts.c.operator_id == OPERATOR,
            or_(
                _like(accounts.c.name),
                _like(accounts.c.handle),
                accounts.c.account_id == Q,
                accounts.c.chain_address == Q,
                accounts.c.usdc_token_account == Q,
            ),
        ),
        accounts,
    ),
)
_PARTS: Final = (
    _first(select(_transfers.c.transfer_id).where(_like(_transfers.c.memo)), _transfers),
    _first(select(_payments.c.transfer_id).where(_like(_payments.c.origin)), _payments),
)
_TRANSFERS: Final = (*_each(select(transfers.c.transfer_id), transfers, finding.TRANSFERS), *_PARTS)
_SESSIONS: Final = _each(select(sessions.c.session_id), sessions, finding.SESSIONS)
_DEPOSITS: Final = _each(select(entries).where(finding.IS_DEPOSIT), entries, finding.DEPOSITS)
_EVENTS: Final = _each(
    select(events.c.body),
    events,
    {name: events.c[name] == Q for name in ("event_id", "transfer_id", "session_id", "type")},
)
_OLDEST_OF_NEWEST: Final = (
    select(transfers.c.created_us)
    .where(transfers.c.operator_id == OPERATOR)
    .order_by(transfers.c.seq.desc())
    .offset(NEWEST)
    .limit(1)
)


_KINDS: Final = {
    "accounts": _ACCOUNTS,
    "transfers": _TRANSFERS,
    "sessions": _SESSIONS,
    "deposits": _DEPOSITS,
    "events": _EVENTS,
}


def find(
    connection: Connection, operator_id: str, q: str, count: int
) -> tuple[dict[str, list[Any]], int | None]:
    """Return `count` rows of each kind, newest first for each way to find it: identifiers, entries, bodies.

    Also returns until when parts of memos and origins were not looked for; None if in all.
    """
    escaped = q.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    values = {**finding.values(q), "pattern": f"%{escaped}%", "operator_id": operator_id, "count": count}

    def first(statements: tuple[_Statement, ...]) -> list[Any]:
        found: dict[Any, Any] = {}
        for statement, names in statements:
            if len(found) < count:
                given = {name: values[name] for name in values.keys() & names}
                found |= {row[0]: row for row in connection.execute(statement, given)}
        return list(found.values())[:count]

    oldest = connection.execute(_OLDEST_OF_NEWEST, {"operator_id": operator_id}).scalar_one_or_none()
    return {kind: first(statements) for kind, statements in _KINDS.items()}, oldest


_BUCKET: Final[BindParameter[int]] = bindparam("bucket_us", type_=BigInteger)


def period_of(moment_us: Any, bucket_us: Any) -> Any:  # noqa: ANN401 - a number, or a column
    """Return the number of the period since 1970 that a moment belongs to.

    A period has what is after its start, up to and including its end, each to the millisecond that is shown.
    """
    return (moment_us - 1_000) // bucket_us


_PERIOD: Final = period_of(events.c.created_us, _BUCKET).label("period")


def _by_period(total: Any, kind: str) -> Any:  # noqa: ANN401 - an aggregate, and its statement
    statement = select(_PERIOD, total).where(
        events.c.operator_id == OPERATOR,
        events.c.created_us > bindparam("since_us", type_=BigInteger),
        events.c.created_us <= bindparam("until_us", type_=BigInteger),
        events.c.type == literal_column(f"'{kind}'"),
    )
    return statement.group_by(literal_column("1"))


_SPENT: Final = {
    "transfers": _by_period(func.sum(transfers.c.amount), "transfer.settled").join(
        transfers, transfers.c.transfer_id == events.c.transfer_id
    ),
    "sessions": _by_period(func.sum(sessions.c.running_total), "session.settled").join(
        sessions, sessions.c.session_id == events.c.session_id
    ),
}
_REJECTED: Final = {"rejected": _by_period(func.count(), "transfer.rejected")}


def _of_account(statements: Mapping[str, Select[Any]]) -> dict[str, Select[Any]]:
    of = events.c.account_id == bindparam("account_id")
    return {name: statement.where(of) for name, statement in statements.items()}


_SPENT_BY_ONE: Final = _of_account(_SPENT)
_REJECTED_OF_ONE: Final = _of_account(_REJECTED)


def spend(
    connection: Connection,
    operator_id: str,
    account_id: str | None,
    *,
    since_us: int,
    until_us: int,
    bucket_us: int,
) -> tuple[dict[int, int], dict[int, int]]:
    """Return settled micro-USDC and the number of rejections, by the number of the period since 1970."""
    values: dict[str, object] = {
        "operator_id": operator_id,
        "since_us": since_us,
        "until_us": until_us,
        "bucket_us": bucket_us,
    }
    if account_id is not None:
        values["account_id"] = account_id
    spent, rejected = (_SPENT, _REJECTED) if account_id is None else (_SPENT_BY_ONE, _REJECTED_OF_ONE)
    return _added(connection, spent, values), _added(connection, rejected, values)


def _added(
    connection: Connection, statements: Mapping[str, Select[Any]], values: Mapping[str, object]
) -> dict[int, int]:
    sums: dict[int, int] = {}
    for statement in statements.values():
        for period, total in connection.execute(statement, values):
            sums[int(period)] = sums.get(int(period), 0) + int(total)
    return sums


_HOUR_US: Final = 3600 * SECOND_US
_MILLISECOND_END_US: Final = 999
_PERIOD_US: Final = {SpendPeriod.HOUR: _HOUR_US, SpendPeriod.DAY: 24 * _HOUR_US}
_DEFAULT_PERIODS: Final = {SpendPeriod.HOUR: 24, SpendPeriod.DAY: 30}


class SearchDesk:
    def __init__(self, core: Core) -> None:
        self._context = core.context
        self._accounts = core.of(accounts_feature.FEATURE).accounts
        self._history = core.of(accounts_feature.FEATURE).history
        self._transfers = core.of(transfers_feature.FEATURE).transfers
        self._sessions = core.of(sessions_feature.FEATURE).sessions

    async def search(self, principal: Principal, query: Search) -> SearchResult:
        """Return up to `limit` objects of each kind."""
        found, since_us = await self._context.database.read(find, principal.operator_id, query.q, query.limit)
        account_ids = [row[0] for row in found["accounts"]]
        return SearchResult(
            accounts=await self._accounts.some_details(principal, account_ids) if account_ids else (),
            transfers=tuple([await self._transfers.get(principal, row[0]) for row in found["transfers"]]),
            sessions=tuple([await self._sessions.get(principal, row[0]) for row in found["sessions"]]),
            deposits=tuple(self._history.transaction(ENTRIES.record(row)) for row in found["deposits"]),
            events=tuple(
                codec.structure(codec.parse_json(row[0].encode()), Event) for row in found["events"]
            ),
            parts_since=None if since_us is None else from_us(since_us),
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
        last = period_of(until_us, bucket_us)
        if query.since is None:
            first = last - _DEFAULT_PERIODS[query.by]
            since_us = first * bucket_us + _MILLISECOND_END_US
        else:
            since_us = end_of_millisecond_us(query.since)
            first = max(period_of(since_us + 1, bucket_us), last - SPEND_PERIODS_MAX + 1)
        spent, rejected = await database.read(
            partial(spend, since_us=since_us, until_us=until_us, bucket_us=bucket_us),
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
