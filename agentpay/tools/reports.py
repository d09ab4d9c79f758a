"""The results of the tools, built from the service's responses and errors. No I/O.

Every status has its next step, in words for a model.
"""

import logging
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, cast

from agentpay.contract.sessions import Session
from agentpay.contract.spending import TransferCheck
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import format_string
from agentpay.errors import AgentPayError, APIError, InsufficientBalanceError, RateLimitedError
from agentpay.tools.results import (
    CheckResult,
    ListedPayment,
    PaymentResult,
    PaymentStatus,
    SessionResult,
    SessionStatusOrRefusal,
    YesNo,
)
from agentpay.tools.specs import KEY_PREFIX

logger: logging.Logger = logging.getLogger("agentpay.tools")

_MOVED: Final[Mapping[str, YesNo]] = {
    "settled": "yes",
    "pending_approval": "no",
    "rejected": "no",
    "failed": "no",
}
_REPORT: Final = "Done. Report amount, payee and tx_signature."
_WAIT: Final = "Call get_payment with this payment_ref and wait_seconds. Do not pay with another ref."
_APPROVE: Final = (
    "A person must approve it at approval_url. Tell the user, then call get_payment with this payment_ref. "
    "Do not pay it another way."
)
_REFUSED: Final = (
    "Tell the user what the rule says. Do not split the payment or try another ref to pass the limit."
)
_AGAIN: Final = "Call the same tool again with the SAME ref and arguments. A new ref could pay twice."
_STEPS: Final = {
    "settled": _REPORT,
    "submitted": _WAIT,
    "pending_approval": _APPROVE,
    "rejected": _REFUSED,
    "failed": "Nothing was paid. Call the same tool again with the same ref for a new attempt.",
    "unknown": _AGAIN,
}


def idempotency_key(ref: str) -> str:
    """Return the key of a reference."""
    return f"{KEY_PREFIX}{ref}"


def payment_of(transfer: Transfer, ref: str, *, base_url: str, **changes: Any) -> PaymentResult:  # noqa: ANN401
    """Return the result for a recorded payment."""
    status: Any = str(transfer.status)
    reason = transfer.message
    if status == "approved":
        status, reason = "pending_approval", "An operator approved it; it is not signed yet."
        changes = {"next_step": "Call fetch_paid again with the same ref and arguments.", **changes}
    elif status not in _STEPS:
        status, reason = "unknown", f"The service reports the status {status}."
    is_waiting = status == "pending_approval" and str(transfer.status) != "approved"
    if is_waiting:
        reason = "The policy asks for approval by a person."
    result = PaymentResult(
        status=status,
        money_moved=_MOVED.get(status, "unknown"),
        may_retry_with_same_ref=status != "rejected" or transfer.error == "insufficient_balance",
        payment_ref=ref,
        transfer_id=transfer.transfer_id,
        amount_usdc=format_string(transfer.amount_usdc),
        to=transfer.to,
        tx_signature=transfer.tx_signature,
        remaining_usdc=None,
        reason=reason,
        next_step=_STEPS[status],
        approval_url=approval_url(base_url, transfer.transfer_id) if is_waiting else None,
    )
    return cast("PaymentResult", {**result, **changes})


def payment_without_transfer(
    ref: str, status: PaymentStatus | None, *, to: str | None, amount_usdc: str | None, reason: str
) -> PaymentResult:
    """Return the result for a payment that the service has not recorded."""
    return PaymentResult(
        status=status,
        money_moved="no" if status is None else _MOVED.get(status, "unknown"),
        may_retry_with_same_ref=True,
        payment_ref=ref,
        transfer_id=None,
        amount_usdc=padded(amount_usdc),
        to=to,
        tx_signature=None,
        remaining_usdc=None,
        reason=reason,
        next_step=None if status is None else _STEPS[status],
        approval_url=None,
    )


def other_use(earlier: PaymentResult, *, to: str, amount_usdc: str) -> PaymentResult:
    """Return the result of a call whose reference was used for another payment."""
    done = {"yes": "already paid", "unknown": "is already used to pay"}.get(
        earlier["money_moved"], "is already used for a request to pay"
    )
    reason = (
        f"payment_ref {earlier['payment_ref']} {done} {earlier['amount_usdc']} USDC to {earlier['to']} "
        f"({earlier['status']}). This call asked for {padded(amount_usdc)} USDC to {to}, or for another memo "
        "or category, and paid nothing."
    )
    step = (
        "The same purchase is done: do not pay again. Only a different purchase gets a new ref."
        if earlier["money_moved"] == "yes"
        else "Repeat the call with the original arguments. Only a different purchase gets a new ref."
    )
    return cast("PaymentResult", {**earlier, "reason": reason, "next_step": step})


def refusal(error: AgentPayError | ValueError) -> dict[str, Any]:
    """Return the fields of a result that a refusal sets: the reason, and whether to retry."""
    may_retry = not isinstance(error, APIError) or error.code not in ("policy_violation", "account_paused")
    step = _REFUSED
    if isinstance(error, InsufficientBalanceError):
        step = "The account must be funded first. Tell the user; then the same ref tries again."
    elif isinstance(error, RateLimitedError):
        step = "Wait, then call again with the same ref."
    elif may_retry:
        step = "Correct the arguments; nothing was paid, so the same ref can be used."
    return {"reason": reason_of(error), "may_retry_with_same_ref": may_retry, "next_step": step}


def reason_of(error: Exception) -> str:
    """Return a sentence for a model that describes an error."""
    if isinstance(error, APIError) and error.code is not None:
        return f"{error.code}: {explanation_of(error)}"
    if isinstance(error, AgentPayError | ValueError):
        return str(error)
    # The text of any other exception may contain secrets.
    return f"Unexpected {type(error).__name__}; the log has details."


def explanation_of(error: Exception) -> str:
    """Return the explanation of a refusal, with each fault."""
    if not isinstance(error, APIError):
        return str(error)
    details = "; ".join(f"{fault.field} {fault.message}" for fault in error.details)
    return error.message + (f" ({details})" if details else "")


def logged_reason(error: Exception) -> str:
    """Return `reason_of`, and log an exception that no call is expected to raise."""
    if not isinstance(error, AgentPayError):
        logger.error("a tool failed; its outcome is reported as unknown", exc_info=error)
    return reason_of(error)


def is_refusal(error: Exception) -> bool:
    """Return whether a request was refused, which then has no effect."""
    if isinstance(error, APIError):
        return error.status < 500 and error.status != 408 and error.code is not None
    return isinstance(error, ValueError) and not isinstance(error, AgentPayError)


def check_of(check: TransferCheck) -> CheckResult:
    """Return the result of a dry run."""
    return CheckResult(
        would=str(check.would),
        error=check.error,
        message=check.message,
        remaining_usdc=_amount(check.remaining_usdc),
    )


def listed(transfer: Transfer) -> ListedPayment:
    """Return one payment of a list."""
    return ListedPayment(
        payment_ref=ref_of(transfer.idempotency_key),
        transfer_id=transfer.transfer_id,
        status=str(transfer.status),
        amount_usdc=format_string(transfer.amount_usdc),
        to=transfer.to,
        memo=transfer.memo,
        tx_signature=transfer.tx_signature,
        settled_at=transfer.to_dict()["settled_at"],
    )


def ref_of(key: str | None) -> str | None:
    """Return the key's reference; None for another program's key."""
    return key.removeprefix(KEY_PREFIX) if key is not None and key.startswith(KEY_PREFIX) else None


def session_of(session: Session, ref: str, **changes: Any) -> SessionResult:  # noqa: ANN401
    """Return the result for a recorded session."""
    status: Any = str(session.status)
    result = SessionResult(
        status=status,
        money_moved=_SESSION_MOVED.get(status, "unknown"),
        may_retry_with_same_ref=True,
        session_ref=ref,
        charge_ref=None,
        session_id=session.session_id,
        to=session.to,
        cap_usdc=format_string(session.cap_usdc),
        running_total_usdc=format_string(session.running_total_usdc),
        settled_usdc=_amount(session.settled_usdc),
        returned_usdc=_amount(session.returned_usdc),
        tx_signature=session.settlement_tx_signature or session.tx_signature,
        reason=None,
        next_step=_SESSION_STEPS.get(status),
    )
    return cast("SessionResult", {**result, **changes})


def session_without_record(
    ref: str, status: SessionStatusOrRefusal, *, reason: str, charge_ref: str | None = None
) -> SessionResult:
    """Return the result for a session that the service has not recorded."""
    return SessionResult(
        status=status,
        money_moved=_MOVED.get(status, "unknown"),
        may_retry_with_same_ref=True,
        session_ref=ref,
        charge_ref=charge_ref,
        session_id=None,
        to=None,
        cap_usdc=None,
        running_total_usdc=None,
        settled_usdc=None,
        returned_usdc=None,
        tx_signature=None,
        reason=reason,
        next_step=_AGAIN if status == "unknown" else _REFUSED,
    )


_SESSION_MOVED: Final[Mapping[str, YesNo]] = {
    "open": "yes",
    "closing": "yes",
    "settled": "yes",
    "failed": "no",
}
_SESSION_STEPS: Final = {
    "opening": "Call open_session again with the same session_ref.",
    "open": "Charge it with charge_session; close it with close_session when done.",
    "closing": "Call close_session again with the same session_ref until it is settled.",
    "settled": _REPORT,
    "failed": "Nothing was reserved. Call open_session again with the same session_ref.",
}


def newest_that_counts(transfers: Iterable[Transfer]) -> Transfer | None:
    """Return the transfer of a reference: one that moved or may move money, otherwise the newest."""
    found = list(transfers)
    alive = [each for each in found if str(each.status) not in ("rejected", "failed")]
    return next(iter(alive or found), None)


def is_same(transfer: Transfer, *, to: str, amount_usdc: str, memo: str | None) -> bool:
    """Return whether a transfer matches a call, as far as the record shows."""
    is_amount = transfer.amount_usdc == Decimal(amount_usdc)
    return is_amount and transfer.to == to and (transfer.memo or None) == (memo or None)


def approval_url(base_url: str, transfer_id: str) -> str:
    """Return the URL on which a transfer is approved."""
    return f"{base_url}/dashboard#/transfers/{transfer_id}"


def padded(amount_usdc: str | None) -> str | None:
    """Return the amount with 6 decimals, as in results."""
    return None if amount_usdc is None else format_string(Decimal(amount_usdc))


def _amount(amount: Decimal | None) -> str | None:
    return None if amount is None else format_string(amount)
