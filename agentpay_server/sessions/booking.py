"""The records of a session's changes: balances, spends, history, events (interface S18, EV1, H2).

When the escrow is funded, the cap leaves the balance and counts as reserved. At the settlement the charges
become a spend, and the rest returns to the balance. The history contains only the settlement: until then the
money in the escrow still belongs to the account.
"""

import json
from functools import partial

from agentpay.contract import events, identifiers
from agentpay.contract.choices import EventType
from agentpay.contract.transactions import Direction, TransactionStatus, TransactionType
from agentpay.contract.usdc import from_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import EntryRecord, SessionRecord
from agentpay_server.engine import fees, low_balance
from agentpay_server.engine.handlers import Unit
from agentpay_server.ledger import accounts, audit, entries
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.outbox import NewEvent, Outbox
from agentpay_server.ledger.transactions import ChainTransaction
from agentpay_server.platform.clock import from_us
from agentpay_server.sessions.rules import cap_events


def audited(session: SessionRecord) -> dict[str, object]:
    """Return a session's request, and its outcome so far, for the audit trail."""
    return audit.given(
        account_id=session.account_id,
        to=session.to,
        cap_usdc=audit.usdc(session.cap),
        category=session.category,
        idempotency_key=session.idempotency_key,
        status=session.status,
        error=session.error,
        message=session.message,
        tx_signature=session.tx_signature,
    )


def book_opened(unit: Unit, session: SessionRecord, tx_signature: str) -> None:
    """Book an escrow that a transaction has funded."""
    opened = NewEvent(
        type="session.opened",
        data=events.SessionOpenedData(
            session_id=session.session_id,
            cap_usdc=from_micro(session.cap),
            account_id=session.account_id,
            to=session.to,
            category=session.category,
            tx_signature=tx_signature,
        ),
    )
    outbox = _outbox(unit.connection, unit.context, session, unit.now_us)
    outbox.add(opened)
    low_balance.spent(outbox, unit, session.account_id, session.cap)
    outbox.write()


def book_charged(
    connection: Connection, context: Context, session: SessionRecord, now_us: int, *, before_micro: int
) -> bool:
    """Write the events of a charge, and return whether there are any.

    `session` is its state after the charge; `before_micro` is the running total before it.
    """
    fired = cap_events(session.cap, before_micro=before_micro, after_micro=session.running_total)
    if not fired:
        return False
    outbox = _outbox(connection, context, session, now_us)
    for event_type in fired:
        outbox.add(NewEvent(type=event_type, data=_cap_data(event_type, session)))
    outbox.write()
    return True


def book_settled(unit: Unit, tx: ChainTransaction, session: SessionRecord) -> None:
    """Book a settled session on both sides."""
    deposited = deposited_micro(tx)
    payee_operator = _book_balances(unit, tx, session, deposited)
    # The rent of a token account for the payee is gone; without a charge, so are both fees.
    burned = tx.rent + (0 if session.running_total else session.opening_fee + tx.fee)
    fees.burn(unit.connection, tx, burned, unit.now_us)
    _write_history(unit, tx, session, payee_operator, deposited)
    settled = NewEvent(
        type="session.settled",
        data=events.SessionSettledData(
            session_id=session.session_id,
            account_id=session.account_id,
            cap_usdc=from_micro(session.cap),
            settled_usdc=from_micro(session.running_total),
            returned_usdc=from_micro(session.cap - session.running_total),
            tx_signature=tx.signature,
            settled_at=from_us(unit.now_us),
        ),
    )
    outbox = _outbox(unit.connection, unit.context, session, unit.now_us)
    outbox.add(settled)
    outbox.write()


def book_loss(unit: Unit, tx: ChainTransaction, session: SessionRecord) -> None:
    """Book a cap that was paid into the escrow of a settled session: an operator must recover it."""
    connection, now_us = unit.connection, unit.now_us
    source = accounts.ACCOUNTS.existing(connection, session.account_id, lock=True)
    spent_us, total = max(now_us, source.last_spend_us), source.spent_total + session.cap
    chain_transactions.set_spend(connection, tx, spent_us=spent_us, spent_total=total)
    accounts.reserve(connection, source.account_id, spent_total=total, spent_us=spent_us, amount=session.cap)
    accounts.debit(connection, source.account_id, session.cap)
    entry = EntryRecord(
        transaction_id=unit.context.identifiers.new(identifiers.ENTRY),
        account_id=session.account_id,
        type=TransactionType.TRANSFER.value,
        status=TransactionStatus.SETTLED.value,
        direction=Direction.OUT.value,
        amount=session.cap,
        counterparty=session.escrow_token_account,
        category=session.category,
        tx_signature=tx.signature,
        session_id=session.session_id,
        created_us=now_us,
    )
    entries.insert_entries(connection, entry)


def detail_of(deposited: int) -> str:
    """Return a settlement's `detail`: the surplus beyond the cap, in micro-USDC."""
    return json.dumps({"deposited": deposited})


def deposited_micro(tx: ChainTransaction) -> int:
    """Return the surplus of a settlement beyond the cap, which third parties sent to the escrow."""
    return int(json.loads(tx.detail or "{}").get("deposited", 0))


def _outbox(connection: Connection, context: Context, session: SessionRecord, now_us: int) -> Outbox:
    return Outbox(
        connection,
        context,
        operator_id=session.operator_id,
        account_id=session.account_id,
        now_us=now_us,
    )


def _cap_data(event_type: EventType, session: SessionRecord) -> object:
    running_total, cap = from_micro(session.running_total), from_micro(session.cap)
    if event_type == "session.cap_warning":
        return events.SessionCapWarningData(
            session_id=session.session_id, running_total_usdc=running_total, cap_usdc=cap
        )
    return events.SessionCapReachedData(
        session_id=session.session_id,
        account_id=session.account_id,
        running_total_usdc=running_total,
        cap_usdc=cap,
    )


def _book_balances(unit: Unit, tx: ChainTransaction, session: SessionRecord, deposited: int) -> str | None:
    """Book balances, reservation and spends; return the operator of a paid payee that this service holds."""
    connection, account_id, settled = unit.connection, session.account_id, session.running_total
    payee = session.recipient_account_id if settled else None
    payee_operator = None
    # Lock rows in one order, so that two payments in opposite directions never deadlock.
    if payee is not None and payee < account_id:
        payee_operator = accounts.credit(connection, payee, settled)
    total, spent_us = accounts.settle_cap(
        connection,
        account_id,
        cap=session.cap,
        settled=settled,
        credited=session.cap - settled + deposited,
        now_us=unit.now_us,
    )
    if settled:
        chain_transactions.set_spend(connection, tx, spent_us=spent_us, spent_total=total)
    if payee is not None and payee > account_id:
        payee_operator = accounts.credit(connection, payee, settled)
    return payee_operator


def _write_history(
    unit: Unit, tx: ChainTransaction, session: SessionRecord, payee_operator: str | None, deposited: int
) -> None:
    context = unit.context
    entry = partial(
        EntryRecord,
        status=TransactionStatus.SETTLED.value,
        tx_signature=tx.signature,
        session_id=session.session_id,
        created_us=unit.now_us,
    )
    deposit = partial(entry, type=TransactionType.DEPOSIT.value, direction=Direction.IN.value)
    rows = [
        entry(
            transaction_id=context.identifiers.new(identifiers.ENTRY),
            account_id=session.account_id,
            type=TransactionType.SESSION_SETTLEMENT.value,
            direction=Direction.OUT.value,
            amount=session.running_total,
            counterparty=session.to,
            category=session.category,
        )
    ]
    if deposited:
        rows.append(
            deposit(
                transaction_id=context.identifiers.new(identifiers.ENTRY),
                account_id=session.account_id,
                amount=deposited,
                counterparty=session.escrow_token_account,
            )
        )
    if payee_operator is not None:
        assert session.recipient_account_id is not None  # noqa: S101 - an operator was paid
        rows.append(
            deposit(
                transaction_id=context.identifiers.new(identifiers.ENTRY),
                account_id=session.recipient_account_id,
                amount=session.running_total,
                counterparty=session.account_id,
                # The payer's category is private to its operator.
                category=session.category if payee_operator == session.operator_id else None,
            )
        )
    entries.insert_entries(unit.connection, *rows)
