"""The console resource, an extension: what an operator sees of all accounts, and sign-in to the console."""

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Literal, Unpack

from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._calls.options import CallOptions
from agentpay.contract.choices import AccountSort, AccountStatus
from agentpay.contract.ext import console, search, sign_in
from agentpay.contract.ext.console import (
    AccountDetails,
    AuditEntry,
    ConsoleSummary,
    PausedAccounts,
    ServedRequest,
)
from agentpay.contract.ext.search import SearchResult, SpendPeriod, SpendReport
from agentpay.contract.ext.sign_in import ConsoleKey, SignInCode


class AsyncAuditLog(AsyncResource):
    """Changes, and who made them. Needs an operator key."""

    __module__ = "agentpay.resources"

    def list(
        self,
        *,
        account_id: str | None = None,
        key_id: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[AuditEntry]:
        """List the audit trail, newest first.

        Args:
            account_id: only changes that name this account.
            key_id: only changes that this key made, `key_…`, revoked or not.
            action: only changes with this `action`, such as `policies.put`.
            since: only changes after this time; with a UTC offset.
            until: only changes up to and including this time; with a UTC offset.
            limit: entries per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(console.LIST_AUDIT, locals(), options)


class AsyncRequestLogs(AsyncResource):
    """The requests that the server has responded to. Needs an operator key."""

    __module__ = "agentpay.resources"

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[ServedRequest]:
        """List the last 1,000 requests of the operator to this server process, newest first.

        Args:
            limit: requests per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(console.LIST_SERVED_REQUESTS, locals(), options)


class AsyncConsole(AsyncResource):
    """The operator's views of all accounts. All but `sign_in` need an operator key.

    Attributes:
        audit_log: every change, and who made it.
        request_logs: the requests that the server has responded to.
    """

    __module__ = "agentpay.resources"

    @cached_property
    def audit_log(self) -> AsyncAuditLog:
        """Every change, and who made it."""
        return AsyncAuditLog(self._caller)

    @cached_property
    def request_logs(self) -> AsyncRequestLogs:
        """The requests that the server has responded to."""
        return AsyncRequestLogs(self._caller)

    async def summary(self, **options: Unpack[CallOptions]) -> ConsoleSummary:
        """Count accounts, pending approvals, undelivered deliveries and open sessions.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return await self._call(console.GET_SUMMARY, locals(), options)

    async def search(
        self, q: str, *, limit: int | None = None, **options: Unpack[CallOptions]
    ) -> SearchResult:
        """Find accounts, transfers, sessions, deposits and events.

        Args:
            q: part of a name, handle, memo or seller's origin; an identifier, address, signature,
                idempotency key or error code; an amount in USDC; or the name of an event type.
            limit: how many of each kind, 1 to 20; 5 by default.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            InvalidRequestError: `q` is empty or too long.
        """
        return await self._call(search.SEARCH, locals(), options)

    async def spend_report(
        self,
        *,
        account_id: str | None = None,
        by: SpendPeriod | Literal["hour", "day"] = "day",
        since: datetime | None = None,
        until: datetime | None = None,
        **options: Unpack[CallOptions],
    ) -> SpendReport:
        """Sum what was settled, and count rejections, by hour or day in UTC.

        Args:
            account_id: only spends of this account.
            by: `hour` or `day`.
            since: only what is after this time, with a UTC offset; by default 24 hours, or 30 days for `day`.
            until: only what is up to and including this time, with a UTC offset; by default now.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
        """
        return await self._call(search.READ_SPEND, locals(), options)

    async def details(self, account_id: str, **options: Unpack[CallOptions]) -> AccountDetails:
        """Read an account with its metadata, its on-chain policy record, and its spending.

        Its balance is None while the chain does not respond.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
        """
        return await self._call(console.GET_ACCOUNT_DETAILS, locals(), options)

    def list_details(
        self,
        *,
        ids: Sequence[str] | None = None,
        name: str | None = None,
        status: AccountStatus | None = None,
        sort: AccountSort | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[AccountDetails]:
        """List accounts with their details, newest first or sorted.

        Args:
            ids: only these accounts, 100 at most; not together with another filter or `sort`.
            name: only accounts with exactly this name or handle.
            status: only accounts that are `active`, or `paused`.
            sort: the order over all accounts, not together with a filter: `name`, `balance`, `spent` (of the
                daily limit) or `limit` (the daily limit), or one of these after `-` for the reverse.
            limit: accounts per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        arguments = {**locals(), "ids": None if ids is None else ",".join(ids)}
        return self._pages(console.LIST_ACCOUNT_DETAILS, arguments, options)

    async def unblock(self, account_id: str, **options: Unpack[CallOptions]) -> AccountDetails:
        """Let a suspended account sign again.

        First compare its history with the chain: `suspension` of its details names the transaction. An
        account that is not suspended stays unchanged.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The account, whose `signing_stopped_at` is None.

        Raises:
            NotFoundError: no such account of this operator.
        """
        return await self._call(console.UNBLOCK_ACCOUNT, locals(), options)

    async def pause_all(self, **options: Unpack[CallOptions]) -> PausedAccounts:
        """Pause all accounts of the operator: nothing more is paid from any, from the next request on.

        Accounts that are created afterwards are not paused. An interrupted call may have paused some accounts
        only: call it again.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return await self._call(console.PAUSE_ALL, locals(), options)

    async def resume_all(self, **options: Unpack[CallOptions]) -> PausedAccounts:
        """Resume the accounts that `pause_all` has paused.

        An account that was paused before `pause_all`, or whose policy was written since, stays as it is. If
        all are paused again meanwhile, the call ends early.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return await self._call(console.RESUME_ALL, locals(), options)

    async def create_sign_in_code(self, **options: Unpack[CallOptions]) -> SignInCode:
        """Create a code that signs in to the console once, within 10 minutes.

        The link to open is `{base_url}/dashboard#code={code}`.

        Args:
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return await self._call(sign_in.CREATE_SIGN_IN_CODE, locals(), options)

    async def sign_in(self, code: str, **options: Unpack[CallOptions]) -> ConsoleKey:
        """Exchange the code of a sign-in link for a key of the console.

        It needs no key: the key of this client is ignored.

        Args:
            code: what follows `#code=` in the link.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The key, which expires after 12 hours; it is shown here and never again.

        Raises:
            AuthenticationError: the code is invalid, has expired, or was used before.
        """
        return await self._call(sign_in.SIGN_IN, locals(), options)
