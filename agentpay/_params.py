"""TypedDicts with the arguments of methods, for requests that programs build before they send them.

Type checkers check `order: CreateTransferParams = {…}; client.transfers.create(**order)` like the call with
keywords. Keys and types are those of the methods, which document them. Options of a call are in
`CallOptions`.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NotRequired, TypedDict

from agentpay._challenges import Pairs
from agentpay.contract.choices import EventType
from agentpay.contract.payments import VoucherReport
from agentpay.contract.policies import Limit


class CreateAccountParams(TypedDict):
    """Arguments of `accounts.create`."""

    name: str
    metadata: NotRequired[Mapping[str, Any] | None]


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
    session_cap: NotRequired[Decimal | int | str | None]
    memo: NotRequired[str | None]
    previous: NotRequired[VoucherReport | None]


class PinOriginParams(TypedDict, total=False):
    """Arguments of `sellers.put` besides the origin."""

    category: str | None
    recipients: Sequence[str] | None
    max_amount: Decimal | int | str | None
    blocked: bool
    sponsor_fees: bool


for _name, _kind in list(globals().items()):
    if _name.endswith("Params"):
        _kind.__module__ = "agentpay"
