"""Extensions for callers that spend: budget, list and check of transfers (interface B1 to B4)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from attrs import field, frozen

from agentpay.contract import choices
from agentpay.contract.endpoints import EXTENSIONS, Endpoint, Repeat, Scope
from agentpay.contract.errors import ErrorCode, Refusal
from agentpay.contract.fields import Category, Moment, text
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.policies import Policy
from agentpay.contract.requests import NULLABLE, Request
from agentpay.contract.transfers import Transfer, TransferStatus
from agentpay.contract.usdc import UsdcAmount, UsdcNumber, UsdcString


@frozen(kw_only=True)
class Budget(Model):
    """The budget of an account: its balance, its limits, and how much of them is left.

    All values are of the same moment, and are those by which a transfer would have been judged.

    Attributes:
        account_id: the account, `acct_…`.
        balance_usdc: USDC that its token account holds on chain.
        available_usdc: USDC of the balance that is not in flight: the most that the balance allows.
        max_single_transfer: maximum USDC per transfer or session charge; None means no limit.
        max_daily_spend: maximum USDC in a rolling 24-hour window; None means no limit.
        spent_usdc: USDC that counts against `max_daily_spend` now: all spends of the last 24 hours, including
            transfers in flight, and the caps of all unsettled sessions, however old.
        reserved_usdc: USDC that may still be released: transfers in flight, and the caps of unsettled
            sessions.
        remaining_usdc: USDC that `max_daily_spend` and the key's `max_total_usdc` still allow; a transfer of
            exactly this amount is within both. None without either limit.
        next_release_at: when a spend next leaves the 24-hour window, UTC, rounded up to the millisecond; None
            if the window is empty.
        next_release_usdc: USDC that leaves the window then; None if the window is empty.
        escalation_threshold: USDC from which a transfer needs an operator's approval; None means never.
        paused: whether all outgoing transfers are blocked.
        requires_memo: whether transfers without a memo are refused.
        categories: allowed spend categories; None allows all, an empty list none.
        allowed_counterparties: account ids or on-chain addresses that may be paid; None allows all, an empty
            list none.
        max_total_usdc: USDC that the agent key of the request may spend in its lifetime; None means no limit.
        spent_total_usdc: USDC of it that are spent or reserved; None without that limit.
        remaining_total_usdc: USDC of it that are left; None without that limit.
        expires_at: when the key of the request expires, UTC; None if it does not.
    """

    _example: ClassVar = {**Policy._example, "requires_memo": False}  # noqa: SLF001 - the same limits

    account_id: str
    balance_usdc: UsdcString
    available_usdc: UsdcString
    max_single_transfer: UsdcNumber | None
    max_daily_spend: UsdcNumber | None
    spent_usdc: UsdcString
    reserved_usdc: UsdcString
    remaining_usdc: UsdcString | None
    next_release_at: datetime | None
    next_release_usdc: UsdcString | None
    escalation_threshold: UsdcNumber | None
    paused: bool
    requires_memo: bool
    categories: tuple[str, ...] | None
    allowed_counterparties: tuple[str, ...] | None
    max_total_usdc: UsdcString | None
    spent_total_usdc: UsdcString | None
    remaining_total_usdc: UsdcString | None
    expires_at: datetime | None


class TransferSort(StrEnum):
    """An order of transfers: the smallest first, of equal ones the oldest; with `-`, the reverse."""

    AMOUNT = "amount"
    AMOUNT_DESCENDING = "-amount"


@frozen(kw_only=True)
class ListTransfers(PageQuery):
    """Query of `GET /ext/v1/transfers`.

    Attributes:
        account_id: only transfers out of this account.
        status: only transfers with this status.
        idempotency_key: only transfers with this key.
        error: only transfers with this error code.
        key_id: only transfers requested with this key, `key_…`, revoked or not.
        memo: only transfers whose memo begins with this text, ignoring case.
        min_amount: only transfers of at least this many USDC, a decimal string.
        max_amount: only transfers of at most this many USDC, a decimal string.
        since: only transfers requested after this time.
        until: only transfers requested up to and including this time.
        sort: the order over all transfers: by `amount`; `-` before it reverses the order. By default, newest
            first.
    """

    _example: ClassVar = {
        "error": "insufficient_balance",
        "memo": "invoice",
        "min_amount": "5",
        "max_amount": "20.5",
    }

    account_id: Annotated[str, text(maximum=128)] | None = None
    status: TransferStatus | None = None
    idempotency_key: Annotated[str, text(minimum=1, maximum=128)] | None = None
    error: Annotated[str, text(minimum=1, maximum=128)] | None = None
    key_id: Annotated[str, text(maximum=128)] | None = None
    memo: Annotated[str, text(minimum=1, maximum=200)] | None = None
    min_amount: UsdcAmount | None = None
    max_amount: UsdcAmount | None = None
    since: Moment | None = None
    until: Moment | None = None
    sort: TransferSort | None = None


class PredictedOutcome(StrEnum):
    """The predicted outcome of a transfer."""

    SETTLE = "settle"
    ESCALATE = "escalate"
    REJECT = "reject"


@frozen(kw_only=True)
class CheckTransfer(Request):
    """Body of `POST /ext/v1/transfers/check`: that of `POST /v1/transfers` without `idempotency_key`.

    `from_` is `from` on the wire.

    Attributes:
        from_: source account_id; must belong to the authenticated operator.
        to: a service account_id or a valid on-chain USDC token account address.
        amount: USDC that the transfer would move, a decimal string, minimum `0.000001`.
        memo: max 200 characters.
        category: spend category, 1 to 64 characters.
    """

    from_: str = field(alias="from_")
    to: str
    amount: UsdcAmount
    memo: Annotated[str, text(maximum=200)] | None = field(default=None, metadata=NULLABLE)
    category: Category | None = None


@frozen(kw_only=True)
class TransferCheck(Model):
    """The predicted outcome of a transfer if it were requested now.

    Attributes:
        decision: `settle`, `escalate` (need an operator's approval) or `reject`; a value that this version
            does not know stays a plain string.
        error: the error code if it would be rejected; None otherwise.
        message: sentence that explains why it would be rejected or escalated; None if it would settle.
        remaining_usdc: USDC that `max_daily_spend` and the key's `max_total_usdc` would still allow
            afterwards. A transfer that would settle counts toward both, one that would be escalated toward
            the key's total. None without either limit.
        refusal: the rule that would reject it; None otherwise.
    """

    _example: ClassVar = {
        "decision": "escalate",
        "error": None,
        "message": "escalation_threshold is 10.000000 USDC and this transfer requests 12.500000 USDC: it "
        "would wait for an operator's approval.",
        "refusal": None,
    }

    decision: choices.Decision
    error: str | None
    message: str | None
    remaining_usdc: UsdcString | None
    refusal: Refusal | None = None


GET_BUDGET: Final = Endpoint(
    name="accounts.budget",
    method="GET",
    path=EXTENSIONS + "/accounts/{account_id}/budget",
    scope=Scope.ACCOUNT,
    responses={200: Budget},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Read the budget of an account.",
    description="An agent can read its budget before it asks for money. The result reserves nothing: another "
    "transfer may come first.",
)
LIST_TRANSFERS: Final = Endpoint(
    name="transfers.list",
    method="GET",
    path=EXTENSIONS + "/transfers",
    scope=Scope.ACCOUNT,
    query=ListTransfers,
    responses={200: PageBody[Transfer]},
    errors=(ErrorCode.FORBIDDEN,),
    summary="List transfers of every status, newest first or sorted.",
    description="With an agent-scoped key, only transfers of its account.",
)

CHECK_TRANSFER: Final = Endpoint(
    name="transfers.check",
    method="POST",
    path=EXTENSIONS + "/transfers/check",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    is_dry_run=True,
    request=CheckTransfer,
    responses={200: TransferCheck},
    errors=(
        ErrorCode.FORBIDDEN,
        ErrorCode.NOT_FOUND,
        ErrorCode.INVALID_RECIPIENT,
        ErrorCode.FEE_BUDGET_EXCEEDED,
        ErrorCode.CHAIN_UNAVAILABLE,
    ),
    summary="Predict the outcome of a transfer without creating it.",
    description="The transfer is judged as `POST /v1/transfers` would judge it now. Nothing is reserved, "
    "stored or sent, so another transfer may come first. Amounts in flight count as spent.",
)

SPENDING_ENDPOINTS: Final = (GET_BUDGET, LIST_TRANSFERS, CHECK_TRANSFER)
"""All operations of this module."""
