"""The errors of the service: codes (interface E5), and bodies."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Self

from attrs import field, frozen

from agentpay.contract import choices
from agentpay.contract.fields import OMITTED_BY_DEFAULT
from agentpay.contract.models import Model
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.contract.usdc import UsdcString


class ErrorCode(StrEnum):
    """Every `error` code of the service, one row each.

    Attributes:
        status: its HTTP status.
        meaning: what happened, in general.
        advice: what to do about it. Responses add it to messages that do not say what to do.
        mark: `contract` if the contract defines it, `ours` for an extension.
    """

    status: int
    meaning: str
    advice: str
    mark: str

    def __new__(
        cls, code: str, status: int = 0, meaning: str = "", advice: str = "", mark: str = "ours"
    ) -> Self:
        """Create a member from its row. The defaults are for mypy, which checks `ErrorCode(code)` by them."""
        self = str.__new__(cls, code)
        self._value_ = code
        self.status, self.meaning, self.advice, self.mark = status, meaning, advice, mark
        return self

    POLICY_VIOLATION = (
        "policy_violation",
        402,
        "Rejected by spending policy.",
        "Change the request, or have an operator change the policy; then use a new idempotency key",
        "contract",
    )
    ACCOUNT_PAUSED = (
        "account_paused",
        402,
        "Account policy has `paused: true`.",
        "Stop spending. Once an operator has resumed the account, use a new idempotency key",
        "contract",
    )
    INSUFFICIENT_BALANCE = (
        "insufficient_balance",
        402,
        "Source balance too low.",
        "Fund the account, then repeat the call with the same idempotency key",
        "contract",
    )
    IDEMPOTENCY_CONFLICT = (
        "idempotency_conflict",
        409,
        "Idempotency key reused with different parameters.",
        (
            "Repeat the call with the first parameters for the first payment's outcome; use a new key only "
            "for another payment"
        ),
        "contract",
    )
    PAYMENT_EXPIRED = (
        "payment_expired",
        409,
        "The payment of this key has expired, and nothing moved.",
        "Use a new idempotency key for a new purchase",
    )
    PAYMENT_FAILED = (
        "payment_failed",
        409,
        "The chain refused the payment of this key, and nothing moved.",
        "Read the payment for the reason, then use a new idempotency key for a new purchase",
    )
    INVALID_RECIPIENT = (
        "invalid_recipient",
        422,
        "Recipient is not a valid USDC token account address.",
        "Pay an account_id, or a USDC token account instead of the wallet that owns it",
        "contract",
    )
    UNREADABLE_CHALLENGE = (
        "unreadable_challenge",
        422,
        "Nothing of the 402 can be read; the message names the field.",
        "Report it to the seller, or buy elsewhere",
    )
    NOTHING_PAYABLE = (
        "nothing_payable",
        422,
        "The 402 offers nothing that this account can pay.",
        "Read the reason of each offer in details, or buy elsewhere",
    )
    CHAIN_UNAVAILABLE = (
        "chain_unavailable",
        503,
        "Blockchain RPC unavailable; retry with backoff.",
        "Call again with backoff, not sooner than Retry-After says",
        "contract",
    )
    SERVICE_UNAVAILABLE = (
        "service_unavailable",
        503,
        "The service's database did not respond; the request may or may not have been carried out.",
        "Read the current state, or repeat a call that has an idempotency key",
    )
    TRANSFER_FAILED = (
        "transfer_failed",
        402,
        "The chain refused the transaction; nothing moved.",
        "Repeat the call with the same idempotency key for a new attempt",
    )
    SESSION_CAP_EXCEEDED = (
        "session_cap_exceeded",
        402,
        "The charge exceeds the rest of the session's cap.",
        "Charge less, or close the session and open another",
    )
    SESSION_CLOSED = "session_closed", 409, "The session no longer accepts charges.", "Open another session"
    TOO_MANY_SESSIONS = (
        "too_many_sessions",
        409,
        (
            "The account has the maximum number of unsettled sessions, or the key has opened the most of an "
            "hour with a seller."
        ),
        "Close a session, then repeat the call with the same idempotency key",
    )
    UNAUTHORIZED = (
        "unauthorized",
        401,
        "Missing, malformed, unknown or revoked key.",
        "Pass a valid key as api_key, or set AGENTPAY_API_KEY",
    )
    FORBIDDEN = (
        "forbidden",
        403,
        "The key may not do this; the message says which key may.",
        "Use a key of the required kind; an agent cannot do this itself",
    )
    NOT_FOUND = (
        "not_found",
        404,
        "The key has access to no object with this identifier.",
        "Check the identifier, and that it belongs to the key's operator",
    )
    METHOD_NOT_ALLOWED = (
        "method_not_allowed",
        405,
        "The path does not support this method.",
        "Use a method from the header Allow",
    )
    INVALID_REQUEST = (
        "invalid_request",
        400,
        "Body or parameters are invalid; `details` lists every fault.",
        "Correct every fault in details, then call again",
    )
    PAYLOAD_TOO_LARGE = "payload_too_large", 413, "The body is larger than 64 KiB.", "Send a smaller body"
    UNSUPPORTED_MEDIA_TYPE = (
        "unsupported_media_type",
        415,
        "The body is not JSON.",
        "Send JSON with Content-Type: application/json, not compressed",
    )
    MISDIRECTED_REQUEST = (
        "misdirected_request",
        421,
        "The server does not accept requests for this host.",
        "Use localhost or a loopback address as base_url, or start the server with --allowed-host",
    )
    PRECONDITION_FAILED = (
        "precondition_failed",
        412,
        "The policy is not at the version given in `If-Match`.",
        "Read it again and repeat the change",
    )
    REQUEST_TIMEOUT = (
        "request_timeout",
        408,
        "The request did not arrive in time: its head within 10 seconds, its body within 30.",
        "Call again over a better connection",
    )
    ROTATION_IN_PROGRESS = (
        "rotation_in_progress",
        409,
        "The previous rotation of the secret still overlaps.",
        "Wait for the end of the overlap, or rotate with overlap_seconds=0",
    )
    RATE_LIMITED = (
        "rate_limited",
        429,
        (
            "Too many requests with this key or of this operator, too many new accounts, or too many "
            "transfers of this agent key pending approval; wait as long as `Retry-After` says."
        ),
        "Call again when the seconds of Retry-After have passed",
    )
    FEE_BUDGET_EXCEEDED = (
        "fee_budget_exceeded",
        429,
        (
            "The account has used up its fee budget of 24 hours, and nothing was done; wait as long as "
            "`Retry-After` says."
        ),
        "Close sessions that are not in use, or call again when the seconds of Retry-After have passed",
    )
    CLOCK_NOT_MANUAL = (
        "clock_not_manual",
        409,
        "The clock is not in manual mode.",
        "Start the server with a manual clock",
    )
    CLOCK_MOVING = (
        "clock_moving",
        409,
        "Another advance of the clock is waiting for an event receiver.",
        "Wait until it has returned; from inside the receiver, respond first",
    )
    NOT_PENDING = (
        "not_pending",
        409,
        "The transfer is not pending approval.",
        "Read the transfer: it was already decided, or its approval expired",
    )
    LAST_OPERATOR_KEY = (
        "last_operator_key",
        409,
        "The operator has no other valid key.",
        "Create another one, then revoke this one",
    )
    NOT_IN_MEMORY = (
        "not_in_memory",
        409,
        (
            "Part of the server's state is on disk, in a database or on an external chain, and cannot be "
            "restored."
        ),
        "Start a server with --in-memory, or stop this one and copy its directory or database",
    )
    NOT_AT_REST = (
        "not_at_rest",
        409,
        "Work in progress did not finish in time.",
        "End the requests in progress, disarm faults that delay settlement, then call again",
    )

    @classmethod
    def of(cls, status: int, code: object) -> Self | None:
        """Return the code of a response, or None. One with another's status is none: who sent it is open."""
        return next((each for each in cls if each == code and each.status == status), None)


class RejectionReason(StrEnum):
    """Why a pending transfer was rejected other than by a rule of its policy.

    The values are the `error` of the transfer, and the `rejection_reason` of its event and history entry.
    Requests with its idempotency key get `policy_violation`.
    """

    ESCALATION_REJECTED = "escalation_rejected"
    ESCALATION_EXPIRED = "escalation_expired"


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
        price_usdc: the lowest price that was refused for being above `max_amount`; only in `nothing_payable`.
        max_amount_usdc: that `max_amount`.
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
    price_usdc: UsdcString | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    max_amount_usdc: UsdcString | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
