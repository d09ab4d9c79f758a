"""The closed sets of strings, for type checkers: a misspelt status or event type is an error before it runs.

At run time they are plain strings, and open: a value that is newer than this version is kept as it is. The
server has the same sets as enums, in the modules of the models; a test compares each pair.
"""

from typing import Literal

AccountStatus = Literal["active", "paused"]
"""Whether an account may send: `paused` exactly while its policy is paused (interface A4)."""

TransferStatus = Literal["pending_approval", "submitted", "settled", "rejected", "failed"]
"""How far a transfer has come (interface T3, T4)."""

TransactionType = Literal["transfer", "session_settlement", "rejection", "deposit"]
"""What a history entry records (interface H2)."""

TransactionStatus = Literal["settled", "rejected"]
"""Whether the money moved (interface H2)."""

TransactionStatusFilter = Literal["settled", "rejected", "all"]
"""Which entries a listing returns (interface H1)."""

Direction = Literal["in", "out"]
"""Whether money went out of the account or came in (interface H2)."""

EventType = Literal[
    "transfer.initiated",
    "transfer.settled",
    "transfer.rejected",
    "session.opened",
    "session.cap_warning",
    "session.cap_reached",
    "session.settled",
    "balance.low_threshold",
    "escalation.required",
]
"""Names of the event types (interface EV1)."""

ErrorCode = Literal[
    "policy_violation",
    "account_paused",
    "insufficient_balance",
    "idempotency_conflict",
    "invalid_recipient",
    "chain_unavailable",
    "service_unavailable",
    "transfer_failed",
    "session_cap_exceeded",
    "session_closed",
    "too_many_sessions",
    "unauthorized",
    "forbidden",
    "not_found",
    "method_not_allowed",
    "invalid_request",
    "payload_too_large",
    "unsupported_media_type",
    "misdirected_request",
    "precondition_failed",
    "request_timeout",
    "rotation_in_progress",
    "rate_limited",
    "clock_not_manual",
    "clock_moving",
    "not_pending",
    "last_operator_key",
    "not_in_memory",
    "not_at_rest",
]
"""Every `error` that the service answers with (interface E5)."""

SessionStatus = Literal[
    "opening",
    "open",
    "closing",
    "settled",
    "failed",
]
"""How far a session has come (interface S4)."""

ClosingReason = Literal[
    "idle",
    "lifetime",
    "payee_frozen",
    "payee_missing",
    "account_frozen",
    "account_missing",
    "escrow_frozen",
    "settlement_refused",
]
"""Why a session closed without being asked to, or why its settlement waits (interface S16)."""

KeyKind = Literal[
    "operator",
    "agent",
]
"""What a key may do (interface K2)."""

OperatorKeyKind = Literal[
    "operator",
    "console",
]
"""What an operator key is for (interface K8)."""

Outcome = Literal["settle", "escalate", "reject"]
"""What would become of a transfer (interface B4)."""
