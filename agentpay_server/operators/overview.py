"""An operator's overview: counts, and the requests that this process has handled (CO16, CO17)."""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from sqlalchemy import BindParameter, bindparam, exists, func, literal_column, select, true

from agentpay.contract.choices import POLICY_RULES
from agentpay.contract.ext.console import ConsoleSummary, PolicyRule, ServedRequest
from agentpay.contract.ext.sessions import SessionStatus
from agentpay.contract.pages import PageBody, PageQuery
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List
from agentpay_server.database.tables import (
    accounts,
    chain_transactions,
    deliveries,
    operators,
    sessions,
    transfers,
    webhooks,
)
from agentpay_server.engine.funding import LAMPORTS, TreasuryFunds
from agentpay_server.feature import Core
from agentpay_server.ledger import spending
from agentpay_server.ledger.deliveries import NEEDS_ATTENTION
from agentpay_server.ledger.spending import KeyName
from agentpay_server.ledger.transactions import State
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.platform.principals import Principal

# Each count has an index that contains only the counted rows, so history costs nothing.

UNDELIVERED_MAX: Final = 10_000
"""Maximum count of undelivered deliveries that no replay has delivered."""

STUCK_US: Final = 600 * SECOND_US
"""From when a transfer in flight is stuck: what lands, lands within two minutes."""

DAYS_LEFT_LEAST: Final = 7
"""With fewer days left, the treasury needs attention."""

_OPERATOR: Final[BindParameter[str]] = bindparam("operator_id")
_NAME: Final = select(operators.c.name).where(operators.c.operator_id == _OPERATOR)
_ACCOUNTS: Final = select(func.count()).where(accounts.c.operator_id == _OPERATOR)
_PAUSED: Final = _ACCOUNTS.where(accounts.c.paused == true())
# Literals, as in the partial indexes: with parameters the indexes would not be used.
_PENDING: Final = select(func.count()).where(
    transfers.c.operator_id == _OPERATOR, transfers.c.status == literal_column("'pending_approval'")
)
_UNDELIVERED: Final = select(func.count()).select_from(
    select(deliveries.c.seq)
    .where(deliveries.c.operator_id == _OPERATOR, *NEEDS_ATTENTION)
    .limit(UNDELIVERED_MAX)
    .subquery()
)
_RETRYING: Final = select(func.count()).select_from(
    select(deliveries.c.seq)
    .where(
        # Of a deleted webhook none is retried.
        deliveries.c.webhook_id.in_(
            select(webhooks.c.webhook_id).where(
                webhooks.c.operator_id == _OPERATOR, webhooks.c.deleted_us.is_(None)
            )
        ),
        deliveries.c.due_us.is_not(None),
        deliveries.c.status == literal_column("'retrying'"),
    )
    .limit(UNDELIVERED_MAX)
    .subquery()
)
_SUSPENDED: Final = _ACCOUNTS.where(accounts.c.suspended_us.is_not(None))
_STUCK_TRANSFERS: Final = select(func.count()).where(
    transfers.c.operator_id == _OPERATOR,
    transfers.c.status == literal_column("'submitted'"),
    exists().where(
        chain_transactions.c.subject_id == transfers.c.transfer_id,
        chain_transactions.c.state == literal_column(f"'{State.PENDING}'"),
        # A replacement keeps the time of the spend.
        func.coalesce(chain_transactions.c.spent_us, chain_transactions.c.created_us)
        < bindparam("stuck_before_us"),
    ),
)
_STUCK_SESSIONS: Final = select(func.count()).where(
    sessions.c.operator_id == _OPERATOR,
    sessions.c.status == literal_column(f"'{SessionStatus.CLOSING}'"),
    sessions.c.stuck_reason.is_not(None),
)
_STUCK: Final = select(_STUCK_TRANSFERS.scalar_subquery() + _STUCK_SESSIONS.scalar_subquery())
_OPEN: Final = select(func.count()).where(
    sessions.c.operator_id == _OPERATOR,
    sessions.c.status.in_(
        [
            literal_column(f"'{status}'")
            for status in (SessionStatus.OPENING, SessionStatus.OPEN, SessionStatus.CLOSING)
        ]
    ),
)


def operator_name(connection: Connection, operator_id: str) -> str:
    return str(connection.execute(_NAME, {"operator_id": operator_id}).scalar_one())


def counts(connection: Connection, operator_id: str, now_us: int) -> dict[str, int]:
    statements = {
        "accounts": _ACCOUNTS,
        "paused_accounts": _PAUSED,
        "suspended_accounts": _SUSPENDED,
        "pending_approvals": _PENDING,
        "undelivered_deliveries": _UNDELIVERED,
        "retrying_deliveries": _RETRYING,
        "open_sessions": _OPEN,
    }
    operator: dict[str, object] = {"operator_id": operator_id}
    found = {name: int(connection.execute(each, operator).scalar_one()) for name, each in statements.items()}
    stuck = connection.execute(_STUCK, {**operator, "stuck_before_us": now_us - STUCK_US})
    return {**found, "stuck_settlements": int(stuck.scalar_one())}


_WRONG: Final = ("suspended_accounts", "undelivered_deliveries", "stuck_settlements")
"""The counts that are 0 while all is well. A pause and an approval are what an operator has asked for."""

KEPT: Final = 1000

OPERATORS_MAX: Final = 100
"""The most recently active ones."""


_Kept = tuple[int, int, str, str, str, int | None, int, str]
"""The number of a request and the fields of its `ServedRequest`, whose time is in microseconds."""


class RequestLog:
    """The newest requests of each operator, in memory and without their content."""

    def __init__(self) -> None:
        self._seq = 0
        self._by_operator: OrderedDict[str, deque[_Kept]] = OrderedDict()

    def record(
        self,
        principal: Principal,
        *,
        request_id: str,
        at_us: int,
        method: str,
        route: str,
        status: int | None,
        duration_ms: int,
    ) -> None:
        self._seq += 1
        kept = self._by_operator.setdefault(principal.operator_id, deque(maxlen=KEPT))
        kept.append((self._seq, at_us, request_id, method, route, status, duration_ms, principal.key_id))
        self._by_operator.move_to_end(principal.operator_id)
        if len(self._by_operator) > OPERATORS_MAX:
            self._by_operator.popitem(last=False)

    def newest(self, operator_id: str, before: int, count: int) -> list[_Kept]:
        kept = self._by_operator.get(operator_id, ())
        return [row for row in reversed(kept) if row[0] < before][:count]


class Overview:
    def __init__(self, core: Core, log: RequestLog) -> None:
        self._core = core
        self._context = core.context
        self._log = log

    async def requests(self, principal: Principal, query: PageQuery) -> PageBody[ServedRequest]:
        listing = List("requests", principal.operator_id)
        before = listing.before(query.cursor)
        rows = self._log.newest(principal.operator_id, before, query.limit + 1)
        names = await self._context.database.read(spending.key_names, {row[-1] for row in rows})
        return listing.page(rows, query.limit, seq=lambda row: row[0], item=partial(_served, names))

    async def summary(self, principal: Principal) -> ConsoleSummary:
        clock = self._context.clock
        name, counts = await self._context.database.read(_named_counts, principal.operator_id, clock.now_us())
        funds: TreasuryFunds | None = None
        try:
            funds = await self._core.treasury.read()
            # The treasury is read without the sandbox's faults.
            await self._context.chain.block_height()
            is_reachable = True
        except ChainUnreachableError:
            is_reachable = False
        return ConsoleSummary(
            operator_name=name,
            **counts,
            is_chain_reachable=is_reachable,
            treasury_lamports=None if funds is None else int(funds.sol * LAMPORTS),
            treasury_burn_lamports=None if funds is None else funds.burn_lamports,
            treasury_days_left=None if funds is None else funds.days_left,
            needs_attention=tuple(self._needs_attention(counts, funds, is_chain_reachable=is_reachable)),
            is_clock_manual=clock.is_manual,
            keeps_snapshots=self._core.is_in_memory,
            policy_rules=tuple(PolicyRule(**rule._asdict()) for rule in POLICY_RULES),
            now=from_us(clock.now_us()),
        )

    def _needs_attention(
        self, counts: Mapping[str, int], funds: TreasuryFunds | None, *, is_chain_reachable: bool
    ) -> Iterator[str]:
        if not is_chain_reachable:
            yield "chain"
        if funds is not None and (
            not funds.can_pay
            or funds.is_low
            or (funds.days_left is not None and funds.days_left < DAYS_LEFT_LEAST)
        ):
            yield "treasury"
        if not self._context.clock_check.agrees():
            yield "clock"
        if self._core.schedule.lag_seconds() > self._context.settings.ready_lag_seconds:
            yield "workers"
        yield from (name for name in _WRONG if counts[name])


def _named_counts(connection: Connection, operator_id: str, now_us: int) -> tuple[str, dict[str, int]]:
    return operator_name(connection, operator_id), counts(connection, operator_id, now_us)


def _served(names: Mapping[str, KeyName], row: _Kept) -> ServedRequest:
    _, at_us, request_id, method, route, status, duration_ms, key_id = row
    name = names.get(key_id, KeyName(None, None))
    return ServedRequest(
        request_id=request_id,
        at=from_us(at_us),
        method=method,
        route=route,
        status=status,
        duration_ms=duration_ms,
        key_id=key_id,
        key_name=name.name,
        key_account_id=name.account_id,
    )
