"""Payments behind HTTP 402 as a resource, an extension: authorized, read, listed, and reported about."""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Literal, Unpack

from agentpay._arguments import usdc
from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._options import CallOptions
from agentpay._requests import prepare
from agentpay.contract import payments
from agentpay.contract.payments import AuthorizePayment, Payment, ReportOutcome
from agentpay.contract.transfers import TransferStatus


class AsyncPayments(AsyncResource):
    """Payments behind HTTP 402: the service signs, and the seller broadcasts.

    Every method works with an operator key, and with an agent-scoped key of the account that pays. Every
    method raises the exceptions of `agentpay.errors`.
    """

    async def authorize(
        self,
        *,
        account_id: str,
        idempotency_key: str,
        origin: str,
        headers: Iterable[tuple[str, str]],
        body: str | None = None,
        url: str | None = None,
        method: str | None = None,
        max_amount: Decimal | int | str | None = None,
        memo: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Payment:
        """Have a 402 paid: get the header that presents the payment to its seller.

        The same key with equal terms returns the same signed transaction, wrapped for the challenge at hand.

        Args:
            account_id: the account that pays, `acct_…`.
            idempotency_key: 1 to 128 characters. One purchase has one key, however often it is tried.
            origin: the seller that answered 402, such as `https://api.example.com`.
            headers: name and value of each header of the 402; those with its challenges suffice.
            body: body of the 402; only x402 version 1 has its challenge there.
            url: what was asked for.
            method: HTTP method of the request that was answered with 402.
            max_amount: the most USDC to pay, with at most 6 decimals; the policy alone decides if None.
                Floats are refused.
            memo: max 200 characters; stays off chain.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            The payment: `submitted` or `settled` with its `header`, or `pending_approval` without one.

        Raises:
            TypeError: the amount is a float.
            ValueError: the amount is negative, not finite, or has more than 6 decimals.
            NotFoundError: no such account of this operator.
            UnpayableChallengeError: the challenge cannot be read, or offers nothing that can be paid.
            PolicyViolationError: the policy or the pin of the origin refuses it; the message names which.
            AccountPausedError: the account is paused.
            InsufficientBalanceError: the account holds too little.
            IdempotencyConflictError: the key stands for other terms, or for a transfer.
            ConflictError: the payment of the key has expired or failed; a new purchase takes a new key.
            InvalidRecipientError: a recipient has no USDC token account.
            ChainUnavailableError: the blockchain cannot be reached; nothing was done.
        """
        asked = AuthorizePayment(
            account_id=account_id,
            idempotency_key=idempotency_key,
            origin=origin,
            headers=tuple((name, value) for name, value in headers),
            body=body,
            url=url,
            method=method,
            max_amount=None if max_amount is None else usdc("max_amount", max_amount),
            memo=memo,
        )
        request = prepare(payments.AUTHORIZE_PAYMENT, body=asked)
        payment: Payment = await self._call(request, options)
        return payment

    async def get(self, transfer_id: str, **options: Unpack[CallOptions]) -> Payment:
        """Read a payment, as the chain has it by now.

        Args:
            transfer_id: the payment, `txn_…`.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Raises:
            NotFoundError: no such payment of this operator.
        """
        request = prepare(payments.GET_PAYMENT, path={"transfer_id": transfer_id})
        payment: Payment = await self._call(request, options)
        return payment

    def list(
        self,
        *,
        account_id: str | None = None,
        status: TransferStatus
        | Literal["pending_approval", "approved", "submitted", "settled", "rejected", "failed"]
        | None = None,
        origin: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[Payment]:
        """List payments, newest first. An agent-scoped key lists those of its account.

        Args:
            account_id: only those that this account pays.
            status: only those that have come this far.
            origin: only those to this seller.
            since: only those that were asked for after this moment, which has a time zone.
            limit: payments per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            The first page. Iterating over it yields all payments, fetching further pages as needed.
        """
        query = {
            "account_id": account_id,
            "status": status,
            "origin": origin,
            "since": since,
            "limit": limit,
            "cursor": cursor,
        }
        return self._pages(payments.LIST_PAYMENTS, options, query=query)

    async def report_outcome(
        self,
        transfer_id: str,
        *,
        status_code: int,
        receipt: str | None = None,
        duration_ms: int | None = None,
        **options: Unpack[CallOptions],
    ) -> Payment:
        """Report what the seller answered to a payment: a claim, which decides nothing.

        Args:
            transfer_id: the payment, `txn_…`.
            status_code: HTTP status of the seller's response.
            receipt: the receipt header of the response, as it came.
            duration_ms: how long the paid request took, in milliseconds.
            **options: `timeout`, `max_retries`, `deadline`, `extra_headers`: see `CallOptions`.

        Returns:
            The payment.

        Raises:
            NotFoundError: no such payment of this operator.
        """
        body = ReportOutcome(status_code=status_code, receipt=receipt, duration_ms=duration_ms)
        request = prepare(payments.REPORT_OUTCOME, path={"transfer_id": transfer_id}, body=body)
        payment: Payment = await self._call(request, options)
        return payment
