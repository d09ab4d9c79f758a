"""Literal types of the closed sets of strings, so that type checkers find a misspelled status or event type.

At run time they are plain strings, and open: a newer value that this version does not know is kept unchanged.
The modules of the models have the same sets as enums for the server; a test compares each pair. Here too are
the rules of a policy as people see them: commands read them without loading a model.
"""

from typing import Final, Literal, NamedTuple

AccountStatus = Literal["active", "paused"]
"""Whether an account may send: `paused` exactly while its policy is paused."""

SuspensionCause = Literal["landed_late", "unknown_debit", "unknown_payout"]
"""Why an account was suspended."""

AccountSort = Literal["name", "-name", "balance", "-balance", "spent", "-spent", "limit", "-limit"]
"""An order of accounts; with `-`, the largest or last comes first."""

ApprovalSort = Literal["expires"]
"""An order of pending transfers: the soonest to expire first."""

TransferSort = Literal["amount", "-amount"]
"""An order of transfers; with `-`, the largest comes first."""

TransferStatus = Literal["pending_approval", "approved", "submitted", "settled", "rejected", "failed"]
"""The status of a transfer."""

PaymentFilter = Literal[
    "pending_approval", "approved", "submitted", "settled", "rejected", "failed", "undelivered"
]
"""Filter for the payments of a list: their status, or `undelivered`."""

PaymentProtocol = Literal["mpp", "x402_v2", "x402_v1", "x402_upto"]
"""The protocol of a challenge and its payment."""

TransactionType = Literal["transfer", "session_settlement", "rejection", "deposit"]
"""The type of a history entry."""

TransactionStatus = Literal["settled", "rejected"]
"""Whether the money moved."""

TransactionStatusFilter = Literal["settled", "rejected", "all"]
"""Filter for the entries of a listing."""

Direction = Literal["in", "out"]
"""Direction of a payment."""

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
"""Names of the event types."""

ErrorCode = Literal[
    "policy_violation",
    "account_paused",
    "insufficient_balance",
    "idempotency_conflict",
    "payment_expired",
    "payment_failed",
    "invalid_recipient",
    "unreadable_challenge",
    "nothing_payable",
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
    "fee_budget_exceeded",
    "clock_not_manual",
    "clock_moving",
    "not_pending",
    "last_operator_key",
    "not_in_memory",
    "not_at_rest",
]
"""Every `error` code of the service."""

RefusalRule = Literal[
    "paused",
    "require_memo",
    "allowed_counterparties",
    "categories",
    "max_single_transfer",
    "max_daily_spend",
    "escalation_threshold",
    "max_total_usdc",
    "balance_usdc",
    "cap_usdc",
    "seller_blocked",
    "seller_max_amount",
    "seller_recipients",
]
"""The rule that refused a request: of the policy, the key, the account, the session or the seller's pin."""

SessionStatus = Literal[
    "opening",
    "open",
    "closing",
    "settled",
    "failed",
]
"""The status of a session."""

ClosingReason = Literal[
    "idle",
    "lifetime",
    "payee_frozen",
    "payee_missing",
    "account_frozen",
    "account_missing",
    "escrow_frozen",
    "settlement_refused",
    "payee_refuses",
    "payee_sealed",
]
"""Why a session closed automatically, or why its settlement is stuck."""

DeliveryStatus = Literal["pending", "retrying", "delivered", "undelivered"]
"""The status of a delivery."""

ReplayableStatus = Literal["undelivered", "delivered"]
"""The status of deliveries that can be replayed."""

SessionProtocol = Literal["escrow", "mpp"]
"""How a session is charged (interface S1)."""

PaymentStep = Literal["open", "voucher"]
"""What a header does that pays within a session over HTTP 402."""

KeyKind = Literal[
    "operator",
    "agent",
]
"""The kind of a key: what it is allowed to do."""

OperatorKeyKind = Literal[
    "operator",
    "console",
]
"""Kind of an operator key."""

Decision = Literal["settle", "escalate", "reject"]
"""The predicted outcome of a transfer."""

RequestOutcome = Literal["not_done", "unknown", "decided"]
"""What became of a request that raised an exception: see `agentpay.AgentPayError`."""


class PolicyRule(NamedTuple):
    """A field of a policy, as forms and commands show it.

    Attributes:
        name: name of the field.
        kind: `amount` is USDC or null, `list` is names or null, `flag` is a boolean.
        label: its name for people.
        null: what null means; for a flag, what false means.
    """

    name: str
    kind: Literal["amount", "list", "flag"]
    label: str
    null: str


POLICY_RULES: Final = (
    PolicyRule("max_single_transfer", "amount", "Largest transfer", "no limit"),
    PolicyRule("max_daily_spend", "amount", "Spend in 24 hours", "no limit"),
    PolicyRule("escalation_threshold", "amount", "Asks for approval from", "never"),
    PolicyRule("allowed_counterparties", "list", "May pay", "everybody"),
    PolicyRule("categories", "list", "Categories", "all"),
    PolicyRule("require_memo", "flag", "Requires a memo", "no"),
    PolicyRule("paused", "flag", "Paused", "no"),
)
"""In the order in which they are shown; a test compares them with the fields of `Policy`."""
