"""Writes what an outcome changes, in the caller's unit of work.

All units write in one order: the transaction that has ended (`engine/outcomes.py`), accounts by identifier,
the subject, everything else. So two units never wait for each other. Each account is one statement, which
also locks it.
"""

from typing import Any, TypeVar, cast

import attrs

from agentpay.contract import identifiers
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import AccountRecord, EntryRecord
from agentpay_server.ledger import accounts, audit, entries, low_balance, transactions
from agentpay_server.ledger.outbox import Outbox
from agentpay_server.ledger.outcome import Entry, Outcome, Posting, Unit
from agentpay_server.ledger.transactions import StoredTransaction

S = TypeVar("S")


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
    posted = {
        posting.account_id: post(connection, posting, unit.now_us)
        for posting in sorted(postings, key=lambda each: each.account_id)
        if posting.suspends or any(posting.added.values())
    }
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


def post(connection: Connection, posting: Posting, now_us: int) -> AccountRecord:
    """Write the amounts of one posting, and return the account as it is now."""
    return accounts.post(
        connection, posting.account_id, add=posting.added, now_us=now_us, suspends=posting.suspends
    )


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
    rows = [
        _entry(unit, outcome, entry, posting.account_id, posted.get(posting.account_id))
        for posting in postings
        for entry in posting.entries
    ]
    if rows:
        entries.insert_entries(unit.connection, *rows)


def _entry(
    unit: Unit, outcome: Outcome[Any], entry: Entry, account_id: str, account: AccountRecord | None
) -> EntryRecord:
    is_own = account is None or account.operator_id == outcome.operator_id
    values = attrs.asdict(entry, recurse=False)
    return EntryRecord(
        operator_id=outcome.operator_id if account is None else account.operator_id,
        account_id=account_id,
        created_us=unit.now_us,
        **{
            **values,
            "transaction_id": entry.transaction_id or unit.context.identifiers.new(identifiers.ENTRY),
            "type": entry.type.value,
            "status": entry.status.value,
            "direction": entry.direction.value,
            # The payer's memo and category are private to its operator (interface T10).
            "memo": entry.memo if is_own else None,
            "category": entry.category if is_own else None,
        },
    )


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
        low_balance.check(outbox, unit, posted[posting.account_id], posting.debit)
    outbox.write()
