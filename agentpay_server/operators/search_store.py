"""Statements that find an operator's objects by text, and that sum its spends by period.

Exact identifiers use their indexes. Everything else is looked for in the newest rows only, so that a search
costs the same however long the history is. Sums read the events of the time that they cover.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
    ColumnElement,
    Select,
    bindparam,
    func,
    literal_column,
    or_,
    select,
)

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import accounts, events, payments, sessions, transfers

NEWEST: Final = 10_000
"""How many of the newest rows of each kind are searched for what has no index."""

_Statements = Mapping[tuple[str, ...], Select[Any]]

_OPERATOR: Final[BindParameter[str]] = bindparam("operator_id")
_Q: Final[BindParameter[str]] = bindparam("q")
_PATTERN: Final[BindParameter[str]] = bindparam("pattern")
# No amount is negative, so -1 matches none.
_AMOUNT: Final[BindParameter[int]] = bindparam("amount", type_=BigInteger)


def _like(column: Column[Any]) -> Any:  # noqa: ANN401 - a condition
    return column.ilike(_PATTERN, escape="\\")


def _first(statement: Select[Any], place: Column[Any]) -> Select[Any]:
    return statement.order_by(place.desc()).limit(bindparam("count"))


def _exactly(found: Column[Any], column: Column[Any]) -> Select[Any]:
    table = column.table
    return _first(select(found).where(table.c.operator_id == _OPERATOR, column == _Q), table.c.seq)


def _newest(table: Any) -> Any:  # noqa: ANN401 - a table, and an alias of its newest rows
    return (
        select(table)
        .where(table.c.operator_id == _OPERATOR)
        .order_by(table.c.seq.desc())
        .limit(NEWEST)
        .subquery()
    )


# By what is searched, and the parameters that a statement has besides the operator and the count.
_ACCOUNTS: Final[_Statements] = {
    ("text", "q", "pattern"): _first(
        select(accounts.c.account_id).where(
            accounts.c.operator_id == _OPERATOR,
            or_(
                _like(accounts.c.name),
                _like(accounts.c.handle),
                accounts.c.account_id == _Q,
                accounts.c.chain_address == _Q,
                accounts.c.usdc_token_account == _Q,
            ),
        ),
        accounts.c.seq,
    )
}
_transfers, _payments, _sessions, _events = map(_newest, (transfers, payments, sessions, events))
_TRANSFERS: Final[_Statements] = {
    ("identifier", "q"): _exactly(transfers.c.transfer_id, transfers.c.transfer_id),
    ("idempotency key", "q"): _exactly(transfers.c.transfer_id, transfers.c.idempotency_key),
    ("text", "q", "pattern", "amount"): _first(
        select(_transfers.c.transfer_id).where(
            or_(
                _transfers.c.amount == _AMOUNT,
                _like(_transfers.c.memo),
                _transfers.c.to == _Q,
                _transfers.c.account_id == _Q,
                _transfers.c.tx_signature == _Q,
            )
        ),
        _transfers.c.seq,
    ),
    ("origin", "pattern"): _first(
        select(_payments.c.transfer_id).where(_like(_payments.c.origin)), _payments.c.seq
    ),
}
# The channel of a payment, which has the identifier of the payment, is found as the payment.
_PAYMENT_CHANNEL: Final[ColumnElement[str]] = literal_column("'x402_upto'")
_SESSIONS: Final[_Statements] = {
    ("identifier", "q"): _exactly(sessions.c.session_id, sessions.c.session_id).where(
        sessions.c.protocol != _PAYMENT_CHANNEL
    ),
    ("idempotency key", "q"): _exactly(sessions.c.session_id, sessions.c.idempotency_key).where(
        sessions.c.protocol != _PAYMENT_CHANNEL
    ),
    ("text", "q", "amount"): _first(
        select(_sessions.c.session_id).where(
            _sessions.c.protocol != _PAYMENT_CHANNEL,
            or_(
                _sessions.c.cap == _AMOUNT,
                _sessions.c.to == _Q,
                _sessions.c.account_id == _Q,
                _sessions.c.tx_signature == _Q,
                _sessions.c.settlement_tx_signature == _Q,
            ),
        ),
        _sessions.c.seq,
    ),
}
_EVENTS: Final[_Statements] = {
    ("identifier", "q"): _exactly(events.c.body, events.c.event_id),
    ("transfer", "q"): _exactly(events.c.body, events.c.transfer_id),
    ("session", "q"): _exactly(events.c.body, events.c.session_id),
    ("type", "q"): _first(select(_events.c.body).where(_events.c.type == _Q), _events.c.seq),
}


def find(
    connection: Connection, operator_id: str, q: str, amount_micro: int | None, count: int
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return identifiers of accounts, transfers and sessions, and bodies of events: `count` of each."""
    escaped = q.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    values = {"q": q, "pattern": f"%{escaped}%", "amount": -1 if amount_micro is None else amount_micro}

    def first(statements: _Statements) -> list[str]:
        found: dict[str, None] = {}
        for (_, *names), statement in statements.items():
            if len(found) < count:
                given = {"operator_id": operator_id, "count": count, **{name: values[name] for name in names}}
                found |= dict.fromkeys(str(row[0]) for row in connection.execute(statement, given))
        return list(found)[:count]

    return first(_ACCOUNTS), first(_TRANSFERS), first(_SESSIONS), first(_EVENTS)


_BUCKET: Final[BindParameter[int]] = bindparam("bucket_us", type_=BigInteger)
_PERIOD: Final = (events.c.created_us // _BUCKET).label("period")


def _by_period(total: Any, kind: str) -> Any:  # noqa: ANN401 - an aggregate, and its statement
    statement = select(_PERIOD, total).where(
        events.c.operator_id == _OPERATOR,
        events.c.created_us >= bindparam("start_us", type_=BigInteger),
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
    connection: Connection, operator_id: str, account_id: str | None, start_us: int, bucket_us: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Return settled micro-USDC and the number of rejections, by the number of the period since 1970."""
    values: dict[str, object] = {"operator_id": operator_id, "start_us": start_us, "bucket_us": bucket_us}
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
