"""What is written of a transfer when something becomes of it: history entries and events (D36 to D40)."""

from decimal import Decimal

from agentpay.contract import events, identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.transactions import Direction, TransactionStatus, TransactionType
from agentpay.contract.usdc import from_micro
from agentpay_server.clock import from_us
from agentpay_server.services.context import Context
from agentpay_server.services.events import Happening, record
from agentpay_server.store import entries
from agentpay_server.store.connection import Connection
from agentpay_server.store.transfers import TransferRecord


def book_rejection(
    connection: Connection,
    context: Context,
    transfer: TransferRecord,
    now_us: int,
    *,
    code: ErrorCode,
    message: str,
) -> None:
    """Write the history entry and the event of a transfer that was refused, or that failed."""
    entries.insert_entries(
        connection,
        {
            "transaction_id": context.identifiers.new(identifiers.ENTRY),
            "account_id": transfer.account_id,
            "type": TransactionType.REJECTION.value,
            "status": TransactionStatus.REJECTED.value,
            "direction": Direction.OUT.value,
            "amount": transfer.amount,
            "counterparty": transfer.to,
            "memo": transfer.memo,
            "category": transfer.category,
            "tx_signature": transfer.tx_signature,
            "transfer_id": transfer.transfer_id,
            "rejection_reason": code.value,
            "created_us": now_us,
        },
    )
    rejected = Happening(
        type=events.EventType.TRANSFER_REJECTED,
        data=events.TransferRejectedData(
            account_id=transfer.account_id,
            rejection_reason=code.value,
            transfer_id=transfer.transfer_id,
            to=transfer.to,
            amount_usdc=from_micro(transfer.amount),
            message=message,
        ),
    )
    record_events(connection, context, transfer, now_us, rejected)


def initiated(transfer: TransferRecord) -> Happening:
    """Return the event that a transfer was sent."""
    assert transfer.tx_signature is not None  # noqa: S101 - it was signed before it was sent
    return Happening(
        type=events.EventType.TRANSFER_INITIATED,
        data=events.TransferInitiatedData(
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            to=transfer.to,
            amount_usdc=from_micro(transfer.amount),
            tx_signature=transfer.tx_signature,
        ),
    )


def settled(transfer: TransferRecord) -> Happening:
    """Return the event that a transfer is final on chain."""
    assert transfer.tx_signature is not None  # noqa: S101 - it landed under it
    assert transfer.settled_us is not None  # noqa: S101 - set by the caller
    return Happening(
        type=events.EventType.TRANSFER_SETTLED,
        data=events.TransferSettledData(
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            amount_usdc=from_micro(transfer.amount),
            tx_signature=transfer.tx_signature,
            settled_at=from_us(transfer.settled_us),
        ),
    )


def escalated(transfer: TransferRecord, threshold: Decimal | None) -> Happening:
    """Return the event that a transfer waits for an operator's approval."""
    return Happening(
        type=events.EventType.ESCALATION_REQUIRED,
        data=events.EscalationRequiredData(
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            to=transfer.to,
            amount_usdc=from_micro(transfer.amount),
            memo=transfer.memo,
            escalation_threshold=threshold,
        ),
    )


def book_settled(connection: Connection, context: Context, transfer: TransferRecord, now_us: int) -> None:
    """Write the history of a settled transfer: for its source, and for a recipient of this service."""
    common: dict[str, object] = {
        "status": TransactionStatus.SETTLED.value,
        "amount": transfer.amount,
        "memo": transfer.memo,
        "category": transfer.category,
        "tx_signature": transfer.tx_signature,
        "transfer_id": transfer.transfer_id,
        "created_us": now_us,
    }
    rows = [
        {
            **common,
            "transaction_id": context.identifiers.new(identifiers.ENTRY),
            "account_id": transfer.account_id,
            "type": TransactionType.TRANSFER.value,
            "direction": Direction.OUT.value,
            "counterparty": transfer.to,
        }
    ]
    if transfer.recipient_account_id is not None:
        rows.append(
            {
                **common,
                "transaction_id": context.identifiers.new(identifiers.ENTRY),
                "account_id": transfer.recipient_account_id,
                "type": TransactionType.DEPOSIT.value,
                "direction": Direction.IN.value,
                "counterparty": transfer.account_id,
            }
        )
    entries.insert_entries(connection, *rows)


def record_events(
    connection: Connection, context: Context, transfer: TransferRecord, now_us: int, *happenings: Happening
) -> None:
    """Write events about a transfer, in order, into the outbox."""
    record(
        connection,
        context.identifiers,
        operator_id=transfer.operator_id,
        account_id=transfer.account_id,
        now_us=now_us,
        happenings=happenings,
    )
