"""What an account may spend and has asked for: extensions for whoever spends (interface B1 to B4)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from attrs import field, frozen

from agentpay.contract import choices
from agentpay.contract.endpoints import Endpoint, Repeat, Scope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.fields import Category, Cursor, Rule, parse_timestamp, query_integer, text
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody
from agentpay.contract.requests import NULLABLE, Request
from agentpay.contract.transfers import Transfer, TransferStatus
from agentpay.contract.usdc import UsdcAmount, UsdcNumber, UsdcString


@frozen(kw_only=True)
class Budget(Model):
    """What an account may spend now: its balance, its limits, and how much of them is left.

    Everything is of one moment, at which a transfer would have been judged by it.

    Attributes:
        account_id: the account, `acct_…`.
        balance_usdc: USDC that its token account holds on chain.
        available_usdc: USDC of the balance that is not in flight: the most that the balance allows.
        max_single_transfer: most USDC per transfer or session charge; None is no limit.
        max_daily_spend: most USDC in a rolling 24-hour window; None is no limit.
        spent_usdc: USDC that counts against `max_daily_spend` now: what was spent within 24 hours, transfers
            in flight included, and the caps of sessions that are not settled, however old.
        reserved_usdc: USDC that may yet be given back: of transfers in flight, and the caps of sessions that
            are not settled.
        remaining_usdc: USDC that `max_daily_spend` still allows: a transfer of exactly that much is within
            the limit, and one of a unit more is not. None without that limit.
        next_release_at: when USDC next falls out of the 24 hours and can be spent again, UTC, to the
            millisecond at or after that moment; None while nothing is spent.
        next_release_usdc: USDC that falls out then; None while nothing is spent.
        escalation_threshold: USDC from which a transfer waits for an operator's approval; None is never.
        paused: whether every outgoing transfer is blocked.
        requires_memo: whether transfers without a memo are refused.
        categories: spend categories that may be paid for; None allows all, an empty list none.
        allowed_counterparties: account ids or on-chain addresses that may be paid; None allows all, an empty
            list nobody.
    """

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


@frozen(kw_only=True)
class ListTransfers(Request):
    """Query of `GET /transfers`.

    Attributes:
        account_id: only transfers out of this account.
        status: only transfers that have come this far.
        idempotency_key: only transfers that were asked for under this key.
        since: only transfers that were asked for after this moment.
        limit: page size, 1 to 100.
        cursor: `cursor` of the previous page; empty for the first.
    """

    account_id: Annotated[str, text(maximum=128)] | None = None
    status: TransferStatus | None = None
    idempotency_key: Annotated[str, text(minimum=1, maximum=128)] | None = None
    since: Annotated[datetime, Rule(parse_timestamp)] | None = None
    limit: Annotated[int, query_integer(minimum=1, maximum=100)] = 20
    cursor: Cursor = ""


class Outcome(StrEnum):
    """What would become of a transfer (interface B4)."""

    SETTLE = "settle"
    ESCALATE = "escalate"
    REJECT = "reject"


@frozen(kw_only=True)
class CheckTransfer(Request):
    """Body of `POST /transfers/check`: that of `POST /v1/transfers` without `idempotency_key`.

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
    """What a transfer would come to if it were asked for now.

    Attributes:
        would: `settle`, `escalate` (wait for an operator) or `reject`; a value that this version does not
            know stays a plain string.
        error: code of the error that it would be rejected with; None otherwise.
        message: sentence that explains why it would be rejected or wait; None if it would settle.
        remaining_usdc: USDC that `max_daily_spend` would still allow afterwards: less this transfer if it
            would settle, unchanged otherwise; None without that limit.
    """

    would: choices.Outcome
    error: str | None
    message: str | None
    remaining_usdc: UsdcString | None


GET_BUDGET: Final = Endpoint(
    name="accounts.budget",
    method="GET",
    path="/accounts/{account_id}/budget",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    responses={200: Budget},
    echoes={"account_id": "account_id"},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Read what an account may spend now.",
    description="An agent that reads its budget first asks for what it may have. What it reads is not "
    "reserved: another transfer may come first.",
)
LIST_TRANSFERS: Final = Endpoint(
    name="transfers.list",
    method="GET",
    path="/transfers",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    query=ListTransfers,
    responses={200: PageBody[Transfer]},
    errors=(ErrorCode.FORBIDDEN,),
    echoes={"from_": "account_id", "idempotency_key": "idempotency_key"},
    summary="List transfers of every status, newest first.",
    description="With an agent-scoped key: those of its account.",
)

CHECK_TRANSFER: Final = Endpoint(
    name="transfers.check",
    method="POST",
    path="/transfers/check",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    request=CheckTransfer,
    responses={200: TransferCheck},
    errors=(
        ErrorCode.FORBIDDEN,
        ErrorCode.NOT_FOUND,
        ErrorCode.INVALID_RECIPIENT,
        ErrorCode.CHAIN_UNAVAILABLE,
    ),
    summary="Tell what would become of a transfer, without making it.",
    description="It is judged as `POST /v1/transfers` would judge it now. Nothing is reserved, stored or "
    "sent, so that another transfer may come first. Amounts in flight count as spent.",
)

SPENDING_ENDPOINTS: Final = (GET_BUDGET, LIST_TRANSFERS, CHECK_TRANSFER)
"""Every operation here."""
