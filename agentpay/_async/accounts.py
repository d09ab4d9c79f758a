"""Accounts as a resource: provisioned, read, listed, with balance and history."""

# `timeout` is handed to the HTTP exchange, which answers with an outcome; `asyncio.timeout` would lose it.
# ruff: noqa: ASYNC109

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._requests import prepare
from agentpay._settings import RetriesOption, TimeoutOption
from agentpay.contract import endpoints
from agentpay.contract.accounts import Account, AccountStatus, Balance, CreateAccount
from agentpay.contract.pages import PageBody
from agentpay.contract.requests import UNSET
from agentpay.contract.transactions import Transaction, TransactionStatusFilter


class AsyncAccounts(AsyncResource):
    """Agent accounts that hold USDC (interface A1 to A10)."""

    __module__ = "agentpay"

    async def create(
        self,
        *,
        name: str,
        metadata: Mapping[str, Any] | None = None,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> Account:
        """Provision an account on chain (interface A1).

        Sent again only when the service certainly did not process it, since each call makes an account.

        Args:
            name: display label, 1 to 100 characters; not unique.
            metadata: key-value pairs of your own, at most 16 KiB; stored, never returned. Numbers with a
                fraction are `Decimal`.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Returns:
            The account, with no USDC and a policy without limits.

        Raises:
            InvalidRequestError: the name or the metadata is not valid.
            ChainUnavailableError: the blockchain cannot be reached; nothing was left behind.
        """
        body = CreateAccount.of(name, metadata)
        account: Account = await self._call(
            prepare(endpoints.CREATE_ACCOUNT, body=body), timeout, max_retries
        )
        return account

    async def get(
        self, account_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> Account:
        """Read an account, its policy and its live balance included (interface A2).

        Args:
            account_id: the account, `acct_…`.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Raises:
            NotFoundError: no such account of this operator.
        """
        path = {"account_id": account_id}
        account: Account = await self._call(prepare(endpoints.GET_ACCOUNT, path=path), timeout, max_retries)
        return account

    def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        status: AccountStatus | Literal["active", "paused"] | None = None,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> AsyncPages[Account]:
        """List the operator's accounts, newest first (interface R14).

        Args:
            limit: accounts per page, 1 to 100; 20 by default. Iterating goes through all pages.
            cursor: `cursor` of an earlier page, to go on from there.
            status: only accounts that are `active`, or `paused`.
            timeout: seconds, for each request.
            max_retries: retries, for each request.

        Returns:
            The first page. Iterating over it yields all accounts, fetching further pages as needed.
        """

        async def fetch(cursor: str | None) -> PageBody[Account]:
            query = {"limit": limit, "cursor": cursor, "status": status}
            body: PageBody[Account] = await self._call(
                prepare(endpoints.LIST_ACCOUNTS, query=query), timeout, max_retries
            )
            return body

        return AsyncPages(fetch, cursor)

    async def balance(
        self, account_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> Balance:
        """Read the live on-chain balance of an account (interface A5).

        Args:
            account_id: the account, `acct_…`.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Raises:
            NotFoundError: no such account of this operator.
            ChainUnavailableError: the blockchain cannot be reached.
        """
        path = {"account_id": account_id}
        balance: Balance = await self._call(prepare(endpoints.GET_BALANCE, path=path), timeout, max_retries)
        return balance

    def transactions(
        self,
        account_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        status: TransactionStatusFilter | Literal["settled", "rejected", "all"] | None = None,
        since: datetime | None = None,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> AsyncPages[Transaction]:
        """List the history of an account, newest first (interface H1).

        Args:
            account_id: the account, `acct_…`.
            limit: entries per page, 1 to 100; 25 by default. Iterating goes through all pages.
            cursor: `cursor` of an earlier page, to go on from there.
            status: only entries that are `settled`, or `rejected`; `all` by default.
            since: only entries after this moment; with a UTC offset.
            timeout: seconds, for each request.
            max_retries: retries, for each request.

        Returns:
            The first page. Iterating over it yields all entries, fetching further pages as needed.

        Raises:
            NotFoundError: no such account of this operator.
            ValueError: `since` has no UTC offset.
        """

        async def fetch(cursor: str | None) -> PageBody[Transaction]:
            query = {"limit": limit, "cursor": cursor, "status": status, "since": since}
            path = {"account_id": account_id}
            body: PageBody[Transaction] = await self._call(
                prepare(endpoints.LIST_TRANSACTIONS, path=path, query=query), timeout, max_retries
            )
            return body

        return AsyncPages(fetch, cursor)
