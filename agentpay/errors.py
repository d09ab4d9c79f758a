"""Every exception of the SDK, except `TypeError` and `ValueError` for wrong calls.

    AgentPayError
      + ConfigurationError (ValueError)     a client cannot be created from these settings
      + ClosedClientError                   the client was closed before the call
      + APIConnectionError                  no response arrived
      |   - APITimeoutError (TimeoutError)  not within the timeout
      + ResponseValidationError             a response is not what the contract says
      |   - AnswerMismatchError             it belongs to another request
      + OutcomeUnknownError                 a write may or may not have been carried out
      |   - TransferOutcomeUnknownError     the transfer
      + RefusedError                        a payment is refused; also the base of those marked *
      |   - PaymentRefusedError             the seller did not deliver; the payment may still settle
      |       . PaidNotDeliveredError           it is paid
      + PaymentPendingApprovalError         an operator must approve the payment first
      + WaitTimeoutError (TimeoutError)     the transfer was not final in time
      + WebhookError                        a webhook delivery must not be processed
      |   - WebhookSignatureError           it is not proven to come from the service
      |   - WebhookPayloadError             it comes from the service but is not a readable event
      + APIError                            the service returned an error
          - InvalidRequestError (ValueError) 400, and 405, 413, 415
          - AuthenticationError             401
          - TransferRejectedError *         402
          |   . PolicyViolationError            policy_violation
          |   . AccountPausedError              account_paused
          |   . InsufficientBalanceError        insufficient_balance
          |   . TransferFailedError             transfer_failed
          |   . SessionCapExceededError         session_cap_exceeded
          - PermissionDeniedError           403
          - NotFoundError                   404
          - NotSupportedError               404 of an extension that the service does not have
          - ConflictError                   409
          |   . IdempotencyConflictError        idempotency_conflict
          |   . SessionClosedError              session_closed
          - PreconditionFailedError         412
          - InvalidRecipientError *         422
          - UnpayableChallengeError *       422: unreadable_challenge, nothing_payable
          - RateLimitError                  429
          |   . FeeBudgetExceededError          fee_budget_exceeded
          - ServerError                     500 and above
              . ChainUnavailableError           chain_unavailable

All can be pickled and copied with all their attributes.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from agentpay.contract.choices import ErrorCode, RefusalRule, RequestOutcome
from agentpay.contract.errors import ErrorBody, FieldError
from agentpay.contract.errors import ErrorCode as Code
from agentpay.contract.fields import format_timestamp
from agentpay.contract.printable import printable

if TYPE_CHECKING:
    from agentpay.contract.transfers import Transfer

__all__ = [
    "APIConnectionError",
    "APIError",
    "APITimeoutError",
    "AccountPausedError",
    "AgentPayError",
    "AnswerMismatchError",
    "AuthenticationError",
    "ChainUnavailableError",
    "ClosedClientError",
    "ConfigurationError",
    "ConflictError",
    "FeeBudgetExceededError",
    "FieldError",
    "IdempotencyConflictError",
    "InsecureConnectionWarning",
    "InsufficientBalanceError",
    "InvalidRecipientError",
    "InvalidRequestError",
    "NotFoundError",
    "NotSupportedError",
    "OutcomeUnknownError",
    "PaidNotDeliveredError",
    "PaymentPendingApprovalError",
    "PaymentRefusedError",
    "PermissionDeniedError",
    "PolicyViolationError",
    "PreconditionFailedError",
    "RateLimitError",
    "RefusedError",
    "ResponseValidationError",
    "ServerError",
    "SessionCapExceededError",
    "SessionClosedError",
    "TransferFailedError",
    "TransferOutcomeUnknownError",
    "TransferRejectedError",
    "UnpayableChallengeError",
    "WaitTimeoutError",
    "WebhookError",
    "WebhookPayloadError",
    "WebhookSignatureError",
]


_SHOWN_FAULTS: Final = 20


def _restore(kind: type["AgentPayError"], args: tuple[Any, ...], state: dict[str, Any]) -> "AgentPayError":
    error = kind.__new__(kind, *args)
    error.args = args  # `OSError`, the base of `TimeoutError`, sets them in its `__init__`
    error.__dict__.update(state)
    return error


class AgentPayError(Exception):
    """Base of every exception of the SDK. Each says what happened, whether to call again, and with which key.

    Attributes:
        retryable: whether the same call may succeed later without another change, and can then take effect
            only once. Repeat it with `idempotency_key` if that is not None.
        outcome: what became of the request. `not_done`: it had no effect, and will have none. `unknown`: it
            may or may not have been carried out. `decided`: the service has refused it, whatever earlier
            attempts of the same call were told.
        idempotency_key: the key that the call sent, whether you passed it or not; None for calls without one.
        status_code: HTTP status of the response, or None.
        request_id: identifies the request in the service's logs, or None.
        retries_made: how many attempts failed before the last one.
    """

    retryable: bool = False
    outcome: RequestOutcome = "not_done"
    idempotency_key: str | None = None
    status_code: int | None = None
    request_id: str | None = None
    retries_made: int = 0

    def __init__(self, *args: object, **facts: Any) -> None:  # noqa: ANN401 - the attributes, by name
        super().__init__(*args)
        vars(self).update(facts)

    def __reduce__(self) -> tuple[Any, ...]:
        # By default exceptions are rebuilt from `args`, which fails for keyword-only constructors.
        return _restore, (type(self), self.args, self.__dict__.copy())

    def __str__(self) -> str:
        # The message may contain text of the service, and terminals interpret control characters.
        return printable(super().__str__())


class RefusedError(AgentPayError):
    """The payment was refused: by a rule of the account, for its recipient, or by the seller.

    Its subclasses are `TransferRejectedError`, `InvalidRecipientError`, `UnpayableChallengeError` and
    `PaymentRefusedError`. Nothing moved, except that the payment of a `PaymentRefusedError` may still settle,
    and that of a `PaidNotDeliveredError` is paid: their `outcome` is `unknown`.
    """


class ConfigurationError(AgentPayError, ValueError):
    """The client cannot be created or used with these settings; the message names the setting."""


class InsecureConnectionWarning(UserWarning):
    """An API key is sent over plain http to another machine. Use an https base URL.

    Each client warns once. To make such calls fail instead, turn the warning into an error with
    `warnings.simplefilter("error", InsecureConnectionWarning)`.
    """


class ClosedClientError(AgentPayError):
    """The client was closed before the call. Create a new one, or close it later."""

    def __init__(self) -> None:
        super().__init__("this client is closed: create a new one, or keep it open until the last call")


class APIConnectionError(AgentPayError):
    """No response arrived: the connection failed or was lost. Check the network and the base URL.

    Attributes:
        may_have_been_processed: whether the request may have reached the service nevertheless. If False,
            retrying cannot have a double effect.
    """

    retryable: bool = True

    def __init__(self, message: str, *, may_have_been_processed: bool) -> None:
        super().__init__(message, outcome="unknown" if may_have_been_processed else "not_done")
        self.may_have_been_processed = may_have_been_processed


class APITimeoutError(APIConnectionError, TimeoutError):
    """No response arrived within the timeout. Increase `timeout`, or call again later."""


class ResponseValidationError(AgentPayError):
    """A response is not what the contract says. Check that the base URL is that of the service.

    Attributes:
        status_code: HTTP status of the response.
        request_id: identifies the request in the service's logs, or None.
        transfer_id: the transfer that the response names, or None.
        session_id: the session that the response names, or None.
    """

    transfer_id: str | None = None
    session_id: str | None = None


class AnswerMismatchError(ResponseValidationError):
    """The response belongs to another request, and was discarded.

    It names a different account, transfer, amount or key than the request: a proxy or peer mixes up
    responses. The connections are not used again. A call that writes raises an
    `OutcomeUnknownError` instead, with this error as the `__cause__`.

    Attributes:
        may_have_been_processed: whether the request may have changed something nevertheless.
    """

    def __init__(
        self,
        *,
        operation: str,
        difference: str,
        may_have_been_processed: bool,
        **facts: Any,  # noqa: ANN401
    ) -> None:
        advice = "Call again"
        if may_have_been_processed:
            advice = "The request may have been processed: read the current state before you call again"
        super().__init__(
            f"the response to {operation} belongs to another request: {difference}. {advice}, and look for a "
            "proxy between this client and the service that mixes up responses",
            outcome="unknown" if may_have_been_processed else "not_done",
            **facts,
        )
        self.may_have_been_processed = may_have_been_processed


class OutcomeUnknownError(AgentPayError):
    """It is unknown whether a write was carried out: its response was lost, or there is no decision yet.

    Every write raises it, whether the connection broke, a proxy responded, or a success could not be read.
    With an `idempotency_key`, make the same call with the same parameters and this key: it resumes the
    request, and never carries it out twice. Never retry under a new key. Without one, `retryable` says
    whether a repetition is harmless; if it is not, read the current state first. The last error is the
    `__cause__`.

    Attributes:
        operation: the method to call again, such as `sessions.charge`; for `client.request`, method and path.
        idempotency_key: the key to call it again with; None for an operation without one.
        transfer_id: the transfer or payment, if a response named it; else None.
        session_id: the session, if a response named it; else None.
    """

    outcome: RequestOutcome = "unknown"

    def __init__(
        self,
        *,
        operation: str,
        idempotency_key: str | None = None,
        transfer_id: str | None = None,
        session_id: str | None = None,
        cause: AgentPayError | None = None,
        is_repeatable: bool = False,
    ) -> None:
        # `is_repeatable`: repeating the request has no further effect, even without a key.
        self.operation = operation
        self.idempotency_key = idempotency_key
        self.transfer_id = transfer_id
        self.session_id = session_id
        self.retryable: bool = is_repeatable or idempotency_key is not None
        self.status_code: int | None = None if cause is None else cause.status_code
        self.request_id: str | None = None if cause is None else cause.request_id
        super().__init__(self._text(cause))

    def _text(self, cause: AgentPayError | None) -> str:
        what, again = _DEEDS.get(self.operation, (f"{self.operation} was done", "repeat it"))
        if self.idempotency_key is not None:
            advice = (
                f"Do not {again} under a new key: call {self.operation} with the same parameters and "
                f"idempotency_key={self.idempotency_key!r} to resume it"
            )
        elif self.retryable:
            advice = f"Call {self.operation} again: repeating it has no further effect"
        else:
            advice = f"Read the current state before you call {self.operation} again"
        named = _named(transfer=self.transfer_id, session=self.session_id, request=self.request_id)
        because = f": {_reason(cause)}" if cause is not None else ""
        return f"it is unknown whether {what}{named}{because}. {advice}"


_REASON_MAX_CHARACTERS: Final = 500

_DEEDS: Final = {
    "transfers.create": ("the transfer was made", "pay again"),
    "payments.authorize": ("the payment was signed", "pay again"),
}
"""The effect of an operation, and of its repetition, in words."""


def _reason(cause: AgentPayError) -> str:
    """Return the first sentence of an error: the others advise on the error itself."""
    text = cause.summary if isinstance(cause, APIError) else str(cause)
    return text.partition(". ")[0][:_REASON_MAX_CHARACTERS].rstrip(".")


def _named(**identifiers: str | None) -> str:
    known = [f"{name} {value}" for name, value in identifiers.items() if value is not None]
    return f" ({', '.join(known)})" if known else ""


class TransferOutcomeUnknownError(OutcomeUnknownError):
    """It is unknown whether the transfer was made: the response was lost, or the chain has not decided yet.

    Never pay again under a new key. Call `transfers.create` with the same parameters and this
    `idempotency_key`: it resumes that transfer and never makes a second one. The last
    error is the `__cause__`.

    Attributes:
        idempotency_key: the key to call `transfers.create` again with.
        transfer_id: the transfer, for `transfers.get`, if a response named it; else None.
    """

    def __init__(
        self, *, idempotency_key: str, transfer_id: str | None = None, cause: AgentPayError | None = None
    ) -> None:
        super().__init__(
            operation="transfers.create",
            idempotency_key=idempotency_key,
            transfer_id=transfer_id,
            cause=cause,
        )
        self.idempotency_key: str = idempotency_key  # pyright: ignore[reportIncompatibleVariableOverride]


class PaymentRefusedError(RefusedError):
    """The seller responded to the presented payment without delivering: with 402, or with an error once more.

    Nothing more is paid for this request. The payment may still settle until it expires: read it with
    `payments.get`. Repeating the request presents the same payment again and never pays twice, within ten
    minutes or under the same key; a new key is a new purchase.

    Attributes:
        idempotency_key: the key of the purchase.
        transfer_id: the payment, `txn_…`; within a session, the voucher, `chg_…`.
        status_code: HTTP status of the seller's response.
        receipt: the receipt header of the response, a claim of the seller; None without one.
        reason: why the seller refused it, in the seller's words; None if the response does not say.
        headers: the headers of the response, with names in lower case.
        body: the first 32 KiB of the response's body, as far as it arrived.
        price_usdc: the price that the payment was signed for; None if unknown.
        max_amount_usdc: the cap of the request; None without one.
    """

    outcome: RequestOutcome = "unknown"
    idempotency_key: str  # pyright: ignore[reportIncompatibleVariableOverride]
    transfer_id: str
    status_code: int = 402  # pyright: ignore[reportIncompatibleVariableOverride]
    receipt: str | None = None
    reason: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""
    price_usdc: Decimal | None = None
    max_amount_usdc: Decimal | None = None

    def __init__(self, *, idempotency_key: str, transfer_id: str, **facts: Any) -> None:  # noqa: ANN401
        vars(self).update(facts, idempotency_key=idempotency_key, transfer_id=transfer_id)
        said = "" if self.reason is None else f" ({self.reason!r})"
        super().__init__(
            f"the seller responded {self.status_code} to payment {transfer_id}{_price(self)}{said}, and "
            f"nothing more is paid. {self._state}repeat the request with payment_key={idempotency_key!r} to "
            "present it again"
        )

    _state = "It may still settle: read it with payments.get, or "


class PaidNotDeliveredError(PaymentRefusedError):
    """The purchase is paid, and the seller did not deliver.

    The service shows that the payment has settled; or a voucher was signed, which the seller can claim.
    Repeating the request presents the same payment again. To buy the same thing once more, pass a new
    `payment_key`.
    """

    _state = "It is paid, and not delivered: tell the seller, or "


def _price(error: "PaymentRefusedError | PaymentPendingApprovalError") -> str:
    if error.price_usdc is None:
        return ""
    cap = "no max_amount" if error.max_amount_usdc is None else f"max_amount {error.max_amount_usdc:f} USDC"
    return f" of {error.price_usdc:f} USDC ({cap})"


class PaymentPendingApprovalError(AgentPayError):
    """The policy asks an operator to approve the payment first; nothing was signed or presented.

    Once it is approved, repeat the request under the same key: a fresh challenge with equal terms is paid.

    Attributes:
        idempotency_key: the key of the request.
        transfer_id: the payment that waits, `txn_…`: `approvals.approve(transfer_id)`.
        price_usdc: the price; None if unknown.
        max_amount_usdc: the cap of the request; None without one.
    """

    idempotency_key: str  # pyright: ignore[reportIncompatibleVariableOverride]
    transfer_id: str
    price_usdc: Decimal | None = None
    max_amount_usdc: Decimal | None = None

    def __init__(self, *, idempotency_key: str, transfer_id: str, **facts: Any) -> None:  # noqa: ANN401
        vars(self).update(facts, idempotency_key=idempotency_key, transfer_id=transfer_id)
        super().__init__(
            f"payment {transfer_id}{_price(self)} waits for an operator's approval, and nothing was paid. "
            "Once approvals.approve has approved it, repeat the request with "
            f"payment_key={idempotency_key!r}"
        )


class WaitTimeoutError(AgentPayError, TimeoutError):
    """The transfer was not final in time. It may still settle: call `transfers.wait` again.

    If the last request of the wait failed, its error is the `__cause__`.

    Attributes:
        transfer_id: the transfer.
        transfer: the transfer as it was last read; None if it could not be read.
    """

    retryable: bool = True
    outcome: RequestOutcome = "unknown"

    def __init__(self, *, transfer_id: str, transfer: "Transfer | None", timeout: float) -> None:
        state = "could not be read within" if transfer is None else f"is {transfer.status} after"
        advice = "call transfers.wait again, or transfers.get; do not pay again"
        if transfer is not None and transfer.status == "pending_approval":
            advice = f"an operator must approve or reject it; {advice}"
        super().__init__(f"transfer {transfer_id} {state} {timeout:g} s. It may still be settled: {advice}")
        self.transfer_id = transfer_id
        self.transfer = transfer


class WebhookError(AgentPayError):
    """A webhook delivery must not be processed: respond with an error status and do nothing else."""


class WebhookSignatureError(WebhookError):
    """The delivery is not proven to come from the service: respond with 401 and do not process it.

    The message says whether the signature is missing, malformed, wrong or too old.
    """


class WebhookPayloadError(WebhookError):
    """The delivery is signed by the service but is not a readable event: respond with 400.

    Attributes:
        details: its faults, field by field.
    """

    details: tuple[FieldError, ...] = ()


_KINDS: Final[dict[int | str, type["APIError"]]] = {}
"""The exception of each status, and of each code with its own exception."""


class APIError(AgentPayError):
    """The service returned an error.

    Attributes:
        message: the service's explanation of what happened; `advice` says what to do.
        status_code: HTTP status.
        code: the service's error code, such as `policy_violation`; None for a response that is not from the
            service, such as a proxy's.
        request_id: identifies the request in the service's logs, or None.
        transfer_id: the transfer that the error is about, or None.
        transfer_status: status of that transfer, or None.
        session_id: the session that the error is about, or None.
        session_status: status of that session, or None; `rejected` if none was opened.
        charge_id: the voucher that the error is about, or None.
        details: the faults of the request.
        retry_after: after how many seconds the service asks to be called again, or None.
        body: the error as the service sent it, with fields that this version does not know in `body.extra`;
            None for a response that is not from the service.
        decided_at: when a refusal was decided, if this response repeats it for its idempotency key; None for
            a new decision.
    """

    advice: str = "Report the request id to the operators of the service"
    _effect: str = ""
    status_code: int  # pyright: ignore[reportIncompatibleVariableOverride]
    code: ErrorCode | None = None
    transfer_id: str | None = None
    transfer_status: str | None = None
    session_id: str | None = None
    session_status: str | None = None
    charge_id: str | None = None
    details: tuple[FieldError, ...] = ()
    retry_after: float | None = None
    body: ErrorBody | None = None
    decided_at: datetime | None = None

    def __init_subclass__(cls, *, raised_for: Iterable[int | str] = ()) -> None:
        """Let responses with these statuses or codes raise the class."""
        super().__init_subclass__()
        _KINDS.update(dict.fromkeys(raised_for, cls))

    def __init__(self, message: str, *, status_code: int, **facts: Any) -> None:  # noqa: ANN401
        super().__init__(message, status_code=status_code, **facts)
        self.message = message
        # Proxies send 408 without a code.
        known = Code.of(status_code, self.code) or (Code.REQUEST_TIMEOUT if status_code == 408 else None)
        if known is not None:
            self.advice = self._effect + known.advice
        self.outcome: RequestOutcome = _outcome_of(
            status_code, self.code, self.transfer_id or self.session_id
        )
        is_temporary = status_code in (408, 429) or (500 <= status_code < 600 and status_code != 501)
        self.retryable: bool = type(self).retryable or is_temporary

    @property
    def summary(self) -> str:
        """Status, code and message, without details and advice."""
        return f"{self.status_code} {self.code or 'error'}: {self.message.rstrip('.')}"

    def __str__(self) -> str:
        text = self.summary
        # The message of a single fault may repeat it.
        shown = [fault for fault in self.details[:_SHOWN_FAULTS] if fault.message not in self.message]
        text += (": " if shown else "") + "; ".join(f"{fault.field} {fault.message}" for fault in shown)
        if len(self.details) > _SHOWN_FAULTS:
            text += f"; and {len(self.details) - _SHOWN_FAULTS} more in details"
        if self.decided_at is not None:
            text += f". Decided at {format_timestamp(self.decided_at)} and repeated for its idempotency key"
        where = _named(transfer=self.transfer_id, session=self.session_id, request=self.request_id)
        if self.advice in self.message:
            return printable(text + where)
        key = self.idempotency_key
        # A call without a key, such as an approval, is simply repeated.
        again = "" if key is None else f" with idempotency_key={key!r}"
        advice = self.advice.replace(" with the same idempotency key", again)
        return printable(f"{text}{where}. {advice}")


def possible_again(available_at: datetime | None) -> str:
    """Return the sentence, without its last period, that says from when a refused amount is possible."""
    return "" if available_at is None else f". Possible again at {format_timestamp(available_at)}"


def kind_of(status: int, code: str | None) -> type[APIError]:
    """Return the exception of an error response."""
    return _KINDS.get(Code.of(status, code) or status) or _KINDS.get(status, APIError)


def _outcome_of(status: int, code: str | None, subject: str | None) -> RequestOutcome:
    """Return what an error response says about a write. The one place that classifies responses."""
    match status:
        case 401 | 403 | 421 | 429:
            return "not_done"  # It was turned away.
        case 400 | 402 | 404 | 405 | 409 | 412 | 413 | 415 | 422:
            # Without the service's error body it may come from a proxy, which has no information on earlier
            # attempts.
            return "not_done" if code is None else "decided"
        case 503 if code == "chain_unavailable" and subject is None:
            # Nothing was stored, and nothing will be sent (interface E4, I5).
            return "not_done"
    return "unknown"


class InvalidRequestError(APIError, ValueError, raised_for=(400, 405, 413, 415)):
    """The request is invalid; `details` lists every fault (status 400, 405, 413 or 415).

    An argument that cannot be sent raises it too, such as an amount with seven decimals or a time without a
    UTC offset. Then nothing was sent: `outcome` is `not_done`, and the error is a `TypeError` as well.
    """

    advice: str = "Correct the request before you retry"


class AuthenticationError(APIError, raised_for=[401]):
    """The API key is missing, malformed or revoked (status 401)."""

    advice: str = Code.UNAUTHORIZED.advice


class PermissionDeniedError(APIError, raised_for=[403]):
    """The API key may not do this; an agent-scoped key is bound to one account (status 403)."""

    advice: str = Code.FORBIDDEN.advice


class NotFoundError(APIError, raised_for=[404]):
    """The object does not exist, or belongs to another operator (status 404)."""

    advice: str = Code.NOT_FOUND.advice


class TransferRejectedError(APIError, RefusedError, raised_for=[402]):  # pyright: ignore[reportIncompatibleVariableOverride]
    """The transfer, or the session request, was refused and no money moved (status 402).

    Attributes:
        rule: the rule that refused it, such as `max_daily_spend`, as in `agentpay.types.Refusal`; None if no
            rule did, and from a service that does not say it.
        limit_usdc: USDC that the rule allows in all; None if it has no limit.
        spent_usdc: USDC of it that are spent or reserved; None if it does not count spends.
        remaining_usdc: USDC of it that are left; for `balance_usdc`, the balance minus reservations.
        requested_usdc: USDC that the request asked for.
        available_at: from when the daily limit has room for this amount if nothing else is spent, UTC: wait
            until then and use a new idempotency key. None for other rules, and if waiting never helps.
    """

    advice: str = "No money moved; read the message for the reason"
    _effect = "No money moved. "

    def __init__(self, message: str, **facts: Any) -> None:  # noqa: ANN401 - as for `APIError`
        super().__init__(message, **facts)
        refusal = None if self.body is None else self.body.refusal
        self.rule: RefusalRule | None = None if refusal is None else refusal.rule
        self.limit_usdc: Decimal | None = None if refusal is None else refusal.limit_usdc
        self.spent_usdc: Decimal | None = None if refusal is None else refusal.spent_usdc
        self.remaining_usdc: Decimal | None = None if refusal is None else refusal.remaining_usdc
        self.requested_usdc: Decimal | None = None if refusal is None else refusal.requested_usdc
        self.available_at: datetime | None = None if refusal is None else refusal.available_at

    @property
    def summary(self) -> str:
        """Status, code and message, and when the same amount is possible again."""
        return super().summary + possible_again(self.available_at)


class PolicyViolationError(TransferRejectedError, raised_for=[Code.POLICY_VIOLATION]):
    """The account's policy refuses it; the message names the limit (`policy_violation`)."""


class AccountPausedError(TransferRejectedError, raised_for=[Code.ACCOUNT_PAUSED]):
    """The account's policy is paused (`account_paused`)."""


class InsufficientBalanceError(TransferRejectedError, raised_for=[Code.INSUFFICIENT_BALANCE]):
    """The account holds too little USDC (`insufficient_balance`)."""


class TransferFailedError(TransferRejectedError, raised_for=[Code.TRANSFER_FAILED]):
    """The chain refused the transaction, or a session cannot settle now (`transfer_failed`)."""

    retryable: bool = True


class SessionCapExceededError(TransferRejectedError, raised_for=[Code.SESSION_CAP_EXCEEDED]):
    """The charge would exceed the session's cap; nothing was charged (`session_cap_exceeded`)."""


class NotSupportedError(APIError):
    """The called operation is an extension that the service does not offer (status 404)."""

    advice: str = "Do without it, or use a service that offers this extension"

    def __init__(self, message: str, **facts: Any) -> None:  # noqa: ANN401 - as for `APIError`
        super().__init__(message, **facts)
        self.advice = type(self).advice


class ConflictError(APIError, raised_for=[409]):
    """The request contradicts the current state (status 409)."""

    advice: str = "Read the current state, then decide again"


class IdempotencyConflictError(ConflictError, raised_for=[Code.IDEMPOTENCY_CONFLICT]):
    """The idempotency key was used with other parameters within 24 hours (`idempotency_conflict`)."""


class SessionClosedError(ConflictError, raised_for=[Code.SESSION_CLOSED]):
    """The session accepts no more charges: it is closing, settled, or was never open (`session_closed`)."""


class PreconditionFailedError(APIError, raised_for=[412]):
    """The object was changed by another caller since it was read (status 412)."""

    advice: str = Code.PRECONDITION_FAILED.advice


class InvalidRecipientError(APIError, RefusedError, raised_for=[422]):  # pyright: ignore[reportIncompatibleVariableOverride]
    """The recipient cannot be paid: it is no usable USDC token account or account_id (status 422)."""

    advice: str = Code.INVALID_RECIPIENT.advice


class UnpayableChallengeError(  # pyright: ignore[reportIncompatibleVariableOverride]
    APIError, RefusedError, raised_for=[Code.UNREADABLE_CHALLENGE, Code.NOTHING_PAYABLE]
):
    """The 402 cannot be paid: its challenge is unreadable, or offers nothing payable (status 422).

    Codes `unreadable_challenge` and `nothing_payable`. Nothing was stored, and the key is free.

    Attributes:
        price_usdc: the lowest price that was refused for being above the cap; None for another reason.
        max_amount_usdc: that cap; None for another reason.
    """

    advice: str = "The seller must correct its 402; do not pay this seller for this request until then"

    def __init__(self, message: str, **facts: Any) -> None:  # noqa: ANN401 - as for `APIError`
        super().__init__(message, **facts)
        self.price_usdc: Decimal | None = None if self.body is None else self.body.price_usdc
        self.max_amount_usdc: Decimal | None = None if self.body is None else self.body.max_amount_usdc


class RateLimitError(APIError, raised_for=[429]):
    """Too many requests; `retry_after` says for how many seconds to wait (status 429)."""

    advice: str = Code.RATE_LIMITED.advice


class FeeBudgetExceededError(RateLimitError, raised_for=[Code.FEE_BUDGET_EXCEEDED]):
    """The account has used up its fee budget: SOL that brought no payment (`fee_budget_exceeded`).

    Failed transactions and sessions that are settled with nothing charged count for 24 hours, open sessions
    until they are settled. Nothing was done; `retry_after` says in how many seconds enough is free again.
    """


class ServerError(APIError, raised_for=range(500, 600)):
    """The service, or a proxy in front of it, failed (status 500 and above)."""

    advice: str = "Call again later. If the error persists, report the request id"


class ChainUnavailableError(ServerError, raised_for=[Code.CHAIN_UNAVAILABLE]):
    """The service cannot reach the blockchain (`chain_unavailable`)."""
