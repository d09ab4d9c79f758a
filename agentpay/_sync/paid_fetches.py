# Generated from _async by scripts/unasync.py. Edit that one.
"""The tool `fetch_paid`: fetches a page, and pays its 402 at most once for each reference.

The service reads the challenge, decides and signs. A reference is the idempotency key, so it has one signed
payment, which is presented again and never replaced while it may land. This module restricts where a request
may go, and what the model reads.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

from attrs import frozen

from agentpay import _fetching
from agentpay._sync.client import AgentPay
from agentpay._fetching import Fetcher, FetchFailedError, FetchRefusedError, Page, Request
from agentpay.contract.payments import Payment
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import format_string, to_decimal
from agentpay.errors import (
    AgentPayError,
    ChainUnavailableError,
    ConflictError,
    IdempotencyConflictError,
    OutcomeUnknownError,
    WaitTimeoutError,
)
from agentpay.tools import reports
from agentpay.tools.content import content_of
from agentpay.tools.reports import idempotency_key
from agentpay.tools.results import FetchResult, PaymentResult, PaymentStatus

PAID_READ_SECONDS: Final = 30.0
"""Longest wait for the response to a paid request, in seconds: sellers settle before they respond."""

SETTLE_SECONDS: Final = 10.0
"""Longest wait for the end of a payment that was presented, in seconds."""

REDIRECTS_MAX: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PRESENTED: Final = frozenset({"payment-signature", "x-payment", "authorization", "payment-authorization"})
"""Header fields that may present a payment."""


@frozen(kw_only=True)
class Wanted:
    """Arguments of `fetch_paid`, checked only by their schema."""

    url: str
    max_usdc: str
    method: str = "GET"
    headers: Mapping[str, str] | None = None
    body: str | None = None


Found = Callable[[str], Transfer | None]


class PaidFetches:
    """Fetches pages and pays for them by reference.

    Args:
        client: the client of the service.
        account_id: returns the account that pays.
        found: returns the transfer of a reference.
        private_origins: origins that may be private, from the configuration of the tools.
    """

    def __init__(
        self,
        client: AgentPay,
        account_id: Callable[[], str],
        found: Found,
        private_origins: Iterable[str],
    ) -> None:
        self._client = client
        self._account_id = account_id
        self._found = found
        self._private_origins = frozenset(map(_fetching.private_origin, private_origins))
        self._fetcher = Fetcher()

    def fetch(self, ref: str, wanted: Wanted) -> FetchResult:
        """Return a page and the outcome of its payment.

        Raises:
            Exception: of any kind. The payment may have been presented.
        """
        earlier = self._found(ref)
        try:
            request, page = self._unpaid(self._request(wanted))
        except (FetchRefusedError, FetchFailedError) as error:
            status: PaymentStatus = "rejected" if isinstance(error, FetchRefusedError) else "failed"
            return self._unfetched(ref, earlier, status, f"{error}. Nothing was paid by this call.")
        if page.status != 402:
            reason = f"The URL responded {page.status} without asking for payment."
            return self._unfetched(ref, earlier, None, reason, page)
        try:
            payment = self._authorized(ref, request, page, wanted.max_usdc)
        except (AgentPayError, ValueError) as error:
            return _with_page(self._not_signed(ref, earlier, error, wanted.max_usdc), page)
        if payment.header is None:
            return _with_page(self._pending(ref, payment), page)
        problem = self._problem(payment, request, earlier, wanted.max_usdc)
        if problem is None:
            return self._presented(ref, request, payment)
        # Only this process has the signed bytes, and they expire: no money can move.
        return self._unfetched(ref, earlier, "rejected", problem, page)

    def _request(self, wanted: Wanted) -> Request:
        target = _fetching.target_of(wanted.url, self._private_origins)
        if target.origin == _fetching.origin_of(self._client.base_url):
            raise FetchRefusedError(f"{target.origin} is the payment service itself; use the other tools")
        return Request(
            target=target,
            method=wanted.method,
            headers=_fetching.checked_headers(wanted.headers),
            body=None if wanted.body is None else wanted.body.encode(),
        )

    def _unpaid(self, request: Request) -> tuple[Request, Page]:
        """Send a request without a payment; follow redirects within its origin."""
        for _ in range(REDIRECTS_MAX + 1):
            page = self._fetcher.fetch(request)
            location = page.header("location")
            if page.status not in _REDIRECTS or location is None:
                return request, page
            target = request.target.redirected(location, self._private_origins)
            if request.method != "GET":
                raise FetchRefusedError(f"the address has moved; {request.method} is not repeated there")
            request = request.at(target)
        raise FetchRefusedError(f"more than {REDIRECTS_MAX} redirects")

    def _authorized(self, ref: str, request: Request, page: Page, max_usdc: str) -> Payment:
        return self._client.payments.authorize(
            account_id=self._account_id(),
            idempotency_key=idempotency_key(ref),
            url=request.target.url,
            method=request.method,
            headers=page.headers,
            body=None if page.is_truncated else page.body,
            max_amount=max_usdc,
        )

    def _problem(
        self, payment: Payment, request: Request, earlier: Transfer | None, max_usdc: str
    ) -> str | None:
        """Return why a signed payment must not be presented; None if it may."""
        assert payment.header is not None  # noqa: S101 - checked before
        if payment.amount_usdc > to_decimal(max_usdc):
            return f"the payment is {payment.amount_usdc} USDC, more than max_usdc"
        if payment.origin != request.target.origin:
            return f"the payment is for {payment.origin}"
        if payment.header.name.lower() not in _PRESENTED:
            return f"the payment would be presented in the header {payment.header.name}"
        is_paid = earlier is not None and str(earlier.status) == "settled"
        if earlier is not None and is_paid and payment.transfer_id != earlier.transfer_id:
            # The service forgets a key 24 hours after its payment has settled, but the purchase stays paid.
            return "this payment_ref was paid before, and is not paid again"
        return None

    def _presented(self, ref: str, request: Request, payment: Payment) -> FetchResult:
        """Send the request with its payment once, and report both outcomes."""
        assert payment.header is not None  # noqa: S101 - checked before
        paid = Request(
            target=request.target,
            method=request.method,
            headers={**request.headers, payment.header.name: payment.header.value},
            body=request.body,
            read_seconds=PAID_READ_SECONDS,
        )
        page, reason = None, None
        try:
            page = self._fetcher.fetch(paid)
        except (FetchRefusedError, FetchFailedError) as error:
            reason = f"The payment was presented, and {error}."
        if page is not None and page.status == 402:
            reason = "The seller responded 402 to the payment that was presented."
        elif page is not None and page.status in _REDIRECTS:
            reason = "The seller redirects the paid request, which is not followed."
        return _with_page(_because(self._outcome(ref, payment), reason), page)

    def _outcome(self, ref: str, payment: Payment) -> PaymentResult:
        """Return the result for a payment that was presented, even if the service cannot be read."""
        try:
            transfer = self._client.transfers.wait(payment.transfer_id, timeout=SETTLE_SECONDS)
        except AgentPayError as error:
            held = error.transfer if isinstance(error, WaitTimeoutError) else None
            if held is None:
                # An exception would lose the page, which may have been paid for.
                unknown = self._known(ref, "unknown", reports.reason_of(error))
                amount = format_string(payment.amount_usdc)
                known = {"transfer_id": payment.transfer_id, "amount_usdc": amount}
                return cast("PaymentResult", {**unknown, **known})
            transfer = held
        return self._report(transfer, ref)

    def _pending(self, ref: str, payment: Payment) -> PaymentResult:
        return self._report(self._client.transfers.get(payment.transfer_id), ref)

    def _not_signed(
        self, ref: str, earlier: Transfer | None, error: AgentPayError | ValueError, max_usdc: str
    ) -> PaymentResult:
        """Return the result of a 402 for which the service signed nothing new."""
        reason = reports.reason_of(error)
        if isinstance(error, ConflictError | OutcomeUnknownError):
            held = self._found(ref)
        else:
            is_over = earlier is not None and str(earlier.status) in ("rejected", "failed")
            held = None if is_over else earlier
        if held is not None:
            result = self._report(held, ref)
            if isinstance(error, IdempotencyConflictError):
                return reports.other_use(result, to="this seller", amount_usdc=max_usdc)
            used_up = _USED_UP if isinstance(error, ConflictError) else {}
            return cast("PaymentResult", {**result, "reason": reason, **used_up})
        if isinstance(error, ChainUnavailableError):
            return self._known(ref, "failed", reason)
        if reports.is_refusal(error):
            known = {"transfer_id": getattr(error, "transfer_id", None), **reports.refusal(error)}
            return cast("PaymentResult", {**self._known(ref, "rejected", reason), **known})
        return self._known(ref, "unknown", reason)

    def _unfetched(
        self,
        ref: str,
        earlier: Transfer | None,
        status: PaymentStatus | None,
        reason: str,
        page: Page | None = None,
    ) -> FetchResult:
        """Return the result of a call that presented no payment."""
        if earlier is not None:
            return _with_page(_because(self._report(earlier, ref), reason), page)
        return _with_page(self._known(ref, status, reason), page)

    def _known(self, ref: str, status: PaymentStatus | None, reason: str) -> PaymentResult:
        return reports.payment_without_transfer(ref, status, to=None, amount_usdc=None, reason=reason)

    def _report(self, transfer: Transfer, ref: str) -> PaymentResult:
        result = reports.payment_of(transfer, ref, base_url=self._client.base_url)
        if result["status"] == "submitted":
            result = cast("PaymentResult", {**result, "next_step": _AGAIN})
        return result


_AGAIN: Final = (
    "The payment may still settle. Call fetch_paid again with the same ref and arguments: it presents the "
    "same payment and never signs another one."
)
_USED_UP: Final = {
    "may_retry_with_same_ref": False,
    "next_step": "Nothing was paid, and this ref is used up. If the task still asks for it, use a new ref.",
}


def _because(result: PaymentResult, reason: str | None) -> PaymentResult:
    return cast("PaymentResult", {**result, "reason": reason or result["reason"]})


def _with_page(result: PaymentResult, page: Page | None) -> FetchResult:
    content = None if page is None else content_of(page)
    return cast("FetchResult", {**result, "untrusted_content": content})
