"""Responses about payments."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.ext.payments import Payment, PaymentHeader, PaymentOutcome, PaymentProtocol
from agentpay.contract.transfers import TransferStatus
from agentpay.contract.usdc import from_micro
from agentpay_server.database.tables import PaymentRow, TransferRecord
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import Problem
from agentpay_server.plugins.pay402.challenges.offers import Sifted
from agentpay_server.transfers.outcomes import decided_at, refused, split_responses
from agentpay_server.transfers.store import refusal_of

_ENDED = {ErrorCode.PAYMENT_EXPIRED.value, ErrorCode.PAYMENT_FAILED.value}


def to_response(
    transfer: TransferRecord,
    payment: PaymentRow,
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
        idempotency_key=transfer.idempotency_key,
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
        refusal=refusal_of(transfer),
        splits=split_responses(transfer),
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


def conflict(holder: TransferRecord | None = None, differences: Sequence[str] = ()) -> Problem:
    """Return the error for a key that was used for something else.

    Args:
        holder: the payment with the key; None if it belongs to another account.
        differences: the terms in which it differs.
    """
    if holder is None:
        used, rest = "for another account", ""
    else:
        used = f"for a payment on other terms: {'; '.join(differences)}"
        rest = f" That payment, {holder.transfer_id}, {_FATES[TransferStatus(holder.status)]}."
    return Problem(
        ErrorCode.IDEMPOTENCY_CONFLICT,
        f"This idempotency_key was used {used}.{rest}",
        transfer_id=None if holder is None else holder.transfer_id,
    )


def nothing_payable(
    reasons: Mapping[int, str], sifted: Sifted | None = None, max_amount: Decimal | None = None
) -> Problem:
    """Return the error for a 402 without a payable offer.

    Args:
        reasons: those of its offers, by position.
        sifted: the offers, if something else that the caller passes could make one of them payable.
        max_amount: what the caller pays at most.
    """
    if not reasons:
        return Problem(
            ErrorCode.NOTHING_PAYABLE,
            "This 402 offers nothing to pay: it has no challenge of x402 or MPP, or one without an offer. "
            "Ask its seller.",
            says_what_to_do=True,
        )
    if len(reasons) == 1:
        (reason,) = reasons.values()
        message = f"The only offer of this 402 cannot be paid: {reason}."
    else:
        message = (
            f"None of the {len(reasons)} offers of this 402 can be paid; details has the reason for each."
        )
    price_micro = None if sifted is None else sifted.too_dear_micro
    can_do = [] if price_micro is None else ["raise max_amount if the price is right"]
    if sifted is not None and sifted.needs_session_cap:
        can_do.append("pass a session_cap of what you are willing to lock in a channel")
    advice = " or ".join(can_do) + ", and retry with the same key." if can_do else _NOTHING_HELPS
    return Problem(
        ErrorCode.NOTHING_PAYABLE,
        f"{message} {advice[0].upper()}{advice[1:]}",
        says_what_to_do=True,
        price_usdc=None if price_micro is None else from_micro(price_micro),
        max_amount_usdc=None if price_micro is None else max_amount,
        details=tuple(
            FieldError(field=f"offers[{position}]", message=reason)
            for position, reason in sorted(reasons.items())
        ),
    )


_NOTHING_HELPS: Final = (
    "Nothing that you pass changes this: request the resource again if an offer has expired, else buy "
    "elsewhere, or report it to the seller."
)
_FATES: Final = {
    TransferStatus.SUBMITTED: "can still settle",
    TransferStatus.SETTLED: "has settled",
    TransferStatus.PENDING_APPROVAL: "waits for approval and can still settle",
    TransferStatus.APPROVED: "is approved, not signed, and can still settle",
    TransferStatus.REJECTED: "was rejected and moved nothing",
    TransferStatus.FAILED: "moved nothing and can no longer settle",
}
