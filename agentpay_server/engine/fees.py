"""The fee budget: the SOL that an account may cost the treasury without paying anybody (interface F1 to F3).

Work that operator keys request or approve is counted apart from that of agent keys, each of the two up to the
budget, so that neither uses up the other's.

Three things cost the treasury SOL and bring no payment: a failed transaction, a session that is settled with
nothing charged, and the token account that a settlement creates for a payee. Each counts from the commit that
stores the signed bytes:

- While a transaction is in flight, or a session unsettled, its fees count. A session's hold reserves the fees
  of both its transactions, as they were when it was opened, so that closing it never exceeds the budget.
- If it ends without a payment, its lamports are *burned*: they count for 24 hours from its end, as a spend
  does in `spending.py`. If it settles a payment, or never landed, they no longer count.

The rent of an escrow returns at its end, so it does not count. The account's lock makes the sum exact: what
is in flight is added, and what is burned changes, only under this lock.
"""

import math
from decimal import Decimal
from typing import Final

from attrs import frozen
from sqlalchemy import Boolean, bindparam, func, literal_column, select

from agentpay.contract.errors import ErrorCode
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord
from agentpay_server.database.tables import chain_transactions as table
from agentpay_server.ledger import holds, spending
from agentpay_server.ledger.apply import Posting
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.spending import WINDOW_US
from agentpay_server.ledger.transactions import Kind, State, StoredTransaction
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.settings import PUBLIC_FEE_BUDGET_SOL, limit_in_force

LAMPORTS: Final = 1_000_000_000

_COUNTED: Final = {
    Kind.TRANSFER,
    Kind.PAYMENT,
    Kind.SESSION_OPEN,
    Kind.SESSION_SETTLE,
    Kind.CHANNEL_OPEN,
    Kind.CHANNEL_CLOSE,
}
"""What an agent can cause. Policy records and accounts are an operator's."""

_IN_FLIGHT_SECONDS: Final = 60
"""`Retry-After` while what is in flight uses up the budget: most of it ends within a minute."""


@frozen(kw_only=True)
class Cost:
    """The most lamports that new work takes from the treasury.

    Attributes:
        fees: the fees of its transactions, and of those that end it.
        rent: rent that it pays.
    """

    fees: int = 0
    rent: int = 0

    @property
    def lamports(self) -> int:
        """All of it."""
        return self.fees + self.rent


_BY_OPERATOR: Final = bindparam("by_operator", type_=Boolean)
_PENDING: Final = select(func.coalesce(func.sum(table.c.budgeted), 0)).where(
    # A literal in the SQL text, as in the partial index: with a parameter the index would not be used.
    table.c.state == literal_column(f"'{State.PENDING}'"),
    table.c.account_id == bindparam("account_id"),
    table.c.by_operator == _BY_OPERATOR,
)
_RESERVED: Final = select(_PENDING.scalar_subquery(), holds.FEES.scalar_subquery())
_TOTAL_BEFORE: Final = spending.total_before(table.c.burned_us, table.c.burned_total).where(
    table.c.by_operator == _BY_OPERATOR
)
# When the running total has left the window up to a given value.
_LEAVES: Final = (
    select(table.c.burned_us)
    .where(
        table.c.account_id == bindparam("account_id"),
        table.c.by_operator == _BY_OPERATOR,
        table.c.burned_us > bindparam("start_us"),
        table.c.burned_total >= bindparam("total"),
    )
    .order_by(table.c.burned_us)
    .limit(1)
)


def lost(tx: StoredTransaction, lamports: int) -> tuple[Posting, ...]:
    """Return the posting of lamports that a transaction cost without a payment."""
    if tx.kind not in _COUNTED:
        return ()
    if tx.by_operator:
        return (Posting(account_id=tx.account_id, operator_burned=lamports),)
    return (Posting(account_id=tx.account_id, burned=lamports),)


def reserved(connection: Connection, account_id: str, *, by_operator: bool) -> int:
    """Return the lamports that an account's unfinished work of operators, or of agents, may still burn."""
    values = {"account_id": account_id, "by_operator": by_operator}
    ((pending, held),) = connection.execute(_RESERVED, values)
    return int(pending) + int(held)


def burned(connection: Connection, account: AccountRecord, now_us: int, *, by_operator: bool) -> int:
    """Return the lamports that operators' or agents' work has burned in the 24 hours before `now_us`."""
    if account.last_burned_us <= spending.window_start_us(now_us):
        return 0
    total = account.operator_burned_total if by_operator else account.burned_total
    return total - _total_before(connection, account, now_us, by_operator=by_operator)


def _total_before(connection: Connection, account: AccountRecord, now_us: int, *, by_operator: bool) -> int:
    values: dict[str, object] = {
        "account_id": account.account_id,
        "start_us": spending.window_start_us(now_us),
        "by_operator": by_operator,
    }
    return connection.execute(_TOTAL_BEFORE, values).scalar_one_or_none() or 0


def budget_lamports(context: Context) -> int | None:
    """Return the fee budget of each account; None without one."""
    budget = limit_in_force(
        context.settings.fee_budget_sol,
        on_public_clusters=PUBLIC_FEE_BUDGET_SOL,
        is_test_chain=context.chain.is_test_chain,
    )
    return None if budget is None else int(budget * LAMPORTS)


def require_room(
    context: Context,
    connection: Connection,
    account: AccountRecord,
    cost: Cost,
    now_us: int,
    *,
    by_operator: bool,
) -> None:
    """Require that new work of an account at a time fits into its fee budget. The account must be locked.

    `by_operator` says whether an operator key requests or approves the work.

    Raises:
        Problem: `fee_budget_exceeded`, with the time at which enough is free again.
    """
    budget = budget_lamports(context)
    if budget is None or not cost.fees:
        return
    # The window never ends before the last burn, which another server's clock may have timed.
    now_us = max(now_us, account.last_burned_us)
    in_use = reserved(connection, account.account_id, by_operator=by_operator)
    lost = burned(connection, account, now_us, by_operator=by_operator)
    excess = in_use + lost + cost.fees - budget
    if excess <= 0:
        return
    if excess <= lost:
        wait_us = _wait_us(connection, account, now_us, excess=excess, by_operator=by_operator)
    else:
        wait_us = WINDOW_US if cost.fees > budget else _IN_FLIGHT_SECONDS * SECOND_US
    raise Problem(
        ErrorCode.FEE_BUDGET_EXCEEDED,
        f"The fee budget of {account.account_id} for {'operator' if by_operator else 'agent'} keys is "
        f"{sol(budget)} SOL in 24 hours: {sol(lost)} SOL brought no payment, unfinished work reserves "
        f"{sol(in_use)} SOL, and this needs {sol(cost.fees)} SOL.",
        retry_after_seconds=max(math.ceil(wait_us / SECOND_US), 1),
    )


def _wait_us(
    connection: Connection, account: AccountRecord, now_us: int, *, excess: int, by_operator: bool
) -> int:
    """Return when as much as the excess has left the window; at least that much is burned within it."""
    values: dict[str, object] = {
        "account_id": account.account_id,
        "by_operator": by_operator,
        "start_us": spending.window_start_us(now_us),
        "total": _total_before(connection, account, now_us, by_operator=by_operator) + excess,
    }
    burned_us = int(connection.execute(_LEAVES, values).scalar_one())
    return burned_us + WINDOW_US - now_us


def sol(lamports: int) -> str:
    """Return lamports as SOL for people, without an exponent or trailing zeros."""
    text = f"{Decimal(lamports) / LAMPORTS:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
