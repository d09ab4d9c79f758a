"""What becomes of a transfer, as data: postings, history and events (interface T13, T14, H2, EV1, EV4)."""

from decimal import Decimal
from functools import partial

from agentpay.contract import events
from agentpay.contract.errors import ErrorCode, RejectionReason
from agentpay.contract.transactions import Direction, TransactionStatus, TransactionType
from agentpay.contract.usdc import from_micro
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import TransferRecord
from agentpay_server.ledger import audit
from agentpay_server.ledger.outbox import NewEvent
from agentpay_server.ledger.outcome import Entry, Outcome, Posting
from agentpay_server.platform.clock import from_us


def rejection(
    transfer: TransferRecord | Change[TransferRecord],
    code: ErrorCode | RejectionReason,
    message: str,
    *,
    before: tuple[NewEvent, ...] = (),
) -> Outcome[TransferRecord]:
    """Return the outcome of a transfer that is rejected or has failed: a history entry and an event.

    The events in `before` come first.
    """
    record = transfer.after if isinstance(transfer, Change) else transfer
    entry = Entry(
        type=TransactionType.REJECTION,
        status=TransactionStatus.REJECTED,
        direction=Direction.OUT,
        amount=record.amount,
        counterparty=record.to,
        memo=record.memo,
        category=record.category,
        tx_signature=record.tx_signature,
        transfer_id=record.transfer_id,
        rejection_reason=code.value,
    )
    rejected = NewEvent(
        type="transfer.rejected",
        data=events.TransferRejectedData(
            account_id=record.account_id,
            rejection_reason=code.value,
            transfer_id=record.transfer_id,
            to=record.to,
            amount_usdc=from_micro(record.amount),
            message=message,
        ),
    )
    return Outcome(
        operator_id=record.operator_id,
        account_id=record.account_id,
        subject=transfer,
        postings=(Posting(account_id=record.account_id, entries=(entry,)),),
        events=(*before, rejected),
    )


def reported(transfer: TransferRecord, *new_events: NewEvent) -> Outcome[TransferRecord]:
    """Return the outcome that only reports events about a transfer."""
    return Outcome(
        operator_id=transfer.operator_id,
        account_id=transfer.account_id,
        subject=transfer,
        events=new_events,
    )


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


def movement(transfer: TransferRecord, tx_signature: str | None, *, is_received: bool) -> list[Posting]:
    """Return what a settled transfer changes on both sides: balances and history.

    With `is_received`, the recipient's account has it already, as a deposit.
    """
    amount, payee = transfer.amount, transfer.recipient_account_id
    entry = partial(
        Entry,
        amount=amount,
        memo=transfer.memo,
        category=transfer.category,
        tx_signature=tx_signature,
        transfer_id=transfer.transfer_id,
    )
    sent = entry(type=TransactionType.TRANSFER, direction=Direction.OUT, counterparty=transfer.to)
    postings = [Posting(account_id=transfer.account_id, release=amount, debit=amount, entries=(sent,))]
    if payee is not None and not is_received:
        arrived = entry(
            type=TransactionType.DEPOSIT, direction=Direction.IN, counterparty=transfer.account_id
        )
        postings.append(Posting(account_id=payee, credit=amount, entries=(arrived,)))
    return postings
