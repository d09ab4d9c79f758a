"""Responses about payments."""

from agentpay.contract.errors import ErrorCode
from agentpay.contract.payments import Payment, PaymentHeader, PaymentOutcome, PaymentProtocol
from agentpay.contract.transfers import TransferStatus
from agentpay.contract.usdc import from_micro
from agentpay_server.clock import from_us
from agentpay_server.errors import Problem
from agentpay_server.payments.store import PaymentRecord
from agentpay_server.transfers.responses import decided_at, refused, shown_splits
from agentpay_server.transfers.store import TransferRecord

_ENDED = {ErrorCode.PAYMENT_EXPIRED.value, ErrorCode.PAYMENT_FAILED.value}


def shown(
    transfer: TransferRecord,
    payment: PaymentRecord,
    *,
    header: tuple[str, str] | None = None,
    is_replay: bool = False,
) -> Payment:
    """Return the current state of a payment.

    Args:
        transfer: the payment's transfer.
        payment: the payment's own row.
        header: name and value of the header that presents it.
        is_replay: whether an earlier request had it signed.
    """
    expires_us = transfer.approval_expires_us if payment.expires_us is None else payment.expires_us
    outcome = None
    if payment.outcome_status is not None:
        outcome = PaymentOutcome(
            status_code=payment.outcome_status,
            receipt=payment.outcome_receipt,
            duration_ms=payment.outcome_duration_ms,
        )
    return Payment(
        transfer_id=transfer.transfer_id,
        account_id=transfer.account_id,
        status=TransferStatus(transfer.status).value,
        protocol=PaymentProtocol(payment.protocol).value,
        amount_usdc=from_micro(transfer.amount),
        recipient=payment.recipient,
        fee_payer=payment.fee_payer,
        origin=payment.origin,
        url=payment.url,
        category=transfer.category,
        memo=transfer.memo,
        header=None if header is None else PaymentHeader(name=header[0], value=header[1]),
        expires_at=None if expires_us is None else from_us(expires_us),
        tx_signature=transfer.tx_signature,
        settled_at=None if transfer.settled_us is None else from_us(transfer.settled_us),
        outcome=outcome,
        is_replay=is_replay,
        error=transfer.error,
        message=transfer.message,
        splits=shown_splits(transfer),
    )


def problem_of(transfer: TransferRecord, *, is_replay: bool = False) -> Problem:
    """Return the error for a payment that was refused, has failed, or has expired (interface I10)."""
    if transfer.error in _ENDED:
        return Problem(
            ErrorCode(transfer.error),
            transfer.message or "The payment has failed.",
            transfer_id=transfer.transfer_id,
            decided_at=decided_at(transfer) if is_replay else None,
        )
    return refused(transfer, is_replay=is_replay)


def conflict(transfer_id: str | None) -> Problem:
    """Return the error for a key that another transfer, or other terms, hold."""
    return Problem(
        ErrorCode.IDEMPOTENCY_CONFLICT,
        "This idempotency_key was used for a payment on other terms, or for a transfer. Retry with the same "
        "terms, or use a new key for a new purchase.",
        transfer_id=transfer_id,
    )
