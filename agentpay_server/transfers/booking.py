"""The records of a transfer's changes: balances, history, events (interface T13, T14, H2, EV1, EV4)."""

from decimal import Decimal
from functools import partial

from agentpay.contract import events, identifiers
from agentpay.contract.errors import ErrorCode, RejectionReason
from agentpay.contract.transactions import Direction, TransactionStatus, TransactionType
from agentpay.contract.usdc import from_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import EntryRecord, TransferRecord
from agentpay_server.engine import low_balance
from agentpay_server.engine.handlers import Unit
from agentpay_server.ledger import accounts, audit, entries
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.outbox import NewEvent, Outbox
from agentpay_server.ledger.transactions import ChainTransaction
from agentpay_server.platform.clock import from_us


def book_rejection(
    connection: Connection,
    context: Context,
    transfer: TransferRecord,
    now_us: int,
    *,
    code: ErrorCode | RejectionReason,
    message: str,
    before: tuple[NewEvent, ...] = (),
) -> None:
    """Write the history entry and the event of a rejected or failed transfer.

    `transfer` is in its final state; the events in `before` come first.
    """
    entries.insert_entries(
        connection,
        EntryRecord(
            transaction_id=context.identifiers.new(identifiers.ENTRY),
            account_id=transfer.account_id,
            type=TransactionType.REJECTION.value,
            status=TransactionStatus.REJECTED.value,
            direction=Direction.OUT.value,
            amount=transfer.amount,
            counterparty=transfer.to,
            memo=transfer.memo,
            category=transfer.category,
            tx_signature=transfer.tx_signature,
            transfer_id=transfer.transfer_id,
            rejection_reason=code.value,
            created_us=now_us,
        ),
    )
    rejected = NewEvent(
        type="transfer.rejected",
        data=events.TransferRejectedData(
            account_id=transfer.account_id,
            rejection_reason=code.value,
            transfer_id=transfer.transfer_id,
            to=transfer.to,
            amount_usdc=from_micro(transfer.amount),
            message=message,
        ),
    )
    record_events(connection, context, transfer, now_us, *before, rejected)


def audited(transfer: TransferRecord) -> dict[str, object]:
    """Return a transfer's request, and its outcome so far, for the audit trail."""
    return audit.given(
        account_id=transfer.account_id,
        to=transfer.to,
        amount_usdc=audit.usdc(transfer.amount),
        memo=transfer.memo,
        category=transfer.category,
        idempotency_key=transfer.idempotency_key,
        status=transfer.status,
        error=transfer.error,
        message=transfer.message,
        tx_signature=transfer.tx_signature,
    )


def initiated(transfer: TransferRecord, tx_signature: str | None) -> NewEvent:
    """Return the event that a transfer was sent as a transaction."""
    return NewEvent(
        type="transfer.initiated",
        data=events.TransferInitiatedData(
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            to=transfer.to,
            amount_usdc=from_micro(transfer.amount),
            tx_signature=tx_signature,
        ),
    )


def settled(transfer: TransferRecord, tx_signature: str | None, now_us: int) -> NewEvent:
    """Return the event that a transfer is final on chain."""
    assert tx_signature is not None  # noqa: S101 - set when it was signed
    return NewEvent(
        type="transfer.settled",
        data=events.TransferSettledData(
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            amount_usdc=from_micro(transfer.amount),
            tx_signature=tx_signature,
            settled_at=from_us(now_us),
        ),
    )


def escalated(transfer: TransferRecord, threshold: Decimal) -> NewEvent:
    """Return the event that a transfer is pending an operator's approval."""
    return NewEvent(
        type="escalation.required",
        data=events.EscalationRequiredData(
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            to=transfer.to,
            amount_usdc=from_micro(transfer.amount),
            memo=transfer.memo,
            escalation_threshold=threshold,
        ),
    )


def book_settled(
    unit: Unit,
    transfer: TransferRecord,
    tx_signature: str | None,
    *,
    is_initiated: bool,
    emits_settled: bool = True,
    is_received: bool = False,
) -> None:
    """Write everything that a settled transfer changes, on both sides.

    Args:
        unit: the unit of work.
        transfer: the transfer.
        tx_signature: the signature of the transaction that has landed.
        is_initiated: whether `transfer.initiated` is already written.
        emits_settled: whether to write `transfer.settled`.
        is_received: whether the recipient's account has already booked it as a deposit.
    """
    payee = None if is_received else transfer.recipient_account_id
    outbox = _outbox(unit.connection, unit.context, transfer, unit.now_us)
    if not is_initiated:
        outbox.add(initiated(transfer, tx_signature))
    if emits_settled:
        outbox.add(settled(transfer, tx_signature, unit.now_us))
    payee_operator = _book_balances(outbox, unit, transfer, payee)
    _write_history(unit, transfer, tx_signature, payee=payee, payee_operator=payee_operator)
    outbox.write()


def spend_late(unit: Unit, tx: ChainTransaction, amount: int) -> None:
    """Reserve and count the amount of a transaction that landed although it was considered expired."""
    connection = unit.connection
    source = accounts.ACCOUNTS.existing(connection, tx.account_id, lock=True)
    if tx.released_us is not None:
        # It was released. It counts again, at its original time.
        chain_transactions.set_released(connection, tx, None)
        accounts.reserve_again(connection, source.account_id, amount)
        return
    spent_us = max(unit.now_us, source.last_spend_us)
    total = source.spent_total + amount
    chain_transactions.set_spend(connection, tx, spent_us=spent_us, spent_total=total)
    accounts.reserve(connection, source.account_id, spent_total=total, spent_us=spent_us, amount=amount)


def record_events(
    connection: Connection, context: Context, transfer: TransferRecord, now_us: int, *new_events: NewEvent
) -> None:
    """Write events about a transfer to the outbox, in order."""
    outbox = _outbox(connection, context, transfer, now_us)
    for event in new_events:
        outbox.add(event)
    outbox.write()


def _outbox(connection: Connection, context: Context, transfer: TransferRecord, now_us: int) -> Outbox:
    return Outbox(
        connection,
        context,
        operator_id=transfer.operator_id,
        account_id=transfer.account_id,
        now_us=now_us,
    )


def _book_balances(outbox: Outbox, unit: Unit, transfer: TransferRecord, payee: str | None) -> str | None:
    """Book the balances of both sides; return the payee's operator if this service holds the payee."""
    payee_operator = None
    # Lock rows in one order, so that two transfers in opposite directions never deadlock.
    if payee is not None and payee < transfer.account_id:
        payee_operator = accounts.credit(outbox.connection, payee, transfer.amount)
    low_balance.spent(outbox, unit, transfer.account_id, transfer.amount)
    if payee is not None and payee > transfer.account_id:
        payee_operator = accounts.credit(outbox.connection, payee, transfer.amount)
    return payee_operator


def _write_history(
    unit: Unit,
    transfer: TransferRecord,
    tx_signature: str | None,
    *,
    payee: str | None,
    payee_operator: str | None,
) -> None:
    entry = partial(
        EntryRecord,
        status=TransactionStatus.SETTLED.value,
        amount=transfer.amount,
        tx_signature=tx_signature,
        transfer_id=transfer.transfer_id,
        created_us=unit.now_us,
    )
    rows = [
        entry(
            transaction_id=unit.context.identifiers.new(identifiers.ENTRY),
            account_id=transfer.account_id,
            type=TransactionType.TRANSFER.value,
            direction=Direction.OUT.value,
            counterparty=transfer.to,
            memo=transfer.memo,
            category=transfer.category,
        )
    ]
    if payee is not None:
        # The payer's memo and category are private to its operator (interface T10).
        is_own = payee_operator == transfer.operator_id
        rows.append(
            entry(
                transaction_id=unit.context.identifiers.new(identifiers.ENTRY),
                account_id=payee,
                type=TransactionType.DEPOSIT.value,
                direction=Direction.IN.value,
                counterparty=transfer.account_id,
                memo=transfer.memo if is_own else None,
                category=transfer.category if is_own else None,
            )
        )
    entries.insert_entries(unit.connection, *rows)
