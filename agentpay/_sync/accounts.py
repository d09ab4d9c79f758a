# Generated from _async by scripts/unasync.py. Edit that one.
"""The accounts resource: create, read and list accounts; their balance and history."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Unpack

from agentpay._sync.paging import Page
from agentpay._sync.resource import Resource
from agentpay._calls.options import CallOptions
from agentpay.contract import endpoints
from agentpay.contract.accounts import Account, Balance
from agentpay.contract.choices import AccountStatus, TransactionStatus, TransactionStatusFilter
from agentpay.contract.ext import spending
from agentpay.contract.ext.spending import Budget
from agentpay.contract.transactions import Transaction


class Accounts(Resource):
    """Agent accounts that hold USDC."""

    __module__ = "agentpay.resources"

    def create(
        self, name: str, *, metadata: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> Account:
        """Provision an account on chain.

        Retried only if the service certainly did not process it, because each call creates an account.

        Args:
            name: display label, 1 to 100 characters; not unique.
            metadata: arbitrary key-value pairs, any JSON, at most 16 KiB; only `console.details` returns it.
                A float is sent as the decimal that Python prints for it.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The account, with no USDC and a policy without limits.

        Raises:
            InvalidRequestError: the name or the metadata is invalid: a value has no JSON form, or a number is
                not finite.
            ChainUnavailableError: the blockchain cannot be reached; no account was created.
        """
        return self._call(endpoints.CREATE_ACCOUNT, locals(), options)

    def get(self, account_id: str, **options: Unpack[CallOptions]) -> Account:
        """Read an account, including its policy and its live balance.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
        """
        return self._call(endpoints.GET_ACCOUNT, locals(), options)

    def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        status: AccountStatus | None = None,
        **options: Unpack[CallOptions],
    ) -> Page[Account]:
        """List the operator's accounts, newest first.

        Args:
            limit: accounts per page, 1 to 100; 20 by default. Iterating reads all pages.
            cursor: `cursor` of an earlier page, to continue from there.
            status: only accounts that are `active`, or `paused`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The first page. Iterating over it yields all accounts, fetching further pages as needed.
        """
        return self._pages(endpoints.LIST_ACCOUNTS, locals(), options)

    def balance(self, account_id: str, **options: Unpack[CallOptions]) -> Balance:
        """Read the live on-chain balance of an account.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
            ChainUnavailableError: the blockchain cannot be reached.
        """
        return self._call(endpoints.GET_BALANCE, locals(), options)

    def budget(self, account_id: str, **options: Unpack[CallOptions]) -> Budget:
        """Read an account's budget: balance, limits, and how much of them is left.

        An extension. Reading reserves nothing: another transfer may come first.

        Args:
            account_id: the account: its `acct_…`, name or handle; an agent-scoped key reads its own.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such account of this operator.
            ChainUnavailableError: the blockchain cannot be reached.
            NotSupportedError: the service has no budgets.
        """
        return self._call(spending.GET_BUDGET, locals(), options)

    def transactions(
        self,
        account_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        status: TransactionStatusFilter | None = None,
        since: datetime | None = None,
        **options: Unpack[CallOptions],
    ) -> Page[Transaction]:
        """List the history of an account, newest first.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            limit: entries per page, 1 to 100; 25 by default. Iterating reads all pages.
            cursor: `cursor` of an earlier page, to continue from there.
            status: only entries that are `settled`, or `rejected`; `all` by default.
            since: only entries after this time; with a UTC offset.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The first page. Iterating over it yields all entries, fetching further pages as needed.

        Raises:
            NotFoundError: no such account of this operator.
            InvalidRequestError: `since` has no UTC offset.
        """
        return self._pages(endpoints.LIST_TRANSACTIONS, locals(), options)

    def history(
        self,
        *,
        account_id: str | None = None,
        status: TransactionStatus | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Page[Transaction]:
        """List the history of all accounts of the operator, or of one, newest first.

        For each account, what came in minus what went out is its balance.

        Args:
            account_id: only entries of this account, `acct_…`.
            status: only entries that are `settled`, or `rejected`.
            since: only entries after this time; with a UTC offset.
            until: only entries up to and including this time; with a UTC offset.
            limit: entries per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        from agentpay.contract.ext import console  # noqa: PLC0415 - few need it

        return self._pages(console.LIST_HISTORY, locals(), options)
