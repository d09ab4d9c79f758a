"""SQL statements for accounts: how many an operator created, the records of policies, and sorted pages."""

import math
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    String,
    bindparam,
    exists,
    false,
    func,
    literal_column,
    not_,
    select,
    true,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.console import AccountSort
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import Place
from agentpay_server.database.rows import Rows, SortedPages
from agentpay_server.database.tables import (
    AccountRecord,
    ClaimRecord,
    accounts,
    chain_transactions,
    policy_records,
)
from agentpay_server.database.tables import PolicyRecordRow as PolicyRecordRow
from agentpay_server.database.tables import account_claims as table
from agentpay_server.ledger import spending
from agentpay_server.ledger.accounts import ACCOUNTS
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import State
from agentpay_server.platform.clock import DAY_US, SECOND_US
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.settings import PUBLIC_ACCOUNTS_PER_DAY, limit_in_force

# Accounts of each operator are counted, for `max_accounts_per_day` (interface F4).
#
# An account costs the treasury rent. It is counted before it is provisioned, so that accounts created
# together never exceed the limit, and a crash between the two counts as one. Counted accounts are numbered:
# the limit is reached while the account that is `max_accounts_per_day` numbers back was counted within 24
# hours.

CLAIMS: Final = Rows(ClaimRecord, "operator_id", "number")
_NEWEST: Final = select(func.max(table.c.number)).where(table.c.operator_id == bindparam("operator_id"))


def claim(context: Context, connection: Connection, operator_id: str) -> None:
    """Count an account that an operator creates. The caller holds a lock that all such callers take.

    Raises:
        Problem: `rate_limited`, `service_unavailable` while the clocks differ; nothing was counted.
    """
    limit = limit_in_force(
        context.settings.max_accounts_per_day,
        on_public_clusters=PUBLIC_ACCOUNTS_PER_DAY,
        is_test_chain=context.chain.is_test_chain,
    )
    now_us = context.clock.now_us()
    context.clock_check.require(now_us)
    number = (connection.execute(_NEWEST, {"operator_id": operator_id}).scalar_one_or_none() or 0) + 1
    if limit is not None:
        earlier = CLAIMS.get(connection, (operator_id, number - limit))
        if earlier is not None and earlier.created_us > now_us - DAY_US:
            raise Problem(
                ErrorCode.RATE_LIMITED,
                f"The limit is {limit} new accounts in 24 hours (max_accounts_per_day).",
                retry_after_seconds=math.ceil((earlier.created_us + DAY_US - now_us) / SECOND_US),
            )
    CLAIMS.insert(connection, ClaimRecord(operator_id, number, now_us))


# Pausing all accounts, and resuming the ones that a pause of all has paused.

_OWN: Final = accounts.c.operator_id == bindparam("operator_id")
# Literals in the SQL text, as in the partial index.
_IS_WITH_ALL: Final = literal_column("paused_with_all", Boolean())
_PAUSED: Final = select(func.count()).where(_OWN, accounts.c.paused == true())
_TO_CHANGE: Final = {
    paused: select(accounts.c.account_id).where(_OWN, condition).limit(bindparam("count"))
    for paused, condition in ((True, accounts.c.paused == false()), (False, _IS_WITH_ALL))
}


def to_pause(connection: Connection, operator_id: str, count: int, *, paused: bool) -> list[str]:
    """Return up to `count` accounts that are not paused; with `paused=False`, that were paused with all."""
    values = {"operator_id": operator_id, "count": count}
    return sorted(connection.execute(_TO_CHANGE[paused], values).scalars())


def paused_accounts(connection: Connection, operator_id: str) -> int:
    """Return how many accounts of an operator are paused."""
    return int(connection.execute(_PAUSED, {"operator_id": operator_id}).scalar_one())


# When to write the records of policies (interface PO12).

RECORDS: Final = Rows(PolicyRecordRow, "account_id")
# An account has at most one write in flight; the next one becomes due when it ends.
_IS_IDLE: Final = not_(
    exists().where(
        chain_transactions.c.subject_id == policy_records.c.account_id,
        chain_transactions.c.state == literal_column(f"'{State.PENDING}'"),
    )
)
_DUE: Final = (
    select(policy_records.c.account_id)
    .where(policy_records.c.due_us <= bindparam("now_us"), _IS_IDLE)
    .order_by(policy_records.c.due_us, policy_records.c.account_id)
    .limit(bindparam("count"))
)
_NEXT_DUE: Final = select(func.min(policy_records.c.due_us)).where(_IS_IDLE)


def due(connection: Connection, now_us: int, count: int) -> list[str]:
    """Return accounts whose record is due and not being written, longest due first."""
    return list(connection.execute(_DUE, {"now_us": now_us, "count": count}).scalars())


def next_due_us(connection: Connection) -> int | None:
    """Return when the next record is due; None if all are written or being written."""
    value = connection.execute(_NEXT_DUE).scalar_one()
    return None if value is None else int(value)


# Pages in the order of a value: name, balance, spent or limit.
#
# Each statement reads all accounts of the operator: their values change too often for an index.

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


def sorted_accounts(
    connection: Connection,
    sort: AccountSort,
    operator_id: str,
    after: Place | None,
    *,
    count: int,
    now_us: int,
) -> list[tuple[AccountRecord, Place]]:
    """Return up to `count` accounts of an operator after a place, each with its own."""
    given: dict[str, object] = {}
    if sort in (AccountSort.SPENT, AccountSort.SPENT_DESCENDING):
        given["start_us"] = spending.window_start_us(now_us)
    return _sorted(sort)(connection, operator_id, after, count, **given)


@cache
def _sorted(sort: AccountSort) -> SortedPages[AccountRecord]:
    name = sort.value.removeprefix("-")
    return ACCOUNTS.sorted_pages("operator_id", _KEYS[name], is_descending=sort.value != name)
