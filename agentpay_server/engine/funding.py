"""The treasury's SOL: what an account may cost it, and whether it can pay for new work (interface F1 to F5).

The treasury pays every fee, and lends the rent of every account and escrow. Without SOL, no transaction
lands, and signed ones expire. So it is asked before anything is signed. New work leaves a reserve of
0.02 SOL, which only closes, settlements and re-signings may spend: a treasury that runs empty never strands
the money in an escrow.

The balance is remembered for some seconds, and what was promised since is subtracted. If it is far above the
reserve, each process subtracts its own promises. Otherwise the unit of work that signs adds its lamports to
one row, which all servers over one database share: together they never promise more than the treasury has.

The fee budget is the SOL that an account may cost the treasury without paying anybody. Work that operator
keys request or approve is counted apart from that of agent keys, each of the two up to the budget, so that
neither uses up the other's.

Three things cost the treasury SOL and bring no payment: a failed transaction, a session that is settled with
nothing charged, and the token account that a settlement creates for a payee. Each counts from the commit that
stores the signed bytes:

- While a transaction is in flight, or a session unsettled, its fees count. A session's hold reserves the fees
  of both its transactions, as they were when it was opened, so that closing it never exceeds the budget.
- If it ends without a payment, its lamports are *burned*: they count for 24 hours from its end, as a spend
  does in `ledger/spending.py`. If it settles a payment, or never landed, they no longer count.

The rent of an escrow returns at its end, so it does not count. The account's lock makes the sum exact: what
is in flight is added, and what is burned changes, only under this lock.
"""

import asyncio
import logging
import math
from collections import deque
from decimal import Decimal
from typing import Final

from attrs import evolve, frozen
from sqlalchemy import Boolean, bindparam, func, literal_column, select

from agentpay.contract.errors import ErrorCode
from agentpay_server.chain.custody import TREASURY, fee_lamports
from agentpay_server.chain.protocol import Blockhash, Chain, ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.runner import run_again_if_late
from agentpay_server.database.tables import AccountRecord, CounterRecord, chain_transactions, counters
from agentpay_server.database.tables import chain_transactions as table
from agentpay_server.ledger import spending
from agentpay_server.ledger.accounts import COUNTERS
from agentpay_server.ledger.apply import Posting
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.spending import WINDOW_US
from agentpay_server.ledger.transactions import State, StoredTransaction
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem
from agentpay_server.platform.logs import log
from agentpay_server.platform.scheduler import Every
from agentpay_server.platform.settings import PUBLIC_FEE_BUDGET_SOL, limit_in_force
from agentpay_server.platform.tasks import SingleFlight

# --- The fee budget

LAMPORTS: Final = 1_000_000_000

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
_RESERVED: Final = select(_PENDING.scalar_subquery(), spending.FEES.scalar_subquery())
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
    if tx.subject_id == tx.account_id:
        # The record of its policy is an operator's work: no agent can cause it.
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


# --- The treasury

RESERVE_LAMPORTS: Final = 20_000_000
"""What new work leaves, so that open sessions can be settled."""

LOOK_EVERY_SECONDS: Final = 60.0
_TRANSFER_SIGNATURES: Final = 2

PLENTY_LAMPORTS: Final = 2 * LAMPORTS
"""Far above the reserve: more than all servers together can promise before they read the balance again."""

REMEMBERED_SECONDS: Final = 10.0

_UNREAD_LAMPORTS: Final = PLENTY_LAMPORTS // 4
"""What a process promises from such a balance before it reads it again."""

WATCHED_LEAST_US: Final = 3600 * SECOND_US
"""How long the balance must have been watched to say what a day costs."""

TOP_UP_LAMPORTS: Final = LAMPORTS // 10
"""A rise of so much is SOL that somebody has sent; a smaller one may be the rents of escrows that return."""

_PROMISED: Final = "treasury_promised"

# One statement, hence one state of the database.
_COMMITMENTS: Final = select(
    select(counters.c.value).where(counters.c.name == bindparam("counter")).scalar_subquery(),
    select(func.coalesce(func.sum(chain_transactions.c.fee + chain_transactions.c.rent), 0))
    .where(chain_transactions.c.state == literal_column(f"'{State.PENDING}'"))
    .scalar_subquery(),
)

logger: logging.Logger = logging.getLogger(__name__)


@frozen(kw_only=True)
class TreasuryFunds:
    """What the treasury has.

    Attributes:
        sol: its balance.
        can_pay: it can pay for a new transfer, which leaves the reserve.
        is_low: the balance is below the threshold of the settings.
        burn_lamports: how much the balance falls a day, as this process has measured over the last 24 hours,
            or since it was topped up; None in the first hour of that.
        days_left: after how many whole days at this rate new work is refused; None if it never is.
    """

    sol: Decimal
    can_pay: bool
    is_low: bool
    burn_lamports: int | None
    days_left: int | None


class Treasury:
    """Reads the balance once a minute in real time, and warns if it is low.

    `chain` is without the sandbox's faults.
    """

    def __init__(self, context: Context, chain: Chain) -> None:
        self._chain = chain
        self._clock = context.clock
        self.address: str = context.signer.address(TREASURY)
        self._low_sol = context.settings.treasury_low_sol
        self._is_low = False
        self._every = Every(LOOK_EVERY_SECONDS)
        # Times and balances, by the server's clock: at most one a minute.
        self._watched: deque[tuple[int, int]] = deque()

    async def next_due_us(self) -> int | None:
        """Return None on a manual clock before the next read: advancing it has no effect."""
        return self._every.due_us(self._clock)

    async def run_due(self) -> bool:
        """If the chain does not respond, the next run retries."""
        if not self._every.is_due:
            return False
        self._every.restart()
        try:
            await self.read()
        except ChainUnreachableError:
            return False
        return True

    async def lamports(self) -> int:
        """Return the balance in lamports."""
        found = await self._chain.account_size(self.address)
        return 0 if found is None else found[0]

    async def read(self) -> TreasuryFunds:
        """Return the balance, and log a warning if it has fallen below the threshold."""
        lamports, blockhash = await asyncio.gather(self.lamports(), self._chain.latest_blockhash())
        sol = Decimal(lamports) / LAMPORTS
        is_low = sol < self._low_sol
        if is_low and not self._is_low:
            log(
                logger,
                logging.WARNING,
                "treasury.low",
                address=self.address,
                sol=f"{sol:f}",
                threshold_sol=f"{self._low_sol:f}",
            )
        self._is_low = is_low
        burn = self._burn(lamports)
        return TreasuryFunds(
            sol=sol,
            can_pay=lamports >= RESERVE_LAMPORTS + transfer_fee(blockhash),
            is_low=is_low,
            burn_lamports=burn,
            days_left=max(lamports - RESERVE_LAMPORTS, 0) // burn if burn else None,
        )

    def _burn(self, lamports: int) -> int | None:
        """Note the balance, and return by how much it falls a day."""
        now_us, watched = self._clock.now_us(), self._watched
        if watched and (now_us < watched[-1][0] or lamports >= watched[-1][1] + TOP_UP_LAMPORTS):
            watched.clear()
        if not watched or now_us >= watched[-1][0] + LOOK_EVERY_SECONDS * SECOND_US:
            watched.append((now_us, lamports))
        while len(watched) > 1 and watched[1][0] <= now_us - WINDOW_US:
            watched.popleft()
        since_us, before = watched[0]
        if now_us < since_us + WATCHED_LEAST_US:
            return None
        return max(before - lamports, 0) * WINDOW_US // (now_us - since_us)


def transfer_fee(blockhash: Blockhash) -> int:
    """Return the maximum cost, in lamports."""
    return fee_lamports(_TRANSFER_SIGNATURES, blockhash.compute_budget)


class FundsChangedError(Exception):
    """The remembered balance does not suffice: read it again."""


@frozen(kw_only=True)
class Funds:
    """What the treasury can pay for.

    Attributes:
        lamports: its balance above the reserve, less what was in flight just before it was read; or a part
            of it, if it is far above the reserve.
        promised: running total of the lamports promised before it was read.
        is_plenty: whether it is far above the reserve. If so, the running total is that of this process,
            otherwise that of all servers.
        is_remembered: whether it was read for an earlier request.
    """

    lamports: int
    promised: int
    is_plenty: bool = False
    is_remembered: bool = False


class TreasuryFunding:
    """Reads what the treasury can pay for, and promises it."""

    def __init__(self, context: Context, treasury: Treasury) -> None:
        self._database = context.database
        self._treasury = treasury
        # In process, the balance costs nothing to read.
        self._is_remembering = bool(context.chain.landing_seconds)
        self._reading: SingleFlight[None, Funds] = SingleFlight(context.tasks)
        self._remembered: Funds | None = None
        self._until = 0.0
        # Running totals of what this process has promised: now, and when the balance was read.
        self._promised_here = 0
        self._promised_before = 0

    async def read(self) -> Funds:
        """Return what the treasury can pay for.

        Raises:
            ChainUnreachableError: the balance cannot be read.
        """
        if not self._is_remembering:
            return await self._read()
        if self._remembered is not None and asyncio.get_running_loop().time() < self._until:
            return self._remembered
        # Requests share a read, and its failure: none waits for the failures of others.
        reading = self._reading.start(None, self._read_and_remember)
        await asyncio.wait({reading})
        if reading.cancelled():
            raise ChainUnreachableError("the server stops")
        return reading.result()

    async def _read_and_remember(self) -> Funds:
        found = await self._read()
        self._remembered = evolve(found, is_remembered=True)
        self._until = asyncio.get_running_loop().time() + REMEMBERED_SECONDS
        return found

    async def _read(self) -> Funds:
        # Promises from now on may or may not be in the balance already.
        here = self._promised_here
        lamports = await self._treasury.lamports() - RESERVE_LAMPORTS
        is_first = here - self._promised_before < _UNREAD_LAMPORTS
        self._promised_before = here
        if lamports >= PLENTY_LAMPORTS and is_first:
            return Funds(lamports=_UNREAD_LAMPORTS, promised=here, is_plenty=True)
        promised, pending = await self._database.read(_commitments)
        if promised is None:
            await run_again_if_late(self._database, _begin)
            promised, pending = await self._database.read(_commitments)
        assert promised is not None  # noqa: S101 - the row is never deleted
        # What was promised and is no longer in flight has left the balance, which is read after that.
        lamports = await self._treasury.lamports() - RESERVE_LAMPORTS - pending
        if lamports >= PLENTY_LAMPORTS:
            return Funds(lamports=_UNREAD_LAMPORTS, promised=here, is_plenty=True)
        return Funds(lamports=lamports, promised=promised)

    def promise(self, connection: Connection, funds: Funds, cost: Cost) -> None:
        """Promise the lamports of new work. Call it last before signing, in the same unit of work.

        Raises:
            Problem: `chain_unavailable`; the treasury cannot pay.
            FundsChangedError: the balance must be read again.
        """
        if not cost.lamports:
            return
        if funds.is_plenty:
            # If the unit of work fails, too much is subtracted, which is harmless.
            self._promised_here += cost.lamports
            promised = self._promised_here
        else:
            promised = COUNTERS.changed(connection, _PROMISED, add={"value": cost.lamports}).value
        promised -= funds.promised
        if promised > funds.lamports:
            self._remembered = None
            is_part = funds.is_plenty and promised > cost.lamports
            if funds.is_remembered or is_part:
                raise FundsChangedError
            raise self._short(funds, cost)

    def _short(self, funds: Funds, cost: Cost) -> Problem:
        return Problem(
            ErrorCode.CHAIN_UNAVAILABLE,
            f"The treasury {self._treasury.address} has {sol(max(funds.lamports, 0))} SOL left above its "
            f"reserve of {sol(RESERVE_LAMPORTS)} SOL, and this needs {sol(cost.lamports)} SOL. Nothing was "
            "signed; send SOL to the treasury, then retry.",
            says_what_to_do=True,
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )


def _commitments(connection: Connection) -> tuple[int | None, int]:
    ((promised, pending),) = connection.execute(_COMMITMENTS, {"counter": _PROMISED})
    return promised, int(pending)


def _begin(connection: Connection) -> None:
    if _commitments(connection)[0] is None:
        COUNTERS.insert(connection, CounterRecord(_PROMISED, 0))
