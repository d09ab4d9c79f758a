# Generated from _async by scripts/unasync.py. Edit that one.
"""The operator API of the dashboard as resources, an extension."""

from typing import Unpack

from agentpay._sync.caller import Caller
from agentpay._sync.deliveries import Deliveries, Events, RegisteredWebhooks
from agentpay._sync.keys import AgentKeys, OperatorKeys
from agentpay._sync.origins import Origins
from agentpay._sync.paging import Page
from agentpay._sync.resource import Resource
from agentpay._options import CallOptions
from agentpay._requests import prepare
from agentpay.contract import approvals, console
from agentpay.contract.approvals import PendingTransfer, RejectTransfer
from agentpay.contract.console import AccountDetail, AuditEntry, ConsoleSummary, ServedRequest
from agentpay.contract.transfers import Transfer


class Approvals(Resource):
    """Transfers that are pending an operator's approval (interface AP1 to AP5). All need an operator key."""

    __module__ = "agentpay"

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> Page[PendingTransfer]:
        """List the transfers that are pending approval, newest first (interface CO5).

        Args:
            limit: transfers per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        return self._pages(approvals.LIST_APPROVALS, options, query={"limit": limit, "cursor": cursor})

    def approve(self, transfer_id: str, **options: Unpack[CallOptions]) -> Transfer:
        """Approve a transfer: the policy in force is checked again, and the transfer is executed.

        See interface AP3. If the response is lost, read the transfer: approving again never pays twice.

        Args:
            transfer_id: the transfer, `txn_…`.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            The transfer, settled.

        Raises:
            NotFoundError: no such transfer of this operator.
            ConflictError: it is not pending approval (`not_pending`).
            PolicyViolationError: the policy in force refuses it; it is now rejected.
            AccountPausedError: the account is paused; it is now rejected.
            InsufficientBalanceError: the account holds too little; it is still pending.
            TransferFailedError: it was sent but did not land, and can no longer land.
            InvalidRecipientError: the recipient cannot receive now; it is still pending.
            ChainUnavailableError: the chain did not respond. Without `transfer_id` nothing was done and it is
                still pending; with it, it was sent and its outcome is not known yet.
        """
        request = prepare(approvals.APPROVE_TRANSFER, path={"transfer_id": transfer_id})
        transfer: Transfer = self._call(request, options)
        return transfer

    def reject(
        self, transfer_id: str, *, reason: str | None = None, **options: Unpack[CallOptions]
    ) -> Transfer:
        """Reject a transfer that is pending approval (interface AP4).

        Args:
            transfer_id: the transfer, `txn_…`.
            reason: why, 1 to 200 characters; visible to the caller that requested the transfer.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            The transfer, rejected.

        Raises:
            NotFoundError: no such transfer of this operator.
            ConflictError: it is not pending approval (`not_pending`).
        """
        request = prepare(
            approvals.REJECT_TRANSFER, path={"transfer_id": transfer_id}, body=RejectTransfer(reason=reason)
        )
        transfer: Transfer = self._call(request, options)
        return transfer


class AccountDetails(Resource):
    """Accounts with details that only their operator may see (interface CO4). All need an operator key."""

    __module__ = "agentpay"

    def get(self, account_id: str, **options: Unpack[CallOptions]) -> AccountDetail:
        """Read an account with its metadata, its on-chain policy record, and its spending.

        Args:
            account_id: the account, `acct_…`.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
        """
        request = prepare(console.GET_ACCOUNT_DETAIL, path={"account_id": account_id})
        detail: AccountDetail = self._call(request, options)
        return detail

    def allow_signing(self, account_id: str, **options: Unpack[CallOptions]) -> AccountDetail:
        """Unblock an account that was blocked because one of its transactions landed too late.

        Compare its history with the chain before: the log and the audit trail name the transactions. An
        account that is not blocked stays unchanged.

        Args:
            account_id: the account, `acct_…`.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            The account, whose `signing_stopped_at` is None.

        Raises:
            NotFoundError: no such account of this operator.
        """
        request = prepare(console.ALLOW_SIGNING, path={"account_id": account_id})
        detail: AccountDetail = self._call(request, options)
        return detail


class Audit(Resource):
    """The audit trail (interface CO13, CO14). Needs an operator key."""

    __module__ = "agentpay"

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> Page[AuditEntry]:
        """List the audit trail, newest first.

        Args:
            limit: entries per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        return self._pages(console.LIST_AUDIT, options, query={"limit": limit, "cursor": cursor})


class ServedRequests(Resource):
    """The requests that the server has responded to (interface CO17). Needs an operator key."""

    __module__ = "agentpay"

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> Page[ServedRequest]:
        """List the last 1,000 requests of the operator to this server process, newest first.

        Args:
            limit: requests per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        return self._pages(console.LIST_SERVED_REQUESTS, options, query={"limit": limit, "cursor": cursor})


class Console(Resource):
    """The operator API of the dashboard. All of it needs an operator key.

    Attributes:
        accounts: accounts with metadata, policy record and spending.
        agent_keys: agent-scoped keys.
        operator_keys: operator keys.
        approvals: transfers that are pending approval.
        webhooks: registered webhooks and their secrets.
        events: recorded events, and their replay.
        deliveries: deliveries of events, with every attempt.
        audit: the audit trail.
        requests: requests that the server has responded to.
        origins: what is known of sellers, and held against their challenges.
    """

    __module__ = "agentpay"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self.accounts: AccountDetails = AccountDetails(caller)
        self.agent_keys: AgentKeys = AgentKeys(caller)
        self.operator_keys: OperatorKeys = OperatorKeys(caller)
        self.approvals: Approvals = Approvals(caller)
        self.webhooks: RegisteredWebhooks = RegisteredWebhooks(caller)
        self.events: Events = Events(caller)
        self.deliveries: Deliveries = Deliveries(caller)
        self.audit: Audit = Audit(caller)
        self.requests: ServedRequests = ServedRequests(caller)
        self.origins: Origins = Origins(caller)

    def summary(self, **options: Unpack[CallOptions]) -> ConsoleSummary:
        """Count accounts, pending approvals, undelivered deliveries and open sessions (interface CO16).

        Args:
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.
        """
        summary: ConsoleSummary = self._call(prepare(console.GET_SUMMARY), options)
        return summary
