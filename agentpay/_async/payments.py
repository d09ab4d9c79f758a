"""The payments resource for HTTP 402, an extension: authorize, read, list and report payments.

`agentpay.payments.PaymentAuth` is built on it, for callers whose HTTP library is httpx.
"""

from datetime import datetime
from decimal import Decimal
from typing import Unpack, overload

import attrs

from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._calls.options import CallOptions
from agentpay._pay402.challenges import Pairs, challenge_of
from agentpay.contract.choices import PaymentFilter
from agentpay.contract.ext import payments
from agentpay.contract.ext.payments import Payment, SessionStep, VoucherReport


class AsyncPayments(AsyncResource):
    """Pays for responses with HTTP 402."""

    __module__ = "agentpay.resources"

    @overload
    async def authorize(
        self,
        response: object = None,
        *,
        account_id: str,
        idempotency_key: str,
        origin: str | None = None,
        url: object = None,
        method: str | None = None,
        headers: Pairs | None = None,
        body: bytes | str | None = None,
        max_amount: Decimal | int | str | None = None,
        session_cap: None = None,
        memo: str | None = None,
        previous: VoucherReport | None = None,
        **options: Unpack[CallOptions],
    ) -> Payment: ...

    @overload
    async def authorize(
        self,
        response: object = None,
        *,
        account_id: str,
        idempotency_key: str,
        origin: str | None = None,
        url: object = None,
        method: str | None = None,
        headers: Pairs | None = None,
        body: bytes | str | None = None,
        max_amount: Decimal | int | str | None = None,
        session_cap: Decimal | int | str | None,
        memo: str | None = None,
        previous: VoucherReport | None = None,
        **options: Unpack[CallOptions],
    ) -> Payment | SessionStep: ...

    async def authorize(
        self,
        response: object = None,
        *,
        account_id: str,
        idempotency_key: str,
        origin: str | None = None,
        url: object = None,
        method: str | None = None,
        headers: Pairs | None = None,
        body: bytes | str | None = None,
        max_amount: Decimal | int | str | None = None,
        session_cap: Decimal | int | str | None = None,
        memo: str | None = None,
        previous: VoucherReport | None = None,
        **options: Unpack[CallOptions],
    ) -> Payment | SessionStep:
        """Sign the payment for a 402, and return the header that presents it to the seller.

        Nothing moves before you send `payment.header` to the seller, with the paid request. Do not follow
        redirects with it. With httpx, `agentpay.payments.PaymentAuth` does all of this.

        Args:
            response: the 402, of httpx, requests or a similar library, its body read. Without it, pass
                `headers`, and `origin` or `url`.
            account_id: the account that pays, `acct_…`.
            idempotency_key: 1 to 128 characters. It names the purchase, not the attempt: the same key never
                signs a second payment, and presents the first one again. A refusal or a failure, which paid
                nothing, releases it after 24 hours.
            origin: the seller: scheme, host and port, such as `https://api.example.com`; by default that of
                `url`.
            url: the URL that returned 402. Its query is not sent to the service.
            method: the HTTP method of the request.
            headers: of the response, as a mapping or as pairs. Only challenges are sent to the service.
            body: of the response; x402 version 1 has its challenge there.
            max_amount: the maximum USDC to pay; by default only the policy decides. Floats are refused.
            session_cap: USDC to lock in a channel if the seller sells by session; without it, sessions are
                not payable.
            memo: at most 200 characters; it stays off chain.
            previous: the seller's response to an earlier voucher, reported with this request, as
                `report_outcome` does.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The payment. Its `header` is None while it is pending approval (`pending_approval`): call again
            with the same key and a fresh 402 once it is approved. With `session_cap`, and a seller that sells
            by session, a `SessionStep`: present its header; after the step `open`, call again with the same
            key and a fresh 402, and after a `voucher`, report its outcome.

        Raises:
            TypeError: neither a response nor its parts were passed.
            ValueError: the response is not a 402, or its challenge is too large.
            InvalidRequestError: an argument is invalid, such as a `max_amount` with more than 6 decimals.
            UnpayableChallengeError: the challenge cannot be read, or offers nothing payable at this price.
            PolicyViolationError: the policy, or the pin of the seller, refuses it.
            AccountPausedError: the account is paused.
            InsufficientBalanceError: the account holds too little.
            IdempotencyConflictError: the key was used for another purchase.
            ConflictError: the payment of this key has expired or failed (`payment_expired`,
                `payment_failed`): nothing moved, and a new purchase takes a new key.
            OutcomeUnknownError: it may have been signed, and nothing was presented. Call again with
                the same key.
        """
        arguments = locals()
        challenge = challenge_of(response, origin=origin, url=url, method=method, headers=headers, body=body)
        arguments = {**arguments, **attrs.asdict(challenge, recurse=False)}
        return await self._call(payments.AUTHORIZE_PAYMENT, arguments, options)

    async def get(self, transfer_id: str, **options: Unpack[CallOptions]) -> Payment:
        """Read a payment. Its `header` is None: only `authorize` hands it out.

        Args:
            transfer_id: the payment, `txn_…`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such payment of this operator.
        """
        return await self._call(payments.GET_PAYMENT, locals(), options)

    @overload
    def list(
        self,
        *,
        account_id: str | None = None,
        status: PaymentFilter | None = None,
        origin: str | None = None,
        transfer_id: str | None = None,
        idempotency_key: None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[Payment]: ...

    @overload
    def list(
        self,
        *,
        account_id: str | None = None,
        status: PaymentFilter | None = None,
        origin: str | None = None,
        transfer_id: str | None = None,
        idempotency_key: str,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[Payment | SessionStep]: ...

    def list(
        self,
        *,
        account_id: str | None = None,
        status: PaymentFilter | None = None,
        origin: str | None = None,
        transfer_id: str | None = None,
        idempotency_key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[Payment] | AsyncPages[Payment | SessionStep]:
        """List payments of every status, newest first. An agent-scoped key lists those of its account.

        Args:
            account_id: only payments out of this account.
            status: only payments with this status. `undelivered`: only settled ones whose client has reported
                that the seller did not deliver.
            origin: only payments to this seller, such as `https://api.example.com`.
            transfer_id: only the payment of this transfer, `txn_…`; none if the transfer is not a payment.
            idempotency_key: only what was requested under this key. The list then also has what the key paid
                within sessions, each as a `SessionStep` without a header: vouchers, then openings (their
                `amount_usdc` is 0), then payments.
            since: only payments requested after this time; with a UTC offset.
            until: only payments requested up to and including this time; with a UTC offset.
            limit: payments per page, 1 to 100; 20 by default. Iterating reads all pages.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            InvalidRequestError: `since` has no UTC offset.
        """
        return self._pages(payments.LIST_PAYMENTS, locals(), options)

    async def report_outcome(
        self,
        transfer_id: str,
        *,
        status_code: int,
        receipt: str | None = None,
        duration_ms: int | None = None,
        **options: Unpack[CallOptions],
    ) -> Payment | SessionStep:
        """Report the seller's response to a payment, for the operator's records.

        It is stored as your claim and decides nothing: the outcome is read from the chain. A later report
        replaces an earlier one, but a failure replaces no delivery.

        Args:
            transfer_id: the payment, `txn_…`, or a voucher of a session, `chg_…`.
            status_code: HTTP status of the seller's response.
            receipt: the receipt header of the response, as it came.
            duration_ms: how long the paid request took, in milliseconds.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such payment of this operator.
        """
        return await self._call(payments.REPORT_OUTCOME, locals(), options)
