"""What counts toward the limits of an account and of its keys: spends, and what purchases hold.

The rolling 24-hour window of spends (interface PO9) is exact, at a cost independent of their number. Each
spend stores its account's running total, itself included. The amount spent within the window is the
difference of two totals: the newest, and that of the last spend that has left the window. A failed spend is
not subtracted from the totals, which would change every later one. Its row stores the time of the spend as
`released_us`, and its amount is subtracted while that time lies within the window.

A purchase has one hold:

    (none) ── a session's cap, or the most of a payment, is reserved ──► open
    (none) ── a key with a limited total requests a transfer ──────────► closed
    open ── paid out, or it never moved anything ──────────────────────► closed, with what it cost
    closed ── its money moved after all ───────────────────────────────► open, or closed with the amount

An open hold reserves its amount, toward the daily limit, and its fees, toward the fee budget. A transfer's is
closed from the start: until it is final its transaction reserves both, and once signed it counts as a spend.
The amount of a hold, open or closed, counts toward the total of its key.

A hold is stored with its account locked, in the commit of the signed bytes or of the request, and changed in
that of the outcome. What has waited is refused without that lock: it only releases.
"""

from typing import Any, Final

from attrs import evolve, frozen
from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
)

from agentpay.contract.usdc import from_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import (
    AccountRecord,
    HoldRecord,
    State,
    TransferRecord,
    accounts,
    api_keys,
    holds,
)
from agentpay_server.database.tables import chain_transactions as table
from agentpay_server.platform.clock import DAY_US
from agentpay_server.platform.principals import Principal

# --- Holds

HOLDS: Final = Rows(HoldRecord, "subject_id")

_OF_KEY: Final = select(func.coalesce(func.sum(holds.c.amount), 0)).where(
    holds.c.key_id == bindparam("key_id")
)


def reserved_by_holds(account_id: ColumnElement[str]) -> Select[Any]:
    """Return the statement that sums the micro-USDC which the open holds of an account reserve."""
    total = func.coalesce(func.sum(holds.c.amount), 0)
    return select(total).where(holds.c.account_id == account_id, ~holds.c.closed)


_ACCOUNT: Final = bindparam("account_id", type_=Text)
RESERVED: Final = reserved_by_holds(_ACCOUNT)
OPEN_SUBJECTS: Final = select(holds.c.subject_id).where(holds.c.account_id == _ACCOUNT, ~holds.c.closed)
"""The purchases of an account whose holds are open."""

FEES: Final = select(func.coalesce(func.sum(holds.c.fees), 0)).where(
    holds.c.account_id == _ACCOUNT,
    holds.c.by_operator == bindparam("by_operator", type_=Boolean),
    ~holds.c.closed,
)
"""The lamports that an account's open holds reserve, of operators' or of agents' work."""


@frozen
class HoldChange:
    """What becomes of a hold, as data: its amount in micro-USDC, and whether it is open.

    A transfer of a key without a limit has no hold, so that nothing changes.
    """

    subject_id: str
    amount: int = 0
    is_open: bool = False

    def write(self, connection: Connection) -> None:
        """Write it."""
        HOLDS.change(connection, self.subject_id, amount=self.amount, closed=not self.is_open)


def reserve(connection: Connection, hold: HoldRecord, *, fees: int) -> None:
    """Store a hold as open, with the fees that it reserves. What has waited for approval has one already."""
    values: dict[str, Any] = {"by_operator": hold.by_operator, "fees": fees, "closed": False}
    if hold.key_id is None or HOLDS.change(connection, hold, **values) is None:
        HOLDS.insert(connection, evolve(hold, **values))


def spent_by_key(connection: Connection, key_id: str) -> int:
    """Return the micro-USDC that count toward a key's total. For a decision, its account must be locked."""
    return int(connection.execute(_OF_KEY, {"key_id": key_id}).scalar_one())


# --- The window of spends

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
_SPAN_US: Final = 1 << 37
"""A power of two, and more microseconds than the window has."""


def _last_without_room() -> Select[Any]:
    """Return the statement that reads the last start of the window at which too little has left it.

    `excess` micro-USDC have to leave. The search halves its step 37 times, so that its cost does not depend
    on the number of spends: an index has the running total at each start.
    """
    start = bindparam("start_us", type_=BigInteger)
    half = literal_column(str(_SPAN_US // 2), BigInteger)
    search = select(start.label("at_us"), half.label("step_us")).cte("search", recursive=True)
    later = search.c.at_us + search.c.step_us
    spent, released = table.alias("spent"), table.alias("released")
    of_account = bindparam("account_id", type_=Text)

    def total_at(moment: ColumnElement[int]) -> ColumnElement[int]:
        newest = (
            select(spent.c.spent_total)
            .where(spent.c.account_id == of_account, spent.c.spent_us <= moment)
            .order_by(spent.c.spent_us.desc(), spent.c.spent_total.desc())
            .limit(1)
        )
        return func.coalesce(newest.scalar_subquery(), literal_column("0"))

    failed = select(func.coalesce(func.sum(released.c.hold), literal_column("0"))).where(
        released.c.account_id == of_account, released.c.released_us > start, released.c.released_us <= later
    )
    gone = total_at(later) - total_at(start) - cast(failed.scalar_subquery(), BigInteger)
    is_short = gone < bindparam("excess", type_=BigInteger)
    next_us = case((is_short, later), else_=search.c.at_us)
    halved = search.c.step_us // literal_column("2", BigInteger)
    search = search.union_all(select(next_us, halved).where(search.c.step_us > literal_column("0")))
    return select(func.max(search.c.at_us))


_LAST_WITHOUT_ROOM: Final = _last_without_room()
_COUNTED: Final = select(
    _TOTAL_BEFORE.scalar_subquery(), _RELEASED.scalar_subquery(), RESERVED.scalar_subquery()
)

# What is in flight for an open hold is part of it, and counts once: also what was reorganized away and is
# sent again. A partial index serves each of the two conditions.
_IN_FLIGHT_OF_OPEN: Final = select(func.coalesce(func.sum(table.c.hold), 0)).where(
    table.c.account_id == bindparam("account_id"),
    or_(table.c.state == literal_column(f"'{State.PENDING}'"), table.c.vanished_hold > literal_column("0")),
    table.c.subject_id.in_(OPEN_SUBJECTS),
)
_RESERVED: Final = select(RESERVED.scalar_subquery(), _IN_FLIGHT_OF_OPEN.scalar_subquery())

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
    + cast(reserved_by_holds(accounts.c.account_id).correlate(accounts).scalar_subquery(), BigInteger)
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


def room_us(connection: Connection, account: AccountRecord, now_us: int, excess_micro: int) -> int | None:
    """Return from when the window has room for a spend if nothing else is spent; None if it never will.

    Spends leave the window; what open holds reserve stays.

    Args:
        connection: the connection.
        account: the account.
        now_us: the end of the window that has no room.
        excess_micro: by how much the spend exceeds the limit, in micro-USDC.
    """
    start_us = window_start_us(now_us)
    values = {"account_id": account.account_id, "start_us": start_us, "excess": excess_micro}
    last_us = int(connection.execute(_LAST_WITHOUT_ROOM, values).scalar_one())
    is_never = last_us == start_us + _SPAN_US - 1
    return None if is_never else last_us + 1 + WINDOW_US


def reserved(connection: Connection, account: AccountRecord) -> int:
    """Return the micro-USDC of an account that count as spent but may be released.

    These are the amounts of its transfers in flight, and what open holds reserve.
    """
    ((held, in_flight),) = connection.execute(_RESERVED, {"account_id": account.account_id})
    return account.in_flight - int(in_flight) + int(held)


# --- Keys


def is_alive(now_us: BindParameter[int]) -> ColumnElement[bool]:
    """Return the condition that a row of `api_keys` is alive."""
    return and_(
        api_keys.c.revoked_us.is_(None),
        or_(api_keys.c.expires_us.is_(None), api_keys.c.expires_us > now_us),
    )


_LIVE: Final = select(api_keys.c.key_id).where(
    api_keys.c.key_id == bindparam("key_id"), is_alive(bindparam("now_us"))
)


def live_keys(connection: Connection, key_ids: set[str], now_us: int) -> set[str]:
    """Return those of some keys that are alive."""
    return {
        key_id
        for key_id in key_ids
        if connection.execute(_LIVE, {"key_id": key_id, "now_us": now_us}).one_or_none() is not None
    }


@frozen
class KeyName:
    """The label of a key, and the account of an agent-scoped one."""

    name: str | None
    account_id: str | None


_NAME: Final = select(api_keys.c.name, api_keys.c.account_id).where(api_keys.c.key_id == bindparam("key_id"))


def key_names(connection: Connection, key_ids: set[str]) -> dict[str, KeyName]:
    """Return the names of keys, revoked ones included."""
    found = {key_id: connection.execute(_NAME, {"key_id": key_id}).one_or_none() for key_id in key_ids}
    return {key_id: KeyName(*row) for key_id, row in found.items() if row is not None}


# The total that an agent key may spend in its lifetime, `max_total_usdc` (interface K11).
#
# The total is not a counter: it is the sum of the key's holds, read while its account is locked. An agent key
# spends from one account only, so of two requests at once the second counts the first. A transfer holds its
# amount from its request, while it waits for approval too, until it is refused or it is proved that it never
# happened; a session holds its whole cap until it is settled. What an operator approves counts toward the key
# that requested it.

_LIMIT: Final = select(api_keys.c.max_total).where(api_keys.c.key_id == bindparam("key_id"))


@frozen(kw_only=True)
class LimitedKey:
    """A key whose total is limited.

    Attributes:
        key_id: the key.
        max_total_micro: the most that it may spend, in micro-USDC. It never changes.
        judged_micro: micro-USDC of a waiting transfer that is judged again: it does not count against itself.
    """

    key_id: str
    max_total_micro: int
    judged_micro: int = 0

    def spent_micro(self, connection: Connection) -> int:
        """Return the micro-USDC that count toward the limit. For a decision, the account must be locked."""
        return spent_by_key(connection, self.key_id) - self.judged_micro


def left_of_key(connection: Connection, key: LimitedKey | None) -> int | None:
    """Return how many micro-USDC a key may still spend; None without a limit."""
    return None if key is None else max(key.max_total_micro - key.spent_micro(connection), 0)


def least(*limits_micro: int | None) -> int | None:
    """Return the smallest of some limits; None stands for no limit."""
    return min((limit for limit in limits_micro if limit is not None), default=None)


def total_fields(connection: Connection, key: LimitedKey | None) -> dict[str, Any]:
    """Return the fields of a response that say what a key may spend in total, and what it has spent."""
    return {
        "max_total_usdc": None if key is None else from_micro(key.max_total_micro),
        "spent_total_usdc": None if key is None else from_micro(key.spent_micro(connection)),
    }


def limited_key(key_id: str, max_total_micro: int | None) -> LimitedKey | None:
    """Return a key with its limit; None if its total is not limited."""
    return None if max_total_micro is None else LimitedKey(key_id=key_id, max_total_micro=max_total_micro)


def key_of(principal: Principal) -> LimitedKey | None:
    """Return the key of a request; None if its total is not limited."""
    return limited_key(principal.key_id, principal.max_total_micro)


def limited_key_id(principal: Principal) -> str | None:
    """Return the identifier of the key of a request; None if its total is not limited."""
    return None if principal.max_total_micro is None else principal.key_id


def key_of_waiting(connection: Connection, transfer: TransferRecord) -> LimitedKey | None:
    """Return the key that requested a waiting transfer, to judge that again; None without a limit."""
    found = connection.execute(_LIMIT, {"key_id": transfer.key_id}).scalar_one_or_none()
    key = limited_key(transfer.key_id, found)
    return None if key is None else evolve(key, judged_micro=transfer.amount)
