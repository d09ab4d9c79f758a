"""Approvals on the console: transfers that are pending an operator's approval (interface CO5 to CO7)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final

import attrs
from attrs import field, frozen

from agentpay.contract.endpoints import EXTENSIONS, TRANSFER, Endpoint, Scope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.payments import PaymentSplit
from agentpay.contract.fields import OMITTED_BY_DEFAULT, text
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.requests import Request
from agentpay.contract.transfers import Transfer, TransferStatus


@frozen(kw_only=True)
class PendingTransfer(Transfer):
    """A transfer that is pending approval.

    Attributes:
        category: spend category, or None.
        created_at: when it was requested, UTC.
        expires_at: when it is rejected if not approved by then, UTC.
        splits: for a payment behind HTTP 402, what other recipients than `to` get, who gets the rest; None if
            all of it goes to `to`.
    """

    _example: ClassVar = {
        "status": "pending_approval",
        "tx_signature": None,
        "chain_explorer_url": None,
        "settled_at": None,
    }

    category: str | None
    created_at: datetime
    expires_at: datetime
    splits: tuple[PaymentSplit, ...] | None = field(default=None, metadata=OMITTED_BY_DEFAULT)


class ApprovalSort(StrEnum):
    """An order of pending transfers. Of equal ones the oldest comes first."""

    EXPIRES = "expires"


@frozen(kw_only=True)
class ListApprovals(PageQuery):
    """Query of `GET /ext/v1/console/approvals`.

    Attributes:
        sort: `expires`: the soonest to expire first. By default, newest first.
    """

    sort: ApprovalSort | None = None


@frozen(kw_only=True)
class RejectTransfer(Request):
    """Body of `POST /ext/v1/console/approvals/{transfer_id}/reject`.

    Attributes:
        reason: why, 1 to 200 characters; visible to the caller that requested the transfer.
    """

    reason: Annotated[str, text(minimum=1, maximum=200, trim=True, control=False)] | None = None


LIST_APPROVALS: Final = Endpoint(
    name="approvals.list",
    method="GET",
    path=EXTENSIONS + "/console/approvals",
    scope=Scope.OPERATOR,
    query=ListApprovals,
    responses={200: PageBody[PendingTransfer]},
    summary="List the transfers that are pending approval, newest first or sorted.",
)
APPROVE_TRANSFER: Final = Endpoint(
    name="approvals.approve",
    method="POST",
    path=EXTENSIONS + "/console/approvals/{transfer_id}/approve",
    scope=Scope.OPERATOR,
    responses={200: Transfer},
    subject=attrs.evolve(TRANSFER, refused=(*TRANSFER.refused, TransferStatus.PENDING_APPROVAL)),
    errors=(
        ErrorCode.NOT_PENDING,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.ACCOUNT_PAUSED,
        ErrorCode.INSUFFICIENT_BALANCE,
        ErrorCode.TRANSFER_FAILED,
        ErrorCode.INVALID_RECIPIENT,
        ErrorCode.FEE_BUDGET_EXCEEDED,
        ErrorCode.CHAIN_UNAVAILABLE,
    ),
    summary="Approve a transfer: check the policy in force again, and execute.",
)
REJECT_TRANSFER: Final = Endpoint(
    name="approvals.reject",
    method="POST",
    path=EXTENSIONS + "/console/approvals/{transfer_id}/reject",
    scope=Scope.OPERATOR,
    request=RejectTransfer,
    is_body_optional=True,
    responses={200: Transfer},
    errors=(ErrorCode.NOT_PENDING,),
    summary="Reject a transfer that is pending approval.",
)

APPROVAL_ENDPOINTS: Final = (LIST_APPROVALS, APPROVE_TRANSFER, REJECT_TRANSFER)
"""All operations on approvals."""
