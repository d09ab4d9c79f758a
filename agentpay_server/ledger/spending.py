"""The rolling 24-hour window of spends (interface PO9): exact, at a cost independent of their number.

Each spend stores its account's running total, itself included. The amount spent within the window is the
difference of two totals: the newest, and that of the last spend that has left the window. A failed spend is
not subtracted from the totals, which would change every later one. Its row stores the time of the spend as
`released_us`, and its amount is subtracted while that time lies within the window.
"""

from typing import Any, Final

from attrs import frozen
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Select,
    bindparam,
    cast,
    func,
    literal_column,
    or_,
    select,
)

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, State, accounts
from agentpay_server.database.tables import chain_transactions as table
from agentpay_server.ledger import holds
from agentpay_server.platform.clock import DAY_US

WINDOW_US: Final = DAY_US


@frozen(kw_only=True)
class Release:
    """An amount in micro-USDC that leaves the window, and the first microsecond at which it has left."""

    at_us: int
    amount_micro: int


def window_start_us(now_us: int) -> int:
    """Return the window's start: spends at or before it no longer count."""
    return now_us - WINDOW_US


def spent_in_window(*, total_micro: int, total_before_micro: int, released_micro: int) -> int:
    """Return the micro-USDC spent within the window.

    Args:
        total_micro: running total of the account's newest spend.
        total_before_micro: running total of the last spend at or before the window's start; 0 if none.
        released_micro: sum of the released spends within the window.
    """
    return total_micro - total_before_micro - released_micro


def remaining(*, limit_micro: int | None, spent_micro: int) -> int | None:
    """Return the largest transfer that a daily limit still allows; None without a limit."""
    return None if limit_micro is None else max(limit_micro - spent_micro, 0)


def total_before(at_us: Column[Any], total: Column[Any]) -> Select[Any]:
    """Return the statement that reads an account's running total at the window's start.

    The columns have the time of what counts, which never decreases, and the running total including it. An
    index covers them.
    """
    return (
        select(total)
        .where(table.c.account_id == bindparam("account_id"), at_us <= bindparam("start_us"))
        .order_by(at_us.desc(), total.desc())
        .limit(1)
    )


_MOMENTS_AT_ONCE: Final = 50

# An index covers each of these statements.
_TOTAL_BEFORE: Final = total_before(table.c.spent_us, table.c.spent_total)
# Spends at one microsecond leave the window together.
_MOMENTS: Final = (
    select(table.c.spent_us, func.max(table.c.spent_total))
    .where(table.c.account_id == bindparam("account_id"), table.c.spent_us > bindparam("start_us"))
    .group_by(table.c.spent_us)
    .order_by(table.c.spent_us)
    .limit(bindparam("count"))
)
_RELEASED_BY_MOMENT: Final = (
    select(table.c.released_us, func.sum(table.c.hold))
    .where(
        table.c.account_id == bindparam("account_id"),
        table.c.released_us > bindparam("start_us"),
        table.c.released_us <= bindparam("end_us"),
    )
    .group_by(table.c.released_us)
)
_RELEASED: Final = select(func.coalesce(func.sum(table.c.hold), 0)).where(
    table.c.account_id == bindparam("account_id"), table.c.released_us > bindparam("start_us")
)
_COUNTED: Final = select(
    _TOTAL_BEFORE.scalar_subquery(), _RELEASED.scalar_subquery(), holds.RESERVED.scalar_subquery()
)

# What is in flight for an open hold is part of it, and counts once: also what was reorganized away and is
# sent again. A partial index serves each of the two conditions.
_IN_FLIGHT_OF_OPEN: Final = select(func.coalesce(func.sum(table.c.hold), 0)).where(
    table.c.account_id == bindparam("account_id"),
    or_(table.c.state == literal_column(f"'{State.PENDING}'"), table.c.vanished_hold > literal_column("0")),
    table.c.subject_id.in_(holds.OPEN_SUBJECTS),
)
_RESERVED: Final = select(holds.RESERVED.scalar_subquery(), _IN_FLIGHT_OF_OPEN.scalar_subquery())

_OF_ACCOUNT: Final = table.c.account_id == accounts.c.account_id
AGAINST_DAILY_LIMIT: Final[ColumnElement[Any]] = (
    accounts.c.spent_total
    - func.coalesce(
        select(table.c.spent_total)
        .where(_OF_ACCOUNT, table.c.spent_us <= bindparam("start_us", type_=BigInteger))
        .order_by(table.c.spent_us.desc(), table.c.spent_total.desc())
        .limit(1)
        .correlate(accounts)
        .scalar_subquery(),
        0,
    )
    - select(cast(func.coalesce(func.sum(table.c.hold), 0), BigInteger))
    .where(_OF_ACCOUNT, table.c.released_us > bindparam("start_us", type_=BigInteger))
    .correlate(accounts)
    .scalar_subquery()
    + cast(holds.reserved(accounts.c.account_id).correlate(accounts).scalar_subquery(), BigInteger)
)
"""What `against_daily_limit` returns, as a column of `accounts`; `start_us` is the window's start."""


def against_daily_limit(connection: Connection, account: AccountRecord, now_us: int) -> int:
    """Return the micro-USDC that count toward `max_daily_spend`, for decisions and display (interface PO9).

    These are the spends within the window that ends at `now_us`, and what open holds reserve: the caps of all
    unsettled sessions.
    """
    values = {"account_id": account.account_id, "start_us": window_start_us(now_us)}
    ((before, released, held),) = connection.execute(_COUNTED, values)
    spent = spent_in_window(
        total_micro=account.spent_total, total_before_micro=before or 0, released_micro=int(released)
    )
    return spent + int(held)


def next_release(connection: Connection, account: AccountRecord, now_us: int) -> Release | None:
    """Return the next release from the window that ends at `now_us`; None if nothing is spent within it."""
    account_id, start_us = account.account_id, window_start_us(now_us)
    values: dict[str, object] = {"account_id": account_id, "start_us": start_us}
    before = connection.execute(_TOTAL_BEFORE, values).scalar_one_or_none() or 0
    while True:
        values = {"account_id": account_id, "start_us": start_us, "count": _MOMENTS_AT_ONCE}
        moments = list(connection.execute(_MOMENTS, values))
        if not moments:
            return None
        end_us = moments[-1][0]
        values = {"account_id": account_id, "start_us": start_us, "end_us": end_us}
        released = {at_us: int(amount) for at_us, amount in connection.execute(_RELEASED_BY_MOMENT, values)}
        for spent_us, total in moments:
            amount = total - before - released.get(spent_us, 0)
            if amount:
                return Release(at_us=spent_us + WINDOW_US, amount_micro=amount)
            # All spends of that moment have failed.
            before = total
        start_us = end_us


def reserved(connection: Connection, account: AccountRecord) -> int:
    """Return the micro-USDC of an account that count as spent but may be released.

    These are the amounts of its transfers in flight, and what open holds reserve.
    """
    ((held, in_flight),) = connection.execute(_RESERVED, {"account_id": account.account_id})
    return account.in_flight - int(in_flight) + int(held)
