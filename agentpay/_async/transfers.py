"""Transfers as a resource: made under one idempotency key, read, waited for."""

import math
import uuid
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Literal, Unpack

from agentpay._arguments import usdc
from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._options import CallOptions
from agentpay._requests import PreparedRequest, prepare
from agentpay._retries import Sleep
from agentpay._waiting import looks
from agentpay.contract import endpoints, spending
from agentpay.contract.spending import CheckTransfer, TransferCheck
from agentpay.contract.transfers import CreateTransfer, Transfer, TransferStatus
from agentpay.errors import AgentPayError


class AsyncTransfers(AsyncResource):
    """Transfers of USDC out of accounts (interface T1 to T15)."""

    __module__ = "agentpay"

    async def create(
        self,
        *,
        from_: str,
        to: str,
        amount: Decimal | int | str,
        memo: str | None = None,
        category: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Transfer:
        """Move USDC out of an account (interface T1).

        The call is sent again when it may, always under one idempotency key, so that money moves at most
        once. Whoever must survive a crash of the own process stores a key first and passes it.

        Args:
            from_: source account, `acct_…`.
            to: recipient: an `account_id`, or an on-chain USDC token account.
            amount: USDC, at least 0.000001, with at most 6 decimals: a `Decimal`, an `int` or a string such
                as `"25.50"`. Floats are refused.
            memo: at most 200 characters; needed where the policy says `require_memo`.
            category: spend category, 1 to 64 characters; needed where the policy has `categories`.
            idempotency_key: 1 to 128 characters; the same key never moves money out of an account twice
                within 24 hours. A random one by default, returned in the transfer.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

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
            amount=usdc("amount", amount),
            idempotency_key=key,
            memo=memo,
            category=category,
        )
        request = prepare(endpoints.CREATE_TRANSFER, body=body, idempotency_key=key)
        transfer: Transfer = await self._call(request, options)
        return transfer

    async def get(self, transfer_id: str, **options: Unpack[CallOptions]) -> Transfer:
        """Read a transfer (interface T5).

        Args:
            transfer_id: the transfer, `txn_…`.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            NotFoundError: no such transfer of this operator.
        """
        path = {"transfer_id": transfer_id}
        transfer: Transfer = await self._call(prepare(endpoints.GET_TRANSFER, path=path), options)
        return transfer

    async def check(
        self,
        *,
        from_: str,
        to: str,
        amount: Decimal | int | str,
        memo: str | None = None,
        category: str | None = None,
        **options: Unpack[CallOptions],
    ) -> TransferCheck:
        """Ask what would become of a transfer, without making it (interface B4).

        An extension. Nothing is reserved: another transfer may come first.

        Args:
            from_: source account, `acct_…`.
            to: recipient: an `account_id`, or an on-chain USDC token account.
            amount: USDC, at least 0.000001, with at most 6 decimals. Floats are refused.
            memo: at most 200 characters; needed where the policy says `require_memo`.
            category: spend category, 1 to 64 characters; needed where the policy has `categories`.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            Whether it would settle, wait for an operator or be rejected, and why.

        Raises:
            TypeError: the amount is a float.
            ValueError: the amount is negative, not finite, or has more than 6 decimals.
            NotFoundError: no such account of this operator.
            InvalidRecipientError: `to` can hold no USDC.
            ChainUnavailableError: the blockchain cannot be reached.
            ExtensionNotOfferedError: the service has no such check.
        """
        body = CheckTransfer(from_=from_, to=to, amount=usdc("amount", amount), memo=memo, category=category)
        check: TransferCheck = await self._call(prepare(spending.CHECK_TRANSFER, body=body), options)
        return check

    def list(
        self,
        *,
        account_id: str | None = None,
        status: TransferStatus
        | Literal["pending_approval", "approved", "submitted", "settled", "rejected", "failed"]
        | None = None,
        idempotency_key: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[Transfer]:
        """List transfers of every status, newest first (interface B3).

        An extension. An agent-scoped key lists those of its account.

        Args:
            account_id: only transfers out of this account.
            status: only transfers that have come this far.
            idempotency_key: only transfers that were asked for under this key.
            since: only transfers that were asked for after this moment; with a UTC offset.
            limit: transfers per page, 1 to 100; 20 by default. Iterating goes through all pages.
            cursor: `cursor` of an earlier page, to go on from there.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            The first page. Iterating over it yields all transfers, fetching further pages as needed.

        Raises:
            ValueError: `since` has no UTC offset.
            ExtensionNotOfferedError: the service has no such list.
        """
        query = {
            "account_id": account_id,
            "status": status,
            "idempotency_key": idempotency_key,
            "since": since,
            "limit": limit,
            "cursor": cursor,
        }
        return self._pages(spending.LIST_TRANSFERS, options, query=query)

    async def wait(
        self,
        transfer_id: str,
        *,
        timeout: float | None = 60.0,  # noqa: ASYNC109 - what ends is the wait, not the task
        poll_interval: float = 0.5,
        extra_headers: Mapping[str, str] | None = None,
    ) -> Transfer:
        """Read a transfer until it is settled, rejected or failed.

        Whichever it is, it is returned: reading a refused transfer is no error, as it is in `get`. Failures
        that may pass (no answer, 408, 429, and every 5xx but 501) do not end the wait before its time is up.

        Args:
            transfer_id: the transfer, `txn_…`.
            timeout: seconds to wait in all, from 0 (one look); None is without limit. The last request may
                take up to 5 seconds more for each step of its exchange.
            poll_interval: longest pause before the second look, in seconds, above 0. It grows by half with
                each look, to 5 s; what is waited is drawn from half of it to all, and never less than the
                service asks for.
            extra_headers: header fields of each request, beside those of the client.

        Returns:
            The transfer in its final state; look at its `status`, and at `error` and `message` unless it is
            `settled`. A status that this version does not know is not final.

        Raises:
            ValueError: `timeout` is below 0, or `poll_interval` not above 0.
            NotFoundError: no such transfer of this operator.
            WaitTimeoutError: it was not seen final in time. It may still be settled later.
        """
        request = prepare(endpoints.GET_TRANSFER, path={"transfer_id": transfer_id})
        http = self._caller.http
        flow = looks(
            transfer_id,
            timeout=timeout,
            poll_interval=poll_interval,
            now=http.monotonic,
            random=http.random,
        )
        try:
            step = next(flow)
            while True:
                if isinstance(step, Sleep):
                    await http.sleep(step.seconds)
                    step = next(flow)
                else:
                    step = flow.send(await self._look(request, step.timeout, extra_headers or {}))
        except StopIteration as done:
            transfer: Transfer = done.value
            return transfer

    async def _look(
        self, request: PreparedRequest, seconds: float, headers: Mapping[str, str]
    ) -> Transfer | AgentPayError:
        usual = self._caller.settings.timeout
        seconds = seconds if usual is None else min(seconds, usual)
        # Once: the wait has its own pauses, and those of the retries would add to them.
        options: CallOptions = {
            "timeout": None if seconds == math.inf else seconds,
            "max_retries": 0,
            "extra_headers": headers,
        }
        try:
            transfer: Transfer = await self._call(request, options)
        except AgentPayError as error:
            return error
        return transfer
