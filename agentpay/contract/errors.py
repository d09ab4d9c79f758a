"""The errors of the service: their codes, their HTTP statuses and the bodies that carry them.

The contract names the six codes of transfers ("Errors"); the others are D1 to D8 of the reference behaviour.
"""

from enum import StrEnum
from typing import Final

from attrs import frozen


class ErrorCode(StrEnum):
    """Every `error` that the service answers with."""

    POLICY_VIOLATION = "policy_violation"
    ACCOUNT_PAUSED = "account_paused"
    INSUFFICIENT_BALANCE = "insufficient_balance"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    INVALID_RECIPIENT = "invalid_recipient"
    CHAIN_UNAVAILABLE = "chain_unavailable"
    TRANSFER_FAILED = "transfer_failed"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    INVALID_REQUEST = "invalid_request"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    PRECONDITION_FAILED = "precondition_failed"
    REQUEST_TIMEOUT = "request_timeout"
    ROTATION_IN_PROGRESS = "rotation_in_progress"
    RATE_LIMITED = "rate_limited"
    CLOCK_NOT_MANUAL = "clock_not_manual"
    NOT_PENDING = "not_pending"


class RejectionReason(StrEnum):
    """Why a transfer that waited for approval was rejected, where no rule of its policy refused it (D27).

    They stand as `error` in the transfer, and as `rejection_reason` in its event and its history entry. A
    request under its key is answered with `policy_violation`.
    """

    ESCALATION_REJECTED = "escalation_rejected"
    ESCALATION_EXPIRED = "escalation_expired"


HTTP_STATUS: Final[dict[ErrorCode, int]] = {
    ErrorCode.POLICY_VIOLATION: 402,
    ErrorCode.ACCOUNT_PAUSED: 402,
    ErrorCode.INSUFFICIENT_BALANCE: 402,
    ErrorCode.TRANSFER_FAILED: 402,
    ErrorCode.IDEMPOTENCY_CONFLICT: 409,
    ErrorCode.INVALID_RECIPIENT: 422,
    ErrorCode.CHAIN_UNAVAILABLE: 503,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.PAYLOAD_TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: 415,
    ErrorCode.PRECONDITION_FAILED: 412,
    ErrorCode.REQUEST_TIMEOUT: 408,
    ErrorCode.ROTATION_IN_PROGRESS: 409,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.CLOCK_NOT_MANUAL: 409,
    ErrorCode.NOT_PENDING: 409,
}
"""The one HTTP status of each code."""


@frozen(kw_only=True)
class FieldFault:
    """One thing that is wrong with a request (D1).

    Attributes:
        field: path of the field, such as `allowed_counterparties[2]`; `body` for the whole body.
        message: sentence that says what the field must be.
    """

    field: str
    message: str


@frozen(kw_only=True)
class ErrorBody:
    """Body of every error answer (D1). Fields that do not apply are left out.

    Attributes:
        error: the code.
        message: sentence that says what happened and what to do.
        request_id: identifies the request in the service's logs; not in the 402 of a transfer.
        details: every fault of an invalid request.
        transfer_id: the transfer that the answer is about.
        status: status of that transfer.
    """

    error: str
    message: str
    request_id: str | None = None
    details: tuple[FieldFault, ...] | None = None
    transfer_id: str | None = None
    status: str | None = None
