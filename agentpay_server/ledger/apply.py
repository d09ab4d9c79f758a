"""What an outcome changes, as data, and how it is written in the caller's unit of work.

Movements and decisions return an `Outcome`: amounts, history, rows, events and audit entries. All units write
in one order: the transaction that has ended (`engine/movement.py`), accounts by identifier, the subject,
everything else. So two units never wait for each other. The accounts are one statement, which locks them.
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import cache, partial
from typing import Any, Final, Generic, TypeVar, cast

from attrs import evolve, field, frozen
from sqlalchemy import BigInteger, ColumnElement, bindparam, case, func, literal_column, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from agentpay.contract import identifiers
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.database.connection import ADDS, Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import AccountRecord, EntryRecord
from agentpay_server.database.tables import accounts as table
from agentpay_server.ledger import accounts, audit, transactions
from agentpay_server.ledger.audit import Record
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.outbox import NewEvent, Outbox
from agentpay_server.ledger.spending import HoldChange
from agentpay_server.ledger.transactions import StoredTransaction

S = TypeVar("S")


@frozen
class Unit:
    """A running unit of work.

    Attributes:
        after_commit: hooks to run after its commit.
    """

    connection: Connection
    context: Context
    now_us: int
    after_commit: list[Callable[[], Awaitable[None]]] = field(factory=list)

    @classmethod
    def begin(cls, connection: Connection, context: Context) -> "Unit":
        """Return a unit of work at the current time, for what the chain shows.

        Raises:
            ChainUnreachableError: the clocks differ. Outcomes wait too: a spend that a wrong clock dates into
                the future moves the window of the daily limit past the earlier spends.
        """
        now_us = context.clock.now_us()
        if not context.clock_check.agrees(now_us):
            raise ChainUnreachableError("this server's clock differs from its database's")
        return cls(connection, context, now_us)


@frozen(kw_only=True)
class Posting:
    """What changes for one account. Amounts are in micro-USDC, and never negative.

    Attributes:
        credit: arrives in the balance.
        debit: leaves the balance. If that crosses a low-balance threshold, there is an event.
        hold: is in flight from now on: it may leave the balance.
        release: is no longer in flight.
        spent: counts toward the daily limit from now on, as a spend of the outcome's transaction.
        burned: lamports of the outcome's transaction that brought no payment, if an agent caused them
            (`engine/funding.py`).
        operator_burned: the same, if an operator key requested or approved the transaction's work.
        suspends: whether nothing may be signed for the account until an operator allows it.
        entries: its history. When they are written, they get the account, the operator, the time, and an
            identifier if they have none. Memo and category are private to the operator of the outcome.
    """

    account_id: str
    credit: int = 0
    debit: int = 0
    hold: int = 0
    release: int = 0
    spent: int = 0
    burned: int = 0
    operator_burned: int = 0
    suspends: bool = False
    entries: tuple[EntryRecord, ...] = ()

    @property
    def added(self) -> dict[str, int]:
        """What it adds to columns of the account."""
        return {
            "balance": self.credit - self.debit,
            "in_flight": self.hold - self.release,
            "in_flight_total": self.hold,
            "spent_total": self.spent,
            "burned_total": self.burned,
            "operator_burned_total": self.operator_burned,
        }

    def changes(self, now_us: int) -> dict[str, int]:
        """Return what it adds to columns of the account, and the times that it sets."""
        times = {
            "last_spend_us": self.spent,
            "last_burned_us": self.burned or self.operator_burned,
            "suspended_us": self.suspends,
        }
        added = {name: amount for name, amount in self.added.items() if amount}
        return added | {name: now_us for name, is_set in times.items() if is_set}

    def plus(self, other: "Posting") -> "Posting":
        """Return both as one posting of the same account."""
        return Posting(
            account_id=self.account_id,
            credit=self.credit + other.credit,
            debit=self.debit + other.debit,
            hold=self.hold + other.hold,
            release=self.release + other.release,
            spent=self.spent + other.spent,
            burned=self.burned + other.burned,
            operator_burned=self.operator_burned + other.operator_burned,
            suspends=self.suspends or other.suspends,
            entries=self.entries + other.entries,
        )


@frozen(kw_only=True)
class Outcome(Generic[S]):
    """Everything that one outcome or decision changes.

    Attributes:
        operator_id: the operator whose webhooks get the events.
        account_id: the account that the events are about; only it is debited.
        subject: the change of the transfer, session or record, or the row itself if it stays as it is.
        postings: several of one account are added up.
        changes: of further rows, and of holds.
    """

    operator_id: str
    account_id: str
    subject: Change[S] | S
    postings: tuple[Posting, ...] = ()
    changes: tuple[Change[Any] | HoldChange, ...] = ()
    events: tuple[NewEvent, ...] = ()
    audit: tuple[Record, ...] = ()

    def also(
        self,
        *postings: Posting,
        changes: Iterable[Change[Any] | HoldChange] = (),
        audit: Iterable[Record] = (),
    ) -> "Outcome[S]":
        """Return it with more postings, changes and audit entries."""
        return evolve(
            self,
            postings=self.postings + postings,
            changes=(*self.changes, *changes),
            audit=(*self.audit, *audit),
        )


def apply(unit: Unit, outcome: Outcome[S], tx: StoredTransaction | None = None) -> S:
    """Write an outcome, and return its subject as it is now.

    Args:
        unit: the unit of work.
        outcome: the outcome.
        tx: the stored transaction that has ended, if any: the outcome's spends and lamports are its own.

    Raises:
        StaleRowError: a row is not in the required state. Nothing must be committed.
        ConflictError: a row with the same unique values exists.
    """
    connection = unit.connection
    postings = _merged(outcome.postings)
    posted = post_all(connection, postings, unit.now_us)
    subject = outcome.subject
    stored = subject.write(connection) if isinstance(subject, Change) else subject
    for change in outcome.changes:
        change.write(connection)
    _count(connection, postings, posted, tx)
    _write_history(unit, outcome, postings, posted)
    _write_events(unit, outcome, postings, posted)
    for each in outcome.audit:
        audit.record(
            connection,
            each.actor,
            action=each.action,
            subject=each.subject,
            now_us=unit.now_us,
            before=each.before,
            after=each.after,
            has_happened=each.has_happened,
        )
    return cast("S", stored)


_UNCHANGED: Final = Posting(account_id="").added
_DATED: Final = ("last_spend_us", "last_burned_us", "suspended_us")


@cache
def _posted(names: tuple[str, ...], count: int) -> ReturningUpdate[Any]:
    """Return the statement that changes columns of so many accounts; it locks them in the order given."""
    ids = [bindparam(f"account_{place}", type_=table.c.account_id.type) for place in range(count)]
    where, locked = [table.c.account_id.in_(ids)], table.alias()
    if count > 1:
        # Not by the database's own order of texts, in which other units do not lock them.
        place_of = case(
            *((locked.c.account_id == each, literal_column(str(n))) for n, each in enumerate(ids))
        )
        in_order = select(locked.c.account_id).where(locked.c.account_id.in_(ids)).order_by(place_of)
        where.append(table.c.account_id.in_(in_order.with_for_update()))

    def changed(name: str) -> ColumnElement[Any]:
        column = table.c[name]
        of_each = [bindparam(f"{name}_{place}", type_=BigInteger) for place in range(count)]
        is_each = [table.c.account_id == each for each in ids]
        given = case(*zip(is_each, of_each, strict=True)) if count > 1 else of_each[0]
        if name == "suspended_us":
            return func.coalesce(column, given)
        # Times of spends never decrease within an account.
        return case((given > column, given), else_=column) if name in _DATED else column + given

    return (
        update(table)
        .where(*where)
        .values({name: changed(name) for name in names})
        .returning(*table.c)
        .execution_options(**ADDS)
    )


_POST_ALL: Final = _posted((*_UNCHANGED, *_DATED), 2)
"""The widest of them, whose names every engine must know."""


def post(connection: Connection, posting: Posting, now_us: int) -> AccountRecord:
    """Write the amounts of one posting, and return the account as it is now; see `post_all`."""
    return post_all(connection, [posting], now_us)[posting.account_id]


def post_all(connection: Connection, postings: list[Posting], now_us: int) -> dict[str, AccountRecord]:
    """Write the amounts of postings of different accounts, and return those that change, as they are now.

    A spend is dated, and lamports without a payment are: at `now_us`, or at the last one if that is later.
    """
    changes = {each.account_id: changed for each in postings if (changed := each.changes(now_us))}
    if not changes:
        return {}
    names = tuple(dict.fromkeys(name for each in changes.values() for name in each))
    values: dict[str, object] = {}
    for place, account_id in enumerate(sorted(changes)):
        values[f"account_{place}"], changed = account_id, changes[account_id]
        for name in names:
            values[f"{name}_{place}"] = changed.get(name, _UNCHANGED.get(name))
    rows = connection.execute(_posted(names, len(changes)), values)
    posted = {record.account_id: record for record in map(accounts.ACCOUNTS.record, rows)}
    if posted.keys() != changes.keys():
        raise LookupError(f"one of {', '.join(changes)} is gone")
    return posted


def _merged(postings: tuple[Posting, ...]) -> list[Posting]:
    """Return one posting for each account, in the order in which they are first named."""
    merged: dict[str, Posting] = {}
    for posting in postings:
        before = merged.get(posting.account_id)
        merged[posting.account_id] = posting if before is None else before.plus(posting)
    return list(merged.values())


def _count(
    connection: Connection,
    postings: list[Posting],
    posted: dict[str, AccountRecord],
    tx: StoredTransaction | None,
) -> None:
    """Store with the transaction when its amounts count, and the account's running totals with them."""
    values: dict[str, Any] = {}
    for posting in postings:
        if posting.spent:
            account = posted[posting.account_id]
            values |= {"spent_us": account.last_spend_us, "spent_total": account.spent_total}
        if posting.burned or posting.operator_burned:
            account = posted[posting.account_id]
            total = account.operator_burned_total if posting.operator_burned else account.burned_total
            values |= {"burned_us": account.last_burned_us, "burned_total": total}
    if values:
        if tx is None:
            raise ValueError("a spend belongs to a transaction")
        transactions.TRANSACTIONS.changed(connection, tx, **values)


def _write_history(
    unit: Unit, outcome: Outcome[Any], postings: list[Posting], posted: dict[str, AccountRecord]
) -> None:
    rows: list[dict[str, Any]] = []
    for posting in postings:
        if not posting.entries:
            continue
        account = posted.get(posting.account_id)
        operator_id = outcome.operator_id if account is None else account.operator_id
        # The payer's memo and category are private to its operator (interface T10).
        is_own = operator_id == outcome.operator_id
        hidden: dict[str, Any] = {} if is_own else {"memo": None, "category": None}
        own = {"operator_id": operator_id, "account_id": posting.account_id, "created_us": unit.now_us}
        for entry in posting.entries:
            entry_id = entry.transaction_id or unit.context.identifiers.new(identifiers.ENTRY)
            rows.append(accounts.ENTRIES.values(entry) | own | hidden | {"transaction_id": entry_id})
    if rows:
        accounts.insert_entries(unit.connection, rows)


def _write_events(
    unit: Unit, outcome: Outcome[Any], postings: list[Posting], posted: dict[str, AccountRecord]
) -> None:
    debited = [posting for posting in postings if posting.debit]
    if not debited and not outcome.events:
        return
    outbox = Outbox(
        unit.connection,
        unit.context,
        operator_id=outcome.operator_id,
        account_id=outcome.account_id,
        now_us=unit.now_us,
    )
    for event in outcome.events:
        outbox.add(event)
    for posting in debited:
        _check_low_balance(outbox, unit, posted[posting.account_id], posting.debit)
    outbox.write()


# Low balances (interface EV4). On a cluster, deposits are posted some time after they arrive, so the posted
# balance may look low by mistake. Such a balance is checked when the books are next compared with the chain.


def _check_low_balance(outbox: Outbox, unit: Unit, account: AccountRecord, amount_micro: int) -> None:
    """Check the balance that remains of an account, now that an amount has left it.

    A check that must read the chain runs after the commit.
    """
    connection, context, account_id = unit.connection, unit.context, account.account_id
    before_micro = account.balance + amount_micro + account.unjudged_spend
    if context.is_cluster and outbox.wants_drop(before_micro=before_micro, after_micro=account.balance):
        accounts.ACCOUNTS.changed(connection, account_id, add={"unjudged_spend": amount_micro})
        unit.after_commit.append(partial(_judge_on_chain, context, account_id))
        return
    outbox.add_drop_of_balance(before_micro=before_micro, after_micro=account.balance)
    if account.unjudged_spend:
        accounts.ACCOUNTS.changed(connection, account_id, unjudged_spend=0)


async def _judge_on_chain(context: Context, account_id: str) -> None:
    """Check a balance that looks low in the books, unless the chain holds more than is posted.

    If the chain does not respond, the next comparison of books and chain checks it.
    """
    account = await context.database.read(accounts.ACCOUNTS.existing, account_id)
    try:
        (held,) = await context.chain.token_accounts([account.usdc_token_account])
    except ChainUnreachableError:
        return
    await judge_low_balance(context, account_id, 0 if held is None else held.amount_micro)


async def judge_low_balance(context: Context, account_id: str, held_micro: int) -> None:
    """Check a balance, given the on-chain amount. If that is larger, the books are behind."""
    if await context.database.run(_judged, context, account_id, held_micro):
        context.wakeup.set()


def _judged(connection: Connection, context: Context, account_id: str, held_micro: int) -> bool:
    account = accounts.ACCOUNTS.existing(connection, account_id, lock=True)
    if not account.unjudged_spend or held_micro > account.balance:
        return False
    outbox = Outbox(
        connection,
        context,
        operator_id=account.operator_id,
        account_id=account_id,
        now_us=context.clock.now_us(),
    )
    outbox.add_drop_of_balance(
        before_micro=account.balance + account.unjudged_spend, after_micro=account.balance
    )
    accounts.ACCOUNTS.changed(connection, account_id, unjudged_spend=0)
    outbox.write()
    return True
