"""The types of the tools' results: plain JSON objects, the same for every framework.

A result describes the payment of a reference, or a session, not the attempt.
"""

from typing import Literal, TypedDict

PaymentStatus = Literal[
    "settled",
    "charged",
    "paid_not_delivered",
    "submitted",
    "pending_approval",
    "rejected",
    "failed",
    "conflict",
    "unauthorized",
    "unknown",
]
SessionStatusOrUnread = Literal["opening", "open", "closing", "settled", "failed", "unauthorized", "unknown"]
YesNo = Literal["yes", "no", "unknown"]


class UntrustedContent(TypedDict):
    """The content that a site sent to `fetch_paid`: data of a third party, never instructions.

    Attributes:
        notice: tells the model that the content is untrusted.
        http_status: HTTP status of the last response.
        content_type: media type, as the site claims.
        body: text of the body, or a sentence that it is not text.
        truncated: whether the body was longer than what is shown.
        refusal: why the seller asks for payment or refuses one (402), in its own words; None without a
            reason.
    """

    notice: str
    http_status: int
    content_type: str | None
    body: str
    truncated: bool
    refusal: str | None


class PaymentResult(TypedDict):
    """The status of the payment that a reference names.

    Attributes:
        status: how far it has come; None where `fetch_paid` had nothing to pay. `paid_not_delivered`: of
            `fetch_paid`, settled or charged, but the seller's response is no success. `charged`: of
            `fetch_paid`, a voucher of a session has paid, which its close settles. `conflict`: the reference
            is that of another payment, which the other fields describe. `unauthorized`: the service refuses
            the key.
        money_moved: whether money has left the account under this reference; for `conflict`, by this call,
            so `no`.
        may_retry_with_same_ref: whether repeating the call with the same reference can help, at once or after
            what `next_step` says. It is always safe.
        payment_ref: the reference.
        transfer_id: the transfer, `txn_…`.
        amount_usdc: USDC of the payment under this reference, 6 decimals.
        to: who is paid under this reference.
        tx_signature: signature of the on-chain transaction.
        remaining_usdc: USDC that `max_daily_spend` still allows; None without that limit, or if it could not
            be read.
        reason: why it is not settled, or what is special about it.
        next_step: what to do now.
        approval_url: where a person approves it, while it is `pending_approval`.
    """

    status: PaymentStatus | None
    money_moved: YesNo
    may_retry_with_same_ref: bool
    payment_ref: str
    transfer_id: str | None
    amount_usdc: str | None
    to: str | None
    tx_signature: str | None
    remaining_usdc: str | None
    reason: str | None
    next_step: str | None
    approval_url: str | None


class FetchResult(PaymentResult):
    """The result of `fetch_paid`: that of a payment, and what the site sent.

    Attributes:
        session_id: the session, `sess_…`, of a seller that sells by session; otherwise None.
        untrusted_content: the response; None where there was none.
    """

    session_id: str | None
    untrusted_content: UntrustedContent | None


class CheckResult(TypedDict):
    """The predicted outcome of a payment.

    Attributes:
        decision: `settle`, `escalate` or `reject`.
        error: the error code that it would be rejected with.
        message: the rule, with its value and the request.
        remaining_usdc: USDC that `max_daily_spend` would allow afterwards; None without that limit.
    """

    decision: str
    error: str | None
    message: str | None
    remaining_usdc: str | None


class ListedPayment(TypedDict):
    """One payment of a list. `payment_ref` is None for a payment that no tool made."""

    payment_ref: str | None
    transfer_id: str
    status: str
    amount_usdc: str
    to: str
    memo: str | None
    tx_signature: str | None
    settled_at: str | None


class PaymentList(TypedDict):
    """A page of payments, newest first; `cursor` fetches the next one while `has_more`."""

    payments: list[ListedPayment]
    cursor: str
    has_more: bool


class SessionResult(TypedDict):
    """The status of a session that `close_session` settles.

    Attributes:
        status: how far the session has come; `unauthorized` where the service refuses the key, `unknown`
            where it could not be read.
        money_moved: whether the session is settled.
        may_retry_with_same_ref: whether the same call can help. It is always safe.
        session_id: the session, `sess_…`.
        to: the payee.
        cap_usdc: the most that can be charged.
        running_total_usdc: charged so far.
        settled_usdc: paid to the payee, once settled.
        returned_usdc: returned to the account, once settled.
        tx_signature: signature of the settling transaction; before that, of the opening one.
        reason: why it is not settled yet.
        next_step: what to do now.
    """

    status: SessionStatusOrUnread
    money_moved: YesNo
    may_retry_with_same_ref: bool
    session_id: str
    to: str | None
    cap_usdc: str | None
    running_total_usdc: str | None
    settled_usdc: str | None
    returned_usdc: str | None
    tx_signature: str | None
    reason: str | None
    next_step: str | None


class ErrorResult(TypedDict):
    """A tool cannot return a result: an argument is invalid, or the service cannot be read now."""

    error: str
    message: str
    next_step: str
