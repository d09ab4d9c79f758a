"""TypedDicts with the arguments of the methods that send something.

Type checkers check `order: CreateTransferParams = {…}; client.transfers.create(**order)` like the call with
keywords. Keys and types are those of the methods, which document them. Options of a call are in
`CallOptions`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, NotRequired, TypedDict

from agentpay._arguments import Names
from agentpay._challenges import Pairs
from agentpay.contract.accounts import AccountStatus
from agentpay.contract.choices import EventType
from agentpay.contract.deliveries import DeliveryStatusFilter
from agentpay.contract.policies import Limit
from agentpay.contract.sessions import SessionStatus
from agentpay.contract.transactions import TransactionStatusFilter
from agentpay.contract.transfers import TransferStatus


class CreateAccountParams(TypedDict):
    """Arguments of `accounts.create`."""

    name: str
    metadata: NotRequired[Mapping[str, Any] | None]


class ListAccountsParams(TypedDict, total=False):
    """Arguments of `accounts.list`."""

    limit: int | None
    cursor: str | None
    status: AccountStatus | Literal["active", "paused"] | None


class ListTransactionsParams(TypedDict, total=False):
    """Arguments of `accounts.transactions`, except the account."""

    limit: int | None
    cursor: str | None
    status: TransactionStatusFilter | Literal["settled", "rejected", "all"] | None
    since: datetime | None


class PolicyParams(TypedDict, total=False):
    """Arguments of `policies.update` and `policies.replace`, except the account."""

    max_single_transfer: Limit
    max_daily_spend: Limit
    allowed_counterparties: Names
    categories: Names
    require_memo: bool
    escalation_threshold: Limit
    paused: bool


class CreateTransferParams(TypedDict):
    """Arguments of `transfers.create`."""

    from_: str
    to: str
    amount: Decimal | int | str
    memo: NotRequired[str | None]
    category: NotRequired[str | None]
    idempotency_key: NotRequired[str | None]


class CreateWebhookParams(TypedDict):
    """Arguments of `webhooks.create`."""

    url: str
    events: Sequence[EventType]
    account_ids: NotRequired[Sequence[str]]
    low_balance_threshold_usdc: NotRequired[Limit]


class ListTransfersParams(TypedDict, total=False):
    """Arguments of `transfers.list`."""

    account_id: str | None
    status: (
        TransferStatus
        | Literal["pending_approval", "approved", "submitted", "settled", "rejected", "failed"]
        | None
    )
    idempotency_key: str | None
    since: datetime | None
    limit: int | None
    cursor: str | None


class CheckTransferParams(TypedDict):
    """Arguments of `transfers.check`."""

    from_: str
    to: str
    amount: Decimal | int | str
    memo: NotRequired[str | None]
    category: NotRequired[str | None]


class OpenSessionParams(TypedDict):
    """Arguments of `sessions.open`."""

    account_id: str
    to: str
    cap_usdc: Decimal | int | str
    category: NotRequired[str | None]
    idempotency_key: NotRequired[str | None]


class ChargeSessionParams(TypedDict):
    """Arguments of `sessions.charge`, except the session."""

    amount: Decimal | int | str
    idempotency_key: NotRequired[str | None]


class ListSessionsParams(TypedDict, total=False):
    """Arguments of `sessions.list`."""

    account_id: str | None
    status: SessionStatus | Literal["opening", "open", "closing", "settled", "failed"] | None
    idempotency_key: str | None
    limit: int | None
    cursor: str | None


class CreateAgentKeyParams(TypedDict, total=False):
    """Arguments of `console.agent_keys.create` besides the account."""

    name: str | None


class CreateOperatorKeyParams(TypedDict):
    """Arguments of `console.operator_keys.create`."""

    name: str


class RejectTransferParams(TypedDict, total=False):
    """Arguments of `console.approvals.reject` besides the transfer."""

    reason: str | None


class RotateSecretParams(TypedDict, total=False):
    """Arguments of `console.webhooks.rotate_secret` besides the webhook."""

    overlap_seconds: int


class ReplayEventParams(TypedDict, total=False):
    """Arguments of `console.events.replay` besides the event."""

    webhook_id: str | None


class ListEventsParams(TypedDict, total=False):
    """Arguments of `console.events.list`."""

    type: EventType | None
    account_id: str | None
    transfer_id: str | None
    session_id: str | None
    since: datetime | None
    until: datetime | None
    limit: int | None
    cursor: str | None


class ListDeliveriesParams(TypedDict, total=False):
    """Arguments of `console.deliveries.list`."""

    status: DeliveryStatusFilter | Literal["pending", "retrying", "delivered", "undelivered"] | None
    event_id: str | None
    webhook_id: str | None
    transfer_id: str | None
    since: datetime | None
    until: datetime | None
    limit: int | None
    cursor: str | None


class ListParams(TypedDict, total=False):
    """Arguments of the console's lists without filters, such as `console.agent_keys.list`."""

    limit: int | None
    cursor: str | None


class AuthorizePaymentParams(TypedDict):
    """Arguments of `payments.authorize`."""

    account_id: str
    idempotency_key: str
    response: NotRequired[object]
    origin: NotRequired[str | None]
    url: NotRequired[object]
    method: NotRequired[str | None]
    headers: NotRequired[Pairs | None]
    body: NotRequired[bytes | str | None]
    max_amount: NotRequired[Decimal | int | str | None]
    memo: NotRequired[str | None]


class ListPaymentsParams(TypedDict, total=False):
    """Arguments of `payments.list`."""

    account_id: str | None
    status: (
        TransferStatus
        | Literal["pending_approval", "approved", "submitted", "settled", "rejected", "failed"]
        | None
    )
    origin: str | None
    transfer_id: str | None
    since: datetime | None
    limit: int | None
    cursor: str | None


class ReportOutcomeParams(TypedDict):
    """Arguments of `payments.report_outcome` besides the payment."""

    status_code: int
    receipt: NotRequired[str | None]
    duration_ms: NotRequired[int | None]


class PinOriginParams(TypedDict, total=False):
    """Arguments of `console.origins.put` besides the origin."""

    category: str | None
    recipients: Sequence[str] | None
    max_amount: Decimal | int | str | None
    blocked: bool


for _name, _kind in list(globals().items()):
    if _name.endswith("Params"):
        _kind.__module__ = "agentpay"
