# Generated from _async by scripts/unasync.py. Edit that one.
"""The approvals resource, an extension: decide about transfers that wait for an operator."""

from typing import Unpack

from agentpay._sync.paging import Page
from agentpay._sync.resource import Resource
from agentpay._calls.options import CallOptions
from agentpay.contract.choices import ApprovalSort
from agentpay.contract.ext import approvals
from agentpay.contract.ext.approvals import PendingTransfer
from agentpay.contract.transfers import Transfer


class Approvals(Resource):
    """Transfers that are pending an operator's approval. All need an operator key."""

    __module__ = "agentpay.resources"

    def list(
        self,
        *,
        sort: ApprovalSort | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Page[PendingTransfer]:
        """List the transfers that are pending approval, newest first or sorted.

        Args:
            sort: `expires`: the soonest to expire first.
            limit: transfers per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(approvals.LIST_APPROVALS, locals(), options)

    def approve(self, transfer_id: str, **options: Unpack[CallOptions]) -> Transfer:
        """Approve a transfer: the policy in force is checked again, and the transfer is executed.

        If the response is lost, read the transfer: approving again never pays twice.

        Args:
            transfer_id: the transfer, `txn_…`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The transfer, settled.

        Raises:
            NotFoundError: no such transfer of this operator.
            ConflictError: it is not pending approval (`not_pending`).
            PolicyViolationError: the policy in force refuses it; it is now rejected.
            AccountPausedError: the account is paused; it is now rejected.
            InsufficientBalanceError: the account holds too little; it is still pending.
            TransferFailedError: the chain refused the transaction; nothing moved.
            InvalidRecipientError: the recipient cannot receive now; it is still pending.
            ChainUnavailableError: the chain did not respond. Without `transfer_id` nothing was done and it is
                still pending; with it, it was sent and its outcome is unknown.
        """
        return self._call(approvals.APPROVE_TRANSFER, locals(), options)

    def reject(
        self, transfer_id: str, *, reason: str | None = None, **options: Unpack[CallOptions]
    ) -> Transfer:
        """Reject a transfer that is pending approval.

        Args:
            transfer_id: the transfer, `txn_…`.
            reason: why, 1 to 200 characters; visible to the caller that requested the transfer.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The transfer, rejected.

        Raises:
            NotFoundError: no such transfer of this operator.
            ConflictError: it is not pending approval (`not_pending`).
        """
        return self._call(approvals.REJECT_TRANSFER, locals(), options)
