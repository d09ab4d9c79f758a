"""Transfers of USDC out of an account (interface T1 to T15)."""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, ClassVar, NotRequired, TypedDict

from attrs import field, frozen

from agentpay.contract import choices
from agentpay.contract.errors import Refusal
from agentpay.contract.fields import OMITTED_BY_DEFAULT, Category, text
from agentpay.contract.models import Model
from agentpay.contract.requests import NULLABLE, Request
from agentpay.contract.usdc import UsdcAmount, UsdcString


class TransferStatus(StrEnum):
    """The status of a transfer."""

    PENDING_APPROVAL = "pending_approval"
    APPROVED = "approved"
    """Only of payments: an operator has approved it, and nothing is signed yet."""

    SUBMITTED = "submitted"
    SETTLED = "settled"
    REJECTED = "rejected"
    FAILED = "failed"


_FINAL = frozenset({TransferStatus.SETTLED, TransferStatus.REJECTED, TransferStatus.FAILED})


@frozen(kw_only=True)
class Transfer(Model):
    """One transfer of USDC.

    A `status` that this version does not know stays a plain string; `from_` is `from` on the wire.

    Attributes:
        transfer_id: identifier, `txn_…`.
        status: `settled`, `rejected`, `submitted`, `pending_approval` or `failed`; of a payment
            behind HTTP 402 also `approved`.
        from_: source account_id.
        to: recipient, as sent: an account_id or an on-chain USDC token account.
        amount_usdc: USDC moved or requested.
        memo: the caller's memo, or None.
        idempotency_key: the key of the request.
        tx_signature: signature of the on-chain transaction; None before it is signed.
        chain_explorer_url: link to the transaction in a block explorer; None before it is signed.
        settled_at: when it was final on chain, UTC; None before.
        error: code of the error; only for rejected and failed transfers.
        message: sentence that explains `error`.
        refusal: the rule that refused it; only for transfers that a policy, a balance or a budget refused.
    """

    _example: ClassVar = {"status": "settled"}

    transfer_id: str
    status: choices.TransferStatus
    from_: str = field(alias="from_")
    to: str
    amount_usdc: UsdcString
    memo: str | None = None
    idempotency_key: str
    tx_signature: str | None = None
    chain_explorer_url: str | None = None
    settled_at: datetime | None = None
    error: str | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    message: str | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    refusal: Refusal | None = field(default=None, metadata=OMITTED_BY_DEFAULT)

    @property
    def is_final(self) -> bool:
        """Whether the transfer is settled, rejected or failed.

        False for a status that this version does not know: waiting then times out, rather than reporting an
        outcome that may not be one.
        """
        return self.status in _FINAL


@frozen(kw_only=True)
class CreateTransfer(Request):
    """Body of `POST /v1/transfers`.

    `from_` is `from` on the wire.

    Attributes:
        from_: source account_id; must belong to the authenticated operator.
        to: a service account_id or a valid on-chain USDC token account address.
        amount: USDC to move, a decimal string, minimum `0.000001`.
        idempotency_key: max 128 characters; the same key never moves money out of an account twice within
            24 hours.
        memo: max 200 characters; required when the source account policy has `require_memo: true`.
        category: spend category, 1 to 64 characters.
    """

    from_: str = field(alias="from_")
    to: str
    amount: UsdcAmount
    idempotency_key: Annotated[str, text(minimum=1, maximum=128)]
    memo: Annotated[str, text(maximum=200)] | None = field(default=None, metadata=NULLABLE)
    category: Category | None = None


class CreateTransferParams(TypedDict):
    """Arguments of `transfers.create`, for a payment that a program stores before it sends it.

    Type checkers check `order: CreateTransferParams = {…}; client.transfers.create(**order)` like the call
    with keywords. Options of a call are in `CallOptions`.
    """

    from_: str
    to: str
    amount: Decimal | int | str
    memo: NotRequired[str | None]
    category: NotRequired[str | None]
    idempotency_key: NotRequired[str | None]


CreateTransferParams.__module__ = "agentpay"
