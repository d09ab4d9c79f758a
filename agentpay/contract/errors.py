"""The errors of the service: codes, HTTP statuses and bodies.

Six of the codes are from the contract; the others are extensions of this service (interface E5).
"""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

from attrs import field, frozen

from agentpay.contract import choices
from agentpay.contract.fields import OMITTED_BY_DEFAULT
from agentpay.contract.models import Model
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.contract.usdc import UsdcString


class ErrorCode(StrEnum):
    """Every `error` code of the service."""

    POLICY_VIOLATION = "policy_violation"
    ACCOUNT_PAUSED = "account_paused"
    INSUFFICIENT_BALANCE = "insufficient_balance"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    PAYMENT_EXPIRED = "payment_expired"
    PAYMENT_FAILED = "payment_failed"
    INVALID_RECIPIENT = "invalid_recipient"
    UNREADABLE_CHALLENGE = "unreadable_challenge"
    NOTHING_PAYABLE = "nothing_payable"
    CHAIN_UNAVAILABLE = "chain_unavailable"
    SERVICE_UNAVAILABLE = "service_unavailable"
    TRANSFER_FAILED = "transfer_failed"
    SESSION_CAP_EXCEEDED = "session_cap_exceeded"
    SESSION_CLOSED = "session_closed"
    TOO_MANY_SESSIONS = "too_many_sessions"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    INVALID_REQUEST = "invalid_request"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    MISDIRECTED_REQUEST = "misdirected_request"
    PRECONDITION_FAILED = "precondition_failed"
    REQUEST_TIMEOUT = "request_timeout"
    ROTATION_IN_PROGRESS = "rotation_in_progress"
    RATE_LIMITED = "rate_limited"
    FEE_BUDGET_EXCEEDED = "fee_budget_exceeded"
    CLOCK_NOT_MANUAL = "clock_not_manual"
    CLOCK_MOVING = "clock_moving"
    NOT_PENDING = "not_pending"
    LAST_OPERATOR_KEY = "last_operator_key"
    NOT_IN_MEMORY = "not_in_memory"
    NOT_AT_REST = "not_at_rest"


class RejectionReason(StrEnum):
    """Why a pending transfer was rejected other than by a rule of its policy.

    The values are the `error` of the transfer, and the `rejection_reason` of its event and history entry.
    Requests with its idempotency key get `policy_violation`.
    """

    ESCALATION_REJECTED = "escalation_rejected"
    ESCALATION_EXPIRED = "escalation_expired"


HTTP_STATUS: Final[dict[ErrorCode, int]] = {
    ErrorCode.POLICY_VIOLATION: 402,
    ErrorCode.ACCOUNT_PAUSED: 402,
    ErrorCode.INSUFFICIENT_BALANCE: 402,
    ErrorCode.TRANSFER_FAILED: 402,
    ErrorCode.SESSION_CAP_EXCEEDED: 402,
    ErrorCode.SESSION_CLOSED: 409,
    ErrorCode.TOO_MANY_SESSIONS: 409,
    ErrorCode.IDEMPOTENCY_CONFLICT: 409,
    ErrorCode.PAYMENT_EXPIRED: 409,
    ErrorCode.PAYMENT_FAILED: 409,
    ErrorCode.INVALID_RECIPIENT: 422,
    ErrorCode.UNREADABLE_CHALLENGE: 422,
    ErrorCode.NOTHING_PAYABLE: 422,
    ErrorCode.CHAIN_UNAVAILABLE: 503,
    ErrorCode.SERVICE_UNAVAILABLE: 503,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.PAYLOAD_TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: 415,
    ErrorCode.MISDIRECTED_REQUEST: 421,
    ErrorCode.PRECONDITION_FAILED: 412,
    ErrorCode.REQUEST_TIMEOUT: 408,
    ErrorCode.ROTATION_IN_PROGRESS: 409,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.FEE_BUDGET_EXCEEDED: 429,
    ErrorCode.CLOCK_NOT_MANUAL: 409,
    ErrorCode.CLOCK_MOVING: 409,
    ErrorCode.NOT_PENDING: 409,
    ErrorCode.LAST_OPERATOR_KEY: 409,
    ErrorCode.NOT_IN_MEMORY: 409,
    ErrorCode.NOT_AT_REST: 409,
}
"""The HTTP status of each code."""


MEANINGS: Final[dict[ErrorCode, str]] = {
    ErrorCode.POLICY_VIOLATION: "Rejected by spending policy.",
    ErrorCode.ACCOUNT_PAUSED: "Account policy has `paused: true`.",
    ErrorCode.INSUFFICIENT_BALANCE: "Source balance too low.",
    ErrorCode.TRANSFER_FAILED: "The chain refused the transaction; nothing moved.",
    ErrorCode.IDEMPOTENCY_CONFLICT: "Idempotency key reused with different parameters.",
    ErrorCode.SESSION_CAP_EXCEEDED: "The charge exceeds the rest of the session's cap.",
    ErrorCode.SESSION_CLOSED: "The session no longer accepts charges.",
    ErrorCode.TOO_MANY_SESSIONS: "The account has the maximum number of unsettled sessions, or the key has "
    "opened the most of an hour with a seller.",
    ErrorCode.PAYMENT_EXPIRED: "The payment of this key has expired, and nothing moved.",
    ErrorCode.PAYMENT_FAILED: "The chain refused the payment of this key, and nothing moved.",
    ErrorCode.INVALID_RECIPIENT: "Recipient is not a valid USDC token account address.",
    ErrorCode.UNREADABLE_CHALLENGE: "Nothing of the 402 can be read; the message names the field.",
    ErrorCode.NOTHING_PAYABLE: "The 402 offers nothing that this account can pay.",
    ErrorCode.CHAIN_UNAVAILABLE: "Blockchain RPC unavailable; retry with backoff.",
    ErrorCode.SERVICE_UNAVAILABLE: "The service's database did not respond; the request may or may not have "
    "been carried out.",
    ErrorCode.UNAUTHORIZED: "Missing, malformed, unknown or revoked key.",
    ErrorCode.FORBIDDEN: "The key may not do this; the message says which key may.",
    ErrorCode.NOT_FOUND: "The key has access to no object with this identifier.",
    ErrorCode.METHOD_NOT_ALLOWED: "The path does not support this method.",
    ErrorCode.INVALID_REQUEST: "Body or parameters are invalid; `details` lists every fault.",
    ErrorCode.PAYLOAD_TOO_LARGE: "The body is larger than 64 KiB.",
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: "The body is not JSON.",
    ErrorCode.MISDIRECTED_REQUEST: "The server does not accept requests for this host.",
    ErrorCode.PRECONDITION_FAILED: "The policy is not at the version given in `If-Match`.",
    ErrorCode.REQUEST_TIMEOUT: "The request did not arrive in time: its head within 10 seconds, its body "
    "within 30.",
    ErrorCode.ROTATION_IN_PROGRESS: "The previous rotation of the secret still overlaps.",
    ErrorCode.RATE_LIMITED: "Too many requests with this key or of this operator, too many new accounts, or "
    "too many transfers of this agent key pending approval; wait as long as `Retry-After` says.",
    ErrorCode.FEE_BUDGET_EXCEEDED: "The account has used up its fee budget of 24 hours, and nothing was "
    "done; wait as long as `Retry-After` says.",
    ErrorCode.CLOCK_NOT_MANUAL: "The clock is not in manual mode.",
    ErrorCode.NOT_PENDING: "The transfer is not pending approval.",
    ErrorCode.LAST_OPERATOR_KEY: "The operator has no other valid key.",
    ErrorCode.CLOCK_MOVING: "Another advance of the clock is waiting for an event receiver.",
    ErrorCode.NOT_IN_MEMORY: "Part of the server's state is on disk, in a database or on an external chain, "
    "and cannot be restored.",
    ErrorCode.NOT_AT_REST: "Work in progress did not finish in time.",
}
"""The meaning of each code."""


ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.POLICY_VIOLATION: "Change the request, or have an operator change the policy; then use a new "
    "idempotency key",
    ErrorCode.ACCOUNT_PAUSED: "Stop spending. Once an operator has resumed the account, use a new "
    "idempotency key",
    ErrorCode.INSUFFICIENT_BALANCE: "Fund the account, then repeat the call with the same idempotency key",
    ErrorCode.TRANSFER_FAILED: "Repeat the call with the same idempotency key for a new attempt",
    ErrorCode.SESSION_CAP_EXCEEDED: "Charge less, or close the session and open another",
    ErrorCode.SESSION_CLOSED: "Open another session",
    ErrorCode.TOO_MANY_SESSIONS: "Close a session, then repeat the call with the same idempotency key",
    ErrorCode.IDEMPOTENCY_CONFLICT: "Repeat the call with the first parameters for the first payment's "
    "outcome; use a new key only for another payment",
    ErrorCode.PAYMENT_EXPIRED: "Use a new idempotency key for a new purchase",
    ErrorCode.PAYMENT_FAILED: "Read the payment for the reason, then use a new idempotency key for a new "
    "purchase",
    ErrorCode.INVALID_RECIPIENT: "Pay an account_id, or a USDC token account instead of the wallet that "
    "owns it",
    ErrorCode.UNREADABLE_CHALLENGE: "Report it to the seller, or buy elsewhere",
    ErrorCode.NOTHING_PAYABLE: "Read the reason of each offer in details, or buy elsewhere",
    ErrorCode.CHAIN_UNAVAILABLE: "Call again with backoff, not sooner than Retry-After says",
    ErrorCode.SERVICE_UNAVAILABLE: "Read the current state, or repeat a call that has an idempotency key",
    ErrorCode.UNAUTHORIZED: "Pass a valid key as api_key, or set AGENTPAY_API_KEY",
    ErrorCode.FORBIDDEN: "Use a key of the required kind; an agent cannot do this itself",
    ErrorCode.NOT_FOUND: "Check the identifier, and that it belongs to the key's operator",
    ErrorCode.METHOD_NOT_ALLOWED: "Use a method from the header Allow",
    ErrorCode.INVALID_REQUEST: "Correct every fault in details, then call again",
    ErrorCode.PAYLOAD_TOO_LARGE: "Send a smaller body",
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: "Send JSON with Content-Type: application/json, not compressed",
    ErrorCode.MISDIRECTED_REQUEST: "Use localhost or a loopback address as base_url, or start the server "
    "with --allowed-host",
    ErrorCode.PRECONDITION_FAILED: "Read it again and repeat the change",
    ErrorCode.REQUEST_TIMEOUT: "Call again over a better connection",
    ErrorCode.ROTATION_IN_PROGRESS: "Wait for the end of the overlap, or rotate with overlap_seconds=0",
    ErrorCode.RATE_LIMITED: "Call again when the seconds of Retry-After have passed",
    ErrorCode.FEE_BUDGET_EXCEEDED: "Close sessions that are not in use, or call again when the seconds of "
    "Retry-After have passed",
    ErrorCode.CLOCK_NOT_MANUAL: "Start the server with a manual clock",
    ErrorCode.CLOCK_MOVING: "Wait until it has returned; from inside the receiver, respond first",
    ErrorCode.NOT_PENDING: "Read the transfer: it was already decided, or its approval expired",
    ErrorCode.LAST_OPERATOR_KEY: "Create another one, then revoke this one",
    ErrorCode.NOT_IN_MEMORY: "Start a server with --in-memory, or stop this one and copy its directory or "
    "database",
    ErrorCode.NOT_AT_REST: "End the requests in progress, disarm faults that delay settlement, then call "
    "again",
}
"""What to do about an error. Responses add it to messages that do not say what to do."""


def with_advice(code: ErrorCode, message: str) -> str:
    """Return the message of a response: what happened, then what to do."""
    return f"{message} {ADVICE[code]}."


def without_advice(code: str, message: str) -> str:
    """Return what happened, without the advice that `with_advice` added."""
    return message.removesuffix(f" {ADVICE[ErrorCode(code)]}.") if code in HTTP_STATUS else message


@frozen(kw_only=True)
class FieldError(Model):
    """One fault of a request.

    Attributes:
        field: path of the field, such as `allowed_counterparties[2]`; `body` for the whole body.
        message: what the field must be.
    """

    field: str
    message: str


@frozen(kw_only=True)
class Refusal(Model):
    """The rule that refused a request, in numbers. What the rule does not have is None.

    Attributes:
        rule: the field of the account's policy, such as `max_daily_spend`; `max_total_usdc` of the agent key;
            `balance_usdc` of the account; `cap_usdc` of the session; `seller_blocked`, `seller_max_amount` or
            `seller_recipients` of the seller's pin. `escalation_threshold`: no operator has approved it. A
            value that this version does not know stays a plain string.
        limit_usdc: USDC that the rule allows in all.
        spent_usdc: USDC of it that are spent or reserved.
        remaining_usdc: USDC of it that are left; for `balance_usdc`, the balance minus reservations.
        requested_usdc: USDC that the request asked for; of a session's opening its cap.
        available_at: for `max_daily_spend`, from when the rolling 24-hour window has room for this amount if
            nothing else is spent, UTC, rounded up to the millisecond; None if waiting never helps.
    """

    _example: ClassVar = {
        "rule": "max_daily_spend",
        "limit_usdc": "20.000000",
        "spent_usdc": "15.000000",
        "remaining_usdc": "5.000000",
        "requested_usdc": "12.500000",
        "available_at": "2026-02-01T12:00:00.000Z",
    }

    rule: choices.RefusalRule
    limit_usdc: UsdcString | None = None
    spent_usdc: UsdcString | None = None
    remaining_usdc: UsdcString | None = None
    requested_usdc: UsdcString | None = None
    available_at: datetime | None = None


@frozen(kw_only=True)
class ErrorBody(Model):
    """Body of every error response. Fields that do not apply are left out.

    Attributes:
        error: the code.
        message: sentence that says what happened and what to do.
        request_id: identifies the request in the service's logs; not in the 402 of a transfer or a session.
        details: every fault of an invalid request.
        transfer_id: the transfer that the error is about.
        session_id: the session that the error is about; None if none was opened.
        charge_id: the voucher that the error is about.
        status: status of that transfer or session.
        refusal: the rule that refused it; only in the 402 of a policy, a balance or a budget.
    """

    _example: ClassVar = {
        "error": "policy_violation",
        "message": "max_single_transfer is 25 and 30 was asked for.",
    }

    error: str
    message: str
    request_id: str | None = field(  # pyright: ignore[reportIncompatibleMethodOverride] - it is sent, here
        default=None, metadata=OMITTED_BY_DEFAULT
    )
    details: tuple[FieldError, ...] | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    transfer_id: str | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    session_id: str | None | UnsetType = field(default=UNSET, metadata=OMITTED_BY_DEFAULT)
    charge_id: str | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    status: str | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    refusal: Refusal | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
