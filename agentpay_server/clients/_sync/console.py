# Generated from _async by scripts/unasync.py. Edit that one.
"""The console as a resource: keys, accounts in full, approvals, webhooks, deliveries, the audit trail."""

from agentpay._sync.paging import Page
from agentpay._sync.resource import Resource
from agentpay._requests import prepare
from agentpay.contract import approvals, console, deliveries, operator_keys
from agentpay.contract.approvals import PendingTransfer, RejectTransfer
from agentpay.contract.console import AccountDetail, AgentKey, AuditEntry, CreateAgentKey, NewAgentKey
from agentpay.contract.deliveries import (
    DEFAULT_OVERLAP_SECONDS,
    Delivery,
    NewSecret,
    RecordedEvent,
    RegisteredWebhook,
    ReplayEvent,
    RotateSecret,
)
from agentpay.contract.operator_keys import CreateOperatorKey, NewOperatorKey, OperatorKey
from agentpay.contract.pages import PageBody
from agentpay.contract.transfers import Transfer


class Console(Resource):
    """What an operator does on the dashboard. Every method raises the exceptions of `agentpay.errors`."""

    def create_agent_key(self, account_id: str, *, name: str | None = None) -> NewAgentKey:
        """Make a key that is bound to one account (interface CO2).

        Args:
            account_id: the account, `acct_…`.
            name: display label, 1 to 100 characters.

        Returns:
            The key; it is shown here and never again.

        Raises:
            NotFoundError: no such account of this operator.
        """
        body = CreateAgentKey(account_id=account_id, name=name)
        request = prepare(console.CREATE_AGENT_KEY, body=body)
        key: NewAgentKey = self._call(request, {})
        return key

    def agent_keys(self, *, limit: int | None = None, cursor: str | None = None) -> Page[AgentKey]:
        """List the live agent-scoped keys, newest first, without the keys themselves.

        Args:
            limit: keys per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
        """

        def fetch(cursor: str | None) -> PageBody[AgentKey]:
            request = prepare(console.LIST_AGENT_KEYS, query={"limit": limit, "cursor": cursor})
            body: PageBody[AgentKey] = self._call(request, {})
            return body

        return Page.first(fetch, cursor)

    def revoke_agent_key(self, key_id: str) -> None:
        """Revoke an agent-scoped key; its next request is refused.

        Args:
            key_id: the key, `key_…`.

        Raises:
            NotFoundError: no such live key of this operator.
        """
        self._call(prepare(console.REVOKE_AGENT_KEY, path={"key_id": key_id}), {})

    def create_operator_key(self, name: str) -> NewOperatorKey:
        """Create another operator key (interface K8, K9).

        To replace a key that has leaked, create another one with it, then revoke it.

        Args:
            name: display label, 1 to 100 characters.

        Returns:
            The key; it is shown here and never again.
        """
        request = prepare(operator_keys.CREATE_OPERATOR_KEY, body=CreateOperatorKey(name=name))
        key: NewOperatorKey = self._call(request, {})
        return key

    def operator_keys(
        self, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[OperatorKey]:
        """List the valid operator keys, newest first, without the keys themselves.

        Args:
            limit: keys per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
        """

        def fetch(cursor: str | None) -> PageBody[OperatorKey]:
            request = prepare(operator_keys.LIST_OPERATOR_KEYS, query={"limit": limit, "cursor": cursor})
            body: PageBody[OperatorKey] = self._call(request, {})
            return body

        return Page.first(fetch, cursor)

    def revoke_operator_key(self, key_id: str) -> None:
        """Revoke an operator key; its next request is refused.

        Args:
            key_id: the key, `key_…`; it may be the one that this client uses.

        Raises:
            NotFoundError: no such valid key of this operator.
            ConflictError: it is the operator's last valid key (`last_operator_key`); create another first.
        """
        path = {"key_id": key_id}
        self._call(prepare(operator_keys.REVOKE_OPERATOR_KEY, path=path), {})

    def account(self, account_id: str) -> AccountDetail:
        """Read an account with its metadata, its on-chain policy record, and what is spent of its limits.

        Args:
            account_id: the account, `acct_…`.

        Raises:
            NotFoundError: no such account of this operator.
        """
        request = prepare(console.GET_ACCOUNT_DETAIL, path={"account_id": account_id})
        detail: AccountDetail = self._call(request, {})
        return detail

    def allow_signing(self, account_id: str) -> AccountDetail:
        """Let an account spend again for which nothing is signed, because a transaction landed too late.

        Compare its history with the chain before: the log and the audit trail name the transactions. An
        account that may spend already stays as it is.

        Args:
            account_id: the account, `acct_…`.

        Returns:
            The account, whose `signing_stopped_at` is None.

        Raises:
            NotFoundError: no such account of this operator.
        """
        request = prepare(console.ALLOW_SIGNING, path={"account_id": account_id})
        detail: AccountDetail = self._call(request, {})
        return detail

    def approvals(
        self, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[PendingTransfer]:
        """List the transfers that wait for approval, newest first (interface CO5).

        Args:
            limit: transfers per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
        """

        def fetch(cursor: str | None) -> PageBody[PendingTransfer]:
            request = prepare(approvals.LIST_APPROVALS, query={"limit": limit, "cursor": cursor})
            body: PageBody[PendingTransfer] = self._call(request, {})
            return body

        return Page.first(fetch, cursor)

    def approve(self, transfer_id: str) -> Transfer:
        """Approve a transfer: the policy in force is checked again, and the transfer is executed.

        See interface AP3.

        Should the answer be lost, read the transfer: approving again never pays twice.

        Args:
            transfer_id: the transfer, `txn_…`.

        Returns:
            The transfer, settled.

        Raises:
            NotFoundError: no such transfer of this operator.
            ConflictError: it does not wait for approval, or not any more (`not_pending`).
            PolicyViolationError: the policy in force refuses it; it is rejected for good.
            AccountPausedError: the account is paused; it is rejected for good.
            InsufficientBalanceError: the account holds too little; it still waits.
            TransferFailedError: it was sent and provably did not land.
            InvalidRecipientError: the recipient cannot receive now; it still waits.
            ChainUnavailableError: the chain did not answer. Without `transfer_id` nothing was done and it
                still waits; with it, it is under way and its outcome is not known yet.
        """
        request = prepare(approvals.APPROVE_TRANSFER, path={"transfer_id": transfer_id})
        transfer: Transfer = self._call(request, {})
        return transfer

    def reject(self, transfer_id: str, *, reason: str | None = None) -> Transfer:
        """Reject a transfer that waits for approval, for good (interface AP4).

        Args:
            transfer_id: the transfer, `txn_…`.
            reason: why, 1 to 200 characters; whoever asked for the transfer reads it.

        Returns:
            The transfer, rejected.

        Raises:
            NotFoundError: no such transfer of this operator.
            ConflictError: it does not wait for approval, or not any more (`not_pending`).
        """
        request = prepare(
            approvals.REJECT_TRANSFER, path={"transfer_id": transfer_id}, body=RejectTransfer(reason=reason)
        )
        transfer: Transfer = self._call(request, {})
        return transfer

    def audit(self, *, limit: int | None = None, cursor: str | None = None) -> Page[AuditEntry]:
        """List what was changed by whom, newest first.

        Args:
            limit: entries per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
        """

        def fetch(cursor: str | None) -> PageBody[AuditEntry]:
            request = prepare(console.LIST_AUDIT, query={"limit": limit, "cursor": cursor})
            body: PageBody[AuditEntry] = self._call(request, {})
            return body

        return Page.first(fetch, cursor)

    def webhooks(
        self, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[RegisteredWebhook]:
        """List the registered webhooks, newest first, without their secrets.

        Args:
            limit: webhooks per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
        """

        def fetch(cursor: str | None) -> PageBody[RegisteredWebhook]:
            request = prepare(deliveries.LIST_WEBHOOKS, query={"limit": limit, "cursor": cursor})
            body: PageBody[RegisteredWebhook] = self._call(request, {})
            return body

        return Page.first(fetch, cursor)

    def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook; what is still to be delivered to it is given up.

        Args:
            webhook_id: the webhook, `wh_…`.

        Raises:
            NotFoundError: no such webhook of this operator.
        """
        self._call(prepare(deliveries.DELETE_WEBHOOK, path={"webhook_id": webhook_id}), {})

    def rotate_webhook_secret(
        self, webhook_id: str, *, overlap_seconds: int = DEFAULT_OVERLAP_SECONDS
    ) -> str:
        """Give a webhook a new secret (interface CO10).

        While the rotation overlaps, the contract's header is signed with the old secret and a second header
        with the new one; `agentpay.webhooks` looks at both.

        Args:
            webhook_id: the webhook, `wh_…`.
            overlap_seconds: how long both sign, from 0 to 30 days; 24 hours by default, 0 after a leak.

        Returns:
            The new secret, which is shown here and never again.

        Raises:
            NotFoundError: no such webhook of this operator.
        """
        request = prepare(
            deliveries.ROTATE_SECRET,
            path={"webhook_id": webhook_id},
            body=RotateSecret(overlap_seconds=overlap_seconds),
        )
        new: NewSecret = self._call(request, {})
        return new.secret

    def events(
        self,
        *,
        type: str | None = None,  # noqa: A002 - the name of the query parameter
        account_id: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[RecordedEvent]:
        """List the recorded events, newest first.

        Args:
            type: only events of this type, such as `transfer.settled`.
            account_id: only events about this account.
            limit: events per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.

        Raises:
            InvalidRequestError: there is no such type.
        """

        def fetch(cursor: str | None) -> PageBody[RecordedEvent]:
            query = {"type": type, "account_id": account_id, "limit": limit, "cursor": cursor}
            body: PageBody[RecordedEvent] = self._call(prepare(deliveries.LIST_EVENTS, query=query), {})
            return body

        return Page.first(fetch, cursor)

    def replay_event(self, event_id: str, *, webhook_id: str | None = None) -> tuple[Delivery, ...]:
        """Deliver an event once more: the same bytes, under the same identifier.

        Args:
            event_id: the event, `evt_…`.
            webhook_id: the webhook to send it to; None is every one that asks for such events now.

        Returns:
            The new deliveries.

        Raises:
            NotFoundError: no such event of this operator.
            InvalidRequestError: no such webhook of this operator.
        """
        request = prepare(
            deliveries.REPLAY_EVENT, path={"event_id": event_id}, body=ReplayEvent(webhook_id=webhook_id)
        )
        page: PageBody[Delivery] = self._call(request, {})
        return page.data

    def deliveries(
        self,
        *,
        status: str | None = None,
        event_id: str | None = None,
        webhook_id: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Delivery]:
        """List deliveries with every attempt, newest first.

        Args:
            status: only those that are `pending`, `retrying`, `delivered` or `undelivered`.
            event_id: only those of this event.
            webhook_id: only those to this webhook.
            limit: deliveries per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
        """

        def fetch(cursor: str | None) -> PageBody[Delivery]:
            query = {
                "status": status,
                "event_id": event_id,
                "webhook_id": webhook_id,
                "limit": limit,
                "cursor": cursor,
            }
            body: PageBody[Delivery] = self._call(prepare(deliveries.LIST_DELIVERIES, query=query), {})
            return body

        return Page.first(fetch, cursor)
