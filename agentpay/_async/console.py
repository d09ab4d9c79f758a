"""The operator API of the dashboard as resources, an extension."""

from typing import Unpack

from agentpay._arguments import check_text
from agentpay._async.caller import AsyncCaller
from agentpay._async.deliveries import AsyncDeliveries, AsyncEvents, AsyncRegisteredWebhooks
from agentpay._async.event_stream import AsyncEventStream
from agentpay._async.keys import AsyncAgentKeys, AsyncOperatorKeys
from agentpay._async.origins import AsyncOrigins
from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._options import CallOptions
from agentpay._requests import prepare
from agentpay.contract import approvals, console, deliveries, sign_in
from agentpay.contract.approvals import PendingTransfer, RejectTransfer
from agentpay.contract.console import AccountDetail, AuditEntry, ConsoleSummary, ServedRequest
from agentpay.contract.headers import LAST_EVENT_ID
from agentpay.contract.sign_in import ConsoleKey, SignIn, SignInCode
from agentpay.contract.transfers import Transfer


class AsyncApprovals(AsyncResource):
    """Transfers that are pending an operator's approval (interface AP1 to AP5). All need an operator key."""

    __module__ = "agentpay"

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[PendingTransfer]:
        """List the transfers that are pending approval, newest first (interface CO5).

        Args:
            limit: transfers per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(approvals.LIST_APPROVALS, options, query={"limit": limit, "cursor": cursor})

    async def approve(self, transfer_id: str, **options: Unpack[CallOptions]) -> Transfer:
        """Approve a transfer: the policy in force is checked again, and the transfer is executed.

        See interface AP3. If the response is lost, read the transfer: approving again never pays twice.

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
        request = prepare(approvals.APPROVE_TRANSFER, path={"transfer_id": transfer_id})
        transfer: Transfer = await self._call(request, options)
        return transfer

    async def reject(
        self, transfer_id: str, *, reason: str | None = None, **options: Unpack[CallOptions]
    ) -> Transfer:
        """Reject a transfer that is pending approval (interface AP4).

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
        request = prepare(
            approvals.REJECT_TRANSFER, path={"transfer_id": transfer_id}, body=RejectTransfer(reason=reason)
        )
        transfer: Transfer = await self._call(request, options)
        return transfer


class AsyncAccountDetails(AsyncResource):
    """Accounts with details that only their operator may see (interface CO4). All need an operator key."""

    __module__ = "agentpay"

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[AccountDetail]:
        """List accounts in full, newest first: as `get` returns each, in one request (interface CO4).

        Args:
            limit: accounts per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(console.LIST_ACCOUNT_DETAILS, options, query={"limit": limit, "cursor": cursor})

    async def get(self, account_id: str, **options: Unpack[CallOptions]) -> AccountDetail:
        """Read an account with its metadata, its on-chain policy record, and its spending.

        Args:
            account_id: the account, `acct_…`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
        """
        request = prepare(console.GET_ACCOUNT_DETAIL, path={"account_id": account_id})
        detail: AccountDetail = await self._call(request, options)
        return detail

    async def allow_signing(self, account_id: str, **options: Unpack[CallOptions]) -> AccountDetail:
        """Unblock an account that was blocked because one of its transactions landed too late.

        First compare its history with the chain: the log and the audit trail name the transactions. An
        account that is not blocked stays unchanged.

        Args:
            account_id: the account, `acct_…`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The account, whose `signing_stopped_at` is None.

        Raises:
            NotFoundError: no such account of this operator.
        """
        request = prepare(console.ALLOW_SIGNING, path={"account_id": account_id})
        detail: AccountDetail = await self._call(request, options)
        return detail


class AsyncAudit(AsyncResource):
    """The audit trail (interface CO13, CO14). Needs an operator key."""

    __module__ = "agentpay"

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[AuditEntry]:
        """List the audit trail, newest first.

        Args:
            limit: entries per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(console.LIST_AUDIT, options, query={"limit": limit, "cursor": cursor})


class AsyncServedRequests(AsyncResource):
    """The requests that the server has responded to (interface CO17). Needs an operator key."""

    __module__ = "agentpay"

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[ServedRequest]:
        """List the last 1,000 requests of the operator to this server process, newest first.

        Args:
            limit: requests per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(console.LIST_SERVED_REQUESTS, options, query={"limit": limit, "cursor": cursor})


class AsyncConsole(AsyncResource):
    """The operator API of the dashboard. All of it except `sign_in` needs an operator key.

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
        origins: pins of sellers, which override what their challenges claim.
    """

    __module__ = "agentpay"

    def __init__(self, caller: AsyncCaller) -> None:
        super().__init__(caller)
        self.accounts: AsyncAccountDetails = AsyncAccountDetails(caller)
        self.agent_keys: AsyncAgentKeys = AsyncAgentKeys(caller)
        self.operator_keys: AsyncOperatorKeys = AsyncOperatorKeys(caller)
        self.approvals: AsyncApprovals = AsyncApprovals(caller)
        self.webhooks: AsyncRegisteredWebhooks = AsyncRegisteredWebhooks(caller)
        self.events: AsyncEvents = AsyncEvents(caller)
        self.deliveries: AsyncDeliveries = AsyncDeliveries(caller)
        self.audit: AsyncAudit = AsyncAudit(caller)
        self.requests: AsyncServedRequests = AsyncServedRequests(caller)
        self.origins: AsyncOrigins = AsyncOrigins(caller)

    async def summary(self, **options: Unpack[CallOptions]) -> ConsoleSummary:
        """Count accounts, pending approvals, undelivered deliveries and open sessions (interface CO16).

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        summary: ConsoleSummary = await self._call(prepare(console.GET_SUMMARY), options)
        return summary

    def stream(self, *, last_event_id: str | None = None, **options: Unpack[CallOptions]) -> AsyncEventStream:
        """Open a stream of events, which yields each as it is recorded (interface CO21).

            async with client.console.stream() as stream:
                async for event in stream: ...

        Nothing is retried. When the connection is lost, call it again with the stream's `last_event_id`.

        Args:
            last_event_id: yield what was recorded after this event, `evt_…`; by default from now on. After an
                unknown one, from now on too.
            **options: `timeout`, `total_timeout` and `extra_headers`: see `CallOptions`. Keep the timeout
                above 15 seconds: without events the server sends a comment every 15 seconds.

        Returns:
            The stream: a context manager that yields events. See `AsyncEventStream`.

        Raises:
            RateLimitError: this key has 10 streams open at this server.
            APIConnectionError: the connection was lost.
            ResponseValidationError: the response is no stream of events; check `base_url`.
        """
        if last_event_id is not None:
            after = {LAST_EVENT_ID.name: check_text("last_event_id", last_event_id)}
            options["extra_headers"] = {**options.get("extra_headers", {}), **after}
        pieces = self._caller.pieces(prepare(deliveries.STREAM_EVENTS), options)
        return AsyncEventStream(pieces, last_event_id)

    async def sign_in(self, code: str, **options: Unpack[CallOptions]) -> ConsoleKey:
        """Exchange the code of a sign-in link for a key of the console (interface CO18).

        It needs no key: the key of this client is ignored.

        Args:
            code: what follows `#code=` in the link.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The key, which expires after 12 hours; it is shown here and never again.

        Raises:
            AuthenticationError: the code is invalid, has expired, or was used before.
        """
        key: ConsoleKey = await self._call(prepare(sign_in.SIGN_IN, body=SignIn(code=code)), options)
        return key

    async def sign_in_code(self, **options: Unpack[CallOptions]) -> SignInCode:
        """Create a code that signs in to the console once, within 10 minutes (interface CO20).

        The link to open is `{base_url}/dashboard#code={code}`.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        code: SignInCode = await self._call(prepare(sign_in.CREATE_SIGN_IN_CODE), options)
        return code
