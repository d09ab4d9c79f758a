"""Pages of an operator's accounts in the order of a value: name, balance, spent or limit.

A page starts after the value and the sequence number of the last account before it, so ties and accounts that
are created meanwhile neither repeat nor hide one. Each statement reads all accounts of the operator, whose
values change too often for an index, and returns one page of them.
"""

from functools import cache
from typing import Any, Final

from attrs import frozen
from sqlalchemy import BigInteger, ColumnElement, Select, String, bindparam, func, or_, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from agentpay.contract.console import AccountSort
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import Place
from agentpay_server.database.tables import AccountRecord, accounts
from agentpay_server.ledger import spending
from agentpay_server.ledger.accounts import ACCOUNTS

_NO_LIMIT: Final = 2**62
"""Larger than every limit, in micro-USDC."""


class _NameKey(FunctionElement[str]):
    """The first 64 characters of a name, ASCII letters in lower case, to be compared by code point."""

    type = String()
    inherit_cache = True


class _LimitKey(FunctionElement[int]):
    """The daily limit of a policy in micro-USDC, or NULL."""

    type = BigInteger()
    inherit_cache = True


@compiles(_NameKey)
def _name_key(_: _NameKey, __: SQLCompiler, **___: object) -> str:
    return "substr(lower(accounts.name), 1, 64)"


@compiles(_NameKey, "postgresql")
def _name_key_on_postgresql(_: _NameKey, __: SQLCompiler, **___: object) -> str:
    return 'substr(lower(accounts.name COLLATE "C"), 1, 64)'


@compiles(_LimitKey)
def _limit_key(_: _LimitKey, __: SQLCompiler, **___: object) -> str:
    return "CAST(round(json_extract(accounts.policy, '$.max_daily_spend') * 1000000) AS INTEGER)"


@compiles(_LimitKey, "postgresql")
def _limit_key_on_postgresql(_: _LimitKey, __: SQLCompiler, **___: object) -> str:
    return "CAST((accounts.policy::json ->> 'max_daily_spend')::numeric * 1000000 AS BIGINT)"


_KEYS: Final[dict[str, ColumnElement[Any]]] = {
    AccountSort.NAME: _NameKey(),
    AccountSort.BALANCE: accounts.c.balance,
    AccountSort.SPENT: spending.AGAINST_DAILY_LIMIT,
    AccountSort.LIMIT: func.coalesce(_LimitKey(), _NO_LIMIT),
}


@frozen
class Sorted:
    """An account, and the value by which it is sorted."""

    record: AccountRecord
    value: str | int

    @property
    def place(self) -> Place:
        return Place(self.record.seq, self.value)


def sorted_accounts(
    connection: Connection,
    sort: AccountSort,
    operator_id: str,
    after: Place | None,
    *,
    count: int,
    now_us: int,
) -> list[Sorted]:
    """Return up to `count` accounts of an operator after a place."""
    name = sort.value.removeprefix("-")
    values: dict[str, object] = {"operator_id": operator_id, "count": count}
    if name == AccountSort.SPENT:
        values["start_us"] = spending.window_start_us(now_us)
    if after is not None:
        values |= {"value": after.value, "seq": after.seq}
    statement = _statement(name, is_descending=sort.value != name, is_first=after is None)
    rows = connection.execute(statement, values)
    return [Sorted(ACCOUNTS.record(row[:-1]), row[-1]) for row in rows]


@cache
def _statement(name: str, *, is_descending: bool, is_first: bool) -> Select[Any]:
    keyed = (
        select(accounts, _KEYS[name].label("value"))
        .where(accounts.c.operator_id == bindparam("operator_id"))
        .subquery()
    )
    key, seq = keyed.c.value, keyed.c.seq
    statement = select(keyed)
    if not is_first:
        value = bindparam("value", type_=key.type)
        beyond = key < value if is_descending else key > value
        statement = statement.where(or_(beyond, (key == value) & (seq < bindparam("seq", type_=BigInteger))))
    return statement.order_by(key.desc() if is_descending else key, seq.desc()).limit(bindparam("count"))
