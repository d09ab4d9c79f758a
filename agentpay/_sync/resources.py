# Generated from _async by scripts/unasync.py. Edit that one.
"""The resources of the service, one class each: arguments become a prepared request, its answer a model.

Every method takes `timeout` (seconds, None without limit) and `max_retries` for this call alone, and raises
the exceptions of `agentpay.errors`; a docstring names those with a meaning of their own.
"""

# `timeout` is handed to the HTTP exchange, which answers with an outcome; `asyncio.timeout` would lose it.
# ruff: noqa: ASYNC109

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

from agentpay._arguments import Names, names, policy_change
from agentpay._sync.paging import Page
from agentpay._http import Http
from agentpay._requests import PreparedRequest, Reply, etag_of, prepare
from agentpay._settings import RetriesOption, TimeoutOption
from agentpay.contract import endpoints
from agentpay.contract.accounts import Account, AccountStatus, Balance, CreateAccount
from agentpay.contract.pages import PageBody
from agentpay.contract.policies import AccountPolicy, Limit, PolicyChange
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.contract.transactions import Transaction, TransactionStatusFilter
from agentpay.contract.transfers import CreateTransfer, Transfer
from agentpay.contract.usdc import to_decimal
from agentpay.contract.webhooks import CreateWebhook, Webhook
from agentpay.errors import AgentPayError, PreconditionFailedError, WaitTimeoutError

POLICY_UPDATE_ATTEMPTS: Final = 10
"""How often a policy is read and written again while others change it at the same time."""

POLL_INTERVAL_CAP: Final = 5.0
"""Longest pause between two looks at a transfer, in seconds."""

Exchange = Callable[[PreparedRequest, TimeoutOption, RetriesOption], tuple[Any, Reply]]


class Resource:
    """Base of the resources: they know how to exchange a request for a model, and nothing of the client."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def _call(
        self, request: PreparedRequest, timeout: TimeoutOption, max_retries: RetriesOption
    ) -> Any:  # noqa: ANN401 - the model of the endpoint
        model, _ = self._exchange(request, timeout, max_retries)
        return model


class Accounts(Resource):
    """Agent accounts that hold USDC (contract, "Account")."""

    def create(
        self,
        *,
        name: str,
        metadata: Mapping[str, Any] | None = None,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> Account:
        """Provision an account on chain (contract, "POST /v1/accounts").

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
        account: Account = self._call(
            prepare(endpoints.CREATE_ACCOUNT, body=body), timeout, max_retries
        )
        return account

    def get(
        self, account_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> Account:
        """Read an account, its policy and its live balance included (contract, "GET /v1/accounts/:id").

        Args:
            account_id: the account, `acct_…`.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Raises:
            NotFoundError: no such account of this operator.
        """
        path = {"account_id": account_id}
        account: Account = self._call(prepare(endpoints.GET_ACCOUNT, path=path), timeout, max_retries)
        return account

    def list(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        status: AccountStatus | Literal["active", "paused"] | None = None,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> Page[Account]:
        """List the operator's accounts, newest first (contract, "GET /v1/accounts").

        Args:
            limit: accounts per page, 1 to 100; 20 by default. Iterating goes through all pages.
            cursor: `cursor` of an earlier page, to go on from there.
            status: only accounts that are `active`, or `paused`.
            timeout: seconds, for each request.
            max_retries: retries, for each request.

        Returns:
            The first page. Iterating over it yields all accounts, fetching further pages as needed.
        """

        def fetch(cursor: str | None) -> PageBody[Account]:
            query = {"limit": limit, "cursor": cursor, "status": status}
            body: PageBody[Account] = self._call(
                prepare(endpoints.LIST_ACCOUNTS, query=query), timeout, max_retries
            )
            return body

        return Page.first(fetch, cursor)

    def balance(
        self, account_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> Balance:
        """Read the live on-chain balance of an account (contract, "GET /v1/accounts/:id/balance").

        Args:
            account_id: the account, `acct_…`.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Raises:
            NotFoundError: no such account of this operator.
            ChainUnavailableError: the blockchain cannot be reached.
        """
        path = {"account_id": account_id}
        balance: Balance = self._call(prepare(endpoints.GET_BALANCE, path=path), timeout, max_retries)
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
    ) -> Page[Transaction]:
        """List the history of an account, newest first (contract, "GET /v1/accounts/:id/transactions").

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

        def fetch(cursor: str | None) -> PageBody[Transaction]:
            query = {"limit": limit, "cursor": cursor, "status": status, "since": since}
            path = {"account_id": account_id}
            body: PageBody[Transaction] = self._call(
                prepare(endpoints.LIST_TRANSACTIONS, path=path, query=query), timeout, max_retries
            )
            return body

        return Page.first(fetch, cursor)


class Policies(Resource):
    """Spending policies of accounts (contract, "Policy"). All need an operator key."""

    def get(
        self, account_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> AccountPolicy:
        """Read the policy of an account (contract, "GET /v1/accounts/:id/policy").

        Args:
            account_id: the account, `acct_…`.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Raises:
            NotFoundError: no such account of this operator.
            PermissionDeniedError: the key is agent-scoped.
        """
        path = {"account_id": account_id}
        policy: AccountPolicy = self._call(
            prepare(endpoints.GET_POLICY, path=path), timeout, max_retries
        )
        return policy

    def update(
        self,
        account_id: str,
        *,
        max_single_transfer: Limit | UnsetType = UNSET,
        max_daily_spend: Limit | UnsetType = UNSET,
        allowed_counterparties: Names | UnsetType = UNSET,
        categories: Names | UnsetType = UNSET,
        require_memo: bool | UnsetType = UNSET,
        escalation_threshold: Limit | UnsetType = UNSET,
        paused: bool | UnsetType = UNSET,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> AccountPolicy:
        """Change the given fields of a policy and keep the others (contract, "PUT /v1/accounts/:id/policy").

        The policy is read, changed, and written in full on the condition that nobody changed it meanwhile;
        else it is read again. So a concurrent change is never undone, and the outcome does not depend on
        whether the service takes a PUT for a replacement or for a partial update.

        Args:
            account_id: the account, `acct_…`.
            max_single_transfer: most USDC per transfer, 0 to 999999999.999999; None lifts the limit. An
                amount is a `Decimal`, an `int` or a string; floats are refused.
            max_daily_spend: most USDC in a rolling 24-hour window; None lifts the limit.
            allowed_counterparties: account ids or on-chain addresses that may be paid; None allows all, an
                empty list nobody.
            categories: spend categories that may be paid for; None allows all, an empty list none.
            require_memo: refuse transfers without a memo.
            escalation_threshold: USDC from which a transfer waits for approval; None is never.
            paused: block every outgoing transfer.
            timeout: seconds, for each request.
            max_retries: retries, for each request.

        Returns:
            The policy now in force. It holds from the next transfer on.

        Raises:
            TypeError: an amount is a float, or an allowlist is a single string.
            ValueError: an amount is negative, not finite, or has more than 6 decimals.
            InvalidRequestError: the service refuses a field; `details` names it.
            NotFoundError: no such account of this operator.
            PermissionDeniedError: the key is agent-scoped.
            PreconditionFailedError: others changed the policy 10 times in a row meanwhile.
        """
        change = policy_change(
            max_single_transfer=max_single_transfer,
            max_daily_spend=max_daily_spend,
            allowed_counterparties=allowed_counterparties,
            categories=categories,
            require_memo=require_memo,
            escalation_threshold=escalation_threshold,
            paused=paused,
        )
        return self._change(account_id, change, timeout, max_retries)

    def replace(
        self,
        account_id: str,
        *,
        max_single_transfer: Limit = None,
        max_daily_spend: Limit = None,
        allowed_counterparties: Names = None,
        categories: Names = None,
        require_memo: bool = False,
        escalation_threshold: Limit = None,
        paused: bool = False,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> AccountPolicy:
        """Set all seven fields of a policy, whatever it was before (contract, "PUT /v1/accounts/:id/policy").

        A field that is not given takes its default, which lifts the limit, **and resumes a paused account**.
        To keep the other fields, use `update`.

        Args:
            account_id: the account, `acct_…`.
            max_single_transfer: most USDC per transfer, 0 to 999999999.999999; None is no limit. An amount is
                a `Decimal`, an `int` or a string; floats are refused.
            max_daily_spend: most USDC in a rolling 24-hour window; None is no limit.
            allowed_counterparties: account ids or on-chain addresses that may be paid; None allows all, an
                empty list nobody.
            categories: spend categories that may be paid for; None allows all, an empty list none.
            require_memo: refuse transfers without a memo.
            escalation_threshold: USDC from which a transfer waits for approval; None is never.
            paused: block every outgoing transfer.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Returns:
            The policy now in force.

        Raises:
            TypeError: an amount is a float, or an allowlist is a single string.
            ValueError: an amount is negative, not finite, or has more than 6 decimals.
            InvalidRequestError: the service refuses a field; `details` names it.
            NotFoundError: no such account of this operator.
            PermissionDeniedError: the key is agent-scoped.
        """
        change = policy_change(
            max_single_transfer=max_single_transfer,
            max_daily_spend=max_daily_spend,
            allowed_counterparties=allowed_counterparties,
            categories=categories,
            require_memo=require_memo,
            escalation_threshold=escalation_threshold,
            paused=paused,
        )
        return self._put(account_id, change, None, timeout, max_retries)

    def pause(
        self, account_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> AccountPolicy:
        """Block every outgoing transfer of an account, and keep its limits. Raises as `update` does.

        Args:
            account_id: the account, `acct_…`.
            timeout: seconds, for each request.
            max_retries: retries, for each request.
        """
        return self._change(account_id, PolicyChange(paused=True), timeout, max_retries)

    def resume(
        self, account_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> AccountPolicy:
        """Allow transfers of an account again, within its limits. Raises as `update` does.

        Args:
            account_id: the account, `acct_…`.
            timeout: seconds, for each request.
            max_retries: retries, for each request.
        """
        return self._change(account_id, PolicyChange(paused=False), timeout, max_retries)

    def _change(
        self, account_id: str, change: PolicyChange, timeout: TimeoutOption, max_retries: RetriesOption
    ) -> AccountPolicy:
        left = POLICY_UPDATE_ATTEMPTS
        while True:
            left -= 1
            current, reply = self._exchange(
                prepare(endpoints.GET_POLICY, path={"account_id": account_id}), timeout, max_retries
            )
            whole = PolicyChange.to(change.applied_to(current))
            try:
                return self._put(account_id, whole, etag_of(reply), timeout, max_retries)
            except PreconditionFailedError:
                # Someone else's write, or our own whose answer was lost: either way the next read shows it.
                if not left:
                    raise

    def _put(
        self,
        account_id: str,
        change: PolicyChange,
        if_match: str | None,
        timeout: TimeoutOption,
        max_retries: RetriesOption,
    ) -> AccountPolicy:
        request = prepare(
            endpoints.PUT_POLICY, path={"account_id": account_id}, body=change, if_match=if_match
        )
        policy: AccountPolicy = self._call(request, timeout, max_retries)
        return policy


class Transfers(Resource):
    """Transfers of USDC out of accounts (contract, "Transfer")."""

    def __init__(self, exchange: Exchange, http: Http) -> None:
        super().__init__(exchange)
        self._http = http

    def create(
        self,
        *,
        from_: str,
        to: str,
        amount: Decimal | int | str,
        memo: str | None = None,
        category: str | None = None,
        idempotency_key: str | None = None,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> Transfer:
        """Move USDC out of an account (contract, "POST /v1/transfers").

        The call is sent again when it may, always under one idempotency key, so that money moves at most
        once. Whoever must survive a crash of the own process stores a key first and passes it.

        Args:
            from_: source account, `acct_…`.
            to: recipient: an `account_id`, or an on-chain USDC token account.
            amount: USDC, at least 0.000001, with at most 6 decimals: a `Decimal`, an `int` or a string such
                as `"25.50"`. Floats are refused.
            memo: at most 200 characters; needed where the policy says `require_memo`.
            category: spend category, 1 to 64 characters; needed where the policy has `categories`.
            idempotency_key: 1 to 128 characters; the same key never moves money twice within 24 hours. A
                random one by default, returned in the transfer.
            timeout: seconds, for each attempt.
            max_retries: retries, for this call.

        Returns:
            The transfer: `settled`, or `pending_approval` when the policy escalates it (see `wait`).

        Raises:
            TypeError: the amount is a float.
            ValueError: the amount is negative, not finite, or has more than 6 decimals.
            InvalidRequestError: the request is not valid; `details` names every fault.
            PolicyViolationError: the policy refuses it; the message names the limit.
            AccountPausedError: the account is paused.
            InsufficientBalanceError: the account holds too little.
            TransferFailedError: it provably did not land on chain.
            IdempotencyConflictError: the key was used with other parameters.
            InvalidRecipientError: `to` can hold no USDC.
            ChainUnavailableError: the blockchain cannot be reached; nothing was done.
            TransferOutcomeUnknownError: it may have been made. Call again with the idempotency key that the
                error carries, never with another.
        """
        key = str(uuid.uuid4()) if idempotency_key is None else idempotency_key
        body = CreateTransfer(
            from_=from_,
            to=to,
            amount=to_decimal(amount),
            idempotency_key=key,
            memo=memo,
            category=category,
        )
        request = prepare(endpoints.CREATE_TRANSFER, body=body, idempotency_key=key)
        try:
            transfer: Transfer = self._call(request, timeout, max_retries)
        except AgentPayError:
            raise
        except BaseException as error:
            # Cancelled or interrupted while the transfer may be under way: the key is all that is left of it.
            error.add_note(
                "The transfer may have been made. Do not pay again under a new key: call transfers.create "
                f"with the same parameters and idempotency_key={key!r} to resume it."
            )
            raise
        return transfer

    def get(
        self, transfer_id: str, *, timeout: TimeoutOption = UNSET, max_retries: RetriesOption = UNSET
    ) -> Transfer:
        """Read a transfer (contract, "GET /v1/transfers/:id").

        Args:
            transfer_id: the transfer, `txn_…`.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Raises:
            NotFoundError: no such transfer of this operator.
        """
        path = {"transfer_id": transfer_id}
        transfer: Transfer = self._call(
            prepare(endpoints.GET_TRANSFER, path=path), timeout, max_retries
        )
        return transfer

    def wait(self, transfer_id: str, *, timeout: float = 60.0, poll_interval: float = 0.5) -> Transfer:
        """Read a transfer until it is settled, rejected or failed.

        Args:
            transfer_id: the transfer, `txn_…`.
            timeout: seconds to wait in all, from 0 (one look); `math.inf` is without limit. A request that is
                under way is not cut short.
            poll_interval: seconds before the second look, above 0. Pauses grow by half each time, to 5 s.

        Returns:
            The transfer in its final state; look at its `status`.

        Raises:
            ValueError: `timeout` is below 0, or `poll_interval` not above 0.
            NotFoundError: no such transfer of this operator.
            WaitTimeoutError: it was not final in time. It may still be settled later.
        """
        if not (timeout >= 0 and poll_interval > 0):
            raise ValueError("timeout must be from 0 and poll_interval above 0 seconds")
        deadline = self._http.monotonic() + timeout
        pause = poll_interval
        while True:
            transfer = self.get(transfer_id)
            if transfer.is_final:
                return transfer
            left = deadline - self._http.monotonic()
            if left <= 0:
                raise WaitTimeoutError(transfer=transfer, timeout=timeout)
            self._http.sleep(min(pause, left))
            pause = max(pause, min(pause * 1.5, POLL_INTERVAL_CAP))


class Webhooks(Resource):
    """Endpoints of yours that events are posted to (contract, "Webhook")."""

    def create(
        self,
        *,
        url: str,
        events: Sequence[str],
        account_ids: Sequence[str] = (),
        low_balance_threshold_usdc: Limit = None,
        timeout: TimeoutOption = UNSET,
        max_retries: RetriesOption = UNSET,
    ) -> Webhook:
        """Register an endpoint for events (contract, "POST /v1/webhooks").

        Sent again only when the service certainly did not process it, since each call registers an endpoint.

        Args:
            url: where events are to be posted.
            events: names of the event types to receive, such as `transfer.settled`; at least one.
            account_ids: accounts to hear of; all of the operator by default.
            low_balance_threshold_usdc: balance in USDC below which `balance.low_threshold` fires; None is
                never. A `Decimal`, an `int` or a string; floats are refused.
            timeout: seconds, for this call.
            max_retries: retries, for this call.

        Returns:
            The webhook with its `secret`, which is shown now and never again: store it.

        Raises:
            TypeError: the threshold is a float, or a list is a single string.
            InvalidRequestError: the request is not valid; `details` names every fault.
        """
        body = CreateWebhook(
            url=url,
            events=names("events", events),
            account_ids=names("account_ids", account_ids),
            low_balance_threshold_usdc=None
            if low_balance_threshold_usdc is None
            else to_decimal(low_balance_threshold_usdc),
        )
        webhook: Webhook = self._call(
            prepare(endpoints.CREATE_WEBHOOK, body=body), timeout, max_retries
        )
        return webhook
