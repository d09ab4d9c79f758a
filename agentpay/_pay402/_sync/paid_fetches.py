# Generated from _async by scripts/unasync.py. Edit that one.
"""The tool `fetch_paid`: fetches a page, and pays its 402 at most once for each reference.

The service reads the challenge, decides and signs. The idempotency keys follow from the reference, so it has
one signed payment, which is presented again and never replaced while it may land. This module restricts where
a request may go, and what the model reads.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, Unpack

from attrs import evolve, frozen

from agentpay._sync.client import AgentPay
from agentpay._calls.options import CallOptions
from agentpay._http.clients import cookie_of
from agentpay._pay402 import fetching
from agentpay._pay402._sync.outcomes import BRIEFLY, report_outcome
from agentpay._pay402._sync.purchases import Purchases
from agentpay._pay402.challenges import NO_RESPONSE, receipt_in, sells_by_session, url_sent
from agentpay._pay402.fetching import (
    Fetcher,
    FetchedPage,
    FetchFailedError,
    FetchRefusedError,
    PageRequest,
)
from agentpay._pay402.messages import IDEMPOTENCY_KEY, identifier_of
from agentpay._pay402.timing import Locks
from agentpay._pay402.undelivered import is_news
from agentpay.contract.ext.payments import Payment, PaymentHeader, SessionStep, VoucherReport
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import format_string, to_decimal
from agentpay.errors import (
    AgentPayError,
    ChainUnavailableError,
    ConflictError,
    IdempotencyConflictError,
    NotFoundError,
    SessionCapExceededError,
    WaitTimeoutError,
)
from agentpay.tools import reports
from agentpay.tools.references import RecordedPurchase, is_alive, is_refused, is_rejected_by_person
from agentpay.tools.results import FetchResult, PaymentResult, PaymentStatus

P = TypeVar("P", bound=PaymentResult)

PAID_READ_SECONDS: Final = 30.0
"""Longest wait for the response to a paid request, in seconds: sellers settle before they respond."""

SETTLE_SECONDS: Final = 10.0
"""Longest wait for the end of a payment that was presented, in seconds."""

REDIRECTS_MAX: Final = 3
_OPENINGS_MAX: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PRESENTED: Final = frozenset({"payment-signature", "x-payment", "authorization", "payment-authorization"})
"""Header fields that may present a payment."""


@frozen(kw_only=True)
class Wanted:
    """Arguments of `fetch_paid` or `call_paid_tool`, checked only by their schema."""

    url: str
    max_usdc: str
    session_cap_usdc: str | None = None
    method: str = "GET"
    headers: Mapping[str, str] | None = None
    body: str | None = None
    tool: str | None = None
    arguments: Mapping[str, Any] = {}


class PaidFetches:
    """Fetches pages and pays for them by reference.

    Args:
        client: the client of the service.
        account_id: returns the account that pays.
        purchases: finds what is recorded under a reference.
        private_origins: origins that may be private, from the configuration of the tools.
    """

    def __init__(
        self,
        client: AgentPay,
        account_id: Callable[[], str],
        purchases: Purchases,
        private_origins: Iterable[str],
    ) -> None:
        self._client = client
        self._account_id = account_id
        self._purchases = purchases
        self._private_origins = frozenset(map(fetching.private_origin, private_origins))
        self._fetcher = Fetcher()
        self._locks = Locks()

    def fetch(self, ref: str, wanted: Wanted) -> FetchResult:
        """Return a page and the outcome of its payment.

        Raises:
            Exception: of any kind. The payment may have been presented.
        """
        purchase = self._purchases.find(ref)
        try:
            request = self._request(wanted)
        except FetchRefusedError as error:
            return self._not_fetched(ref, purchase, error)
        with self._fetcher_of(request, wanted) as fetcher:
            return self._fetched(ref, purchase, evolve(request, fetcher=fetcher), wanted)

    def _fetcher_of(self, request: PageRequest, wanted: Wanted) -> Any:  # noqa: ANN401 - one of two kinds
        if wanted.tool is None:
            return contextlib.nullcontext(self._fetcher)
        # With the SDK of MCP, which is an extra.
        from agentpay._pay402.tool_calls import ToolFetcher  # noqa: PLC0415

        return ToolFetcher(request.target, wanted.tool, wanted.arguments)

    def _fetched(
        self, ref: str, purchase: RecordedPurchase, request: PageRequest, wanted: Wanted
    ) -> FetchResult:
        try:
            request, page = self._unpaid(request)
        except (FetchRefusedError, FetchFailedError) as error:
            return self._not_fetched(ref, purchase, error)
        if page.status != 402:
            what = "URL" if wanted.tool is None else "tool"
            reason = f"The {what} responded {page.status} without asking for payment."
            return _with_page(_if_delivered(self._unpresented(ref, purchase, None, reason), page), page)
        if wanted.session_cap_usdc is not None and sells_by_session(page.headers):
            # One voucher of a session is in flight.
            with self._locks.of(request.target.origin):
                return self._paid(ref, purchase, request, page, wanted)
        return self._paid(ref, purchase, request, page, wanted)

    def _paid(
        self, ref: str, purchase: RecordedPurchase, request: PageRequest, page: FetchedPage, wanted: Wanted
    ) -> FetchResult:
        signed = self._signed(ref, purchase, request, page, wanted)
        if isinstance(signed, SessionStep):
            return self._paid_in_session(ref, purchase, request, page, wanted, step=signed)
        if isinstance(signed, Payment):
            return self._presented(ref, _presenting(request, page, signed), signed)
        return _with_page(signed, page)

    def _paid_in_session(
        self,
        ref: str,
        purchase: RecordedPurchase,
        request: PageRequest,
        page: FetchedPage,
        wanted: Wanted,
        *,
        step: SessionStep,
    ) -> FetchResult:
        """Present an opening if necessary, then a voucher once, and report both outcomes."""
        voucher, asked = step, page
        try:
            for _ in range(_OPENINGS_MAX):
                if voucher.step != "open":
                    break
                opened = self._opened(request, page, voucher)
                asked = opened if opened.status == 402 else asked
                signed = self._authorized(purchase.key, request, asked, wanted)
                assert isinstance(signed, SessionStep)  # noqa: S101 - the key is that of a session
                voucher = signed
        except (FetchRefusedError, FetchFailedError) as error:
            reason = f"The opening of a session was presented, and {error}. No request was paid."
            return _with_page(self._in_session(ref, step, "failed", reason), None)
        except (AgentPayError, ValueError) as error:
            return _with_page(self._not_signed(ref, purchase, error, request), page)
        if voucher.step == "open":
            reason = "The seller did not open the channel of its session. No request was paid."
            return _with_page(self._in_session(ref, voucher, "failed", reason), page)
        problem = self._problem(voucher, request, wanted.max_usdc)
        if problem is not None:
            return _with_page(self._in_session(ref, voucher, "rejected", problem), page)
        paid = self._delivered(_presenting(request, page, voucher))
        self._report_outcome(voucher, paid)
        if paid is not None and paid.is_success:
            return _with_page(self._in_session(ref, voucher, "charged", None), paid)
        told = "did not respond" if paid is None else f"responded {paid.status}"
        reason = f"The seller {told} to the voucher that was presented."
        return _with_page(self._in_session(ref, voucher, "paid_not_delivered", reason), paid)

    def _opened(self, request: PageRequest, page: FetchedPage, step: SessionStep) -> FetchedPage:
        # Sellers run their handler on it, so other requests than GET are sent only if a GET opens nothing.
        if request.method != "GET":
            bare = evolve(request, method="GET", headers={}, body=None)
            opened = _sent(_presenting(bare, page, step))
            if receipt_in(opened.headers) is not None:
                return opened
        return _sent(_presenting(request, page, step))

    def _delivered(self, presenting: PageRequest) -> FetchedPage | None:
        """Return the response to a voucher; None if none arrived."""
        try:
            page = _sent(presenting)
            # The voucher may have been refused because its first reply was lost: the same one, once more.
            return _sent(presenting) if page.status == 402 else page
        except (FetchRefusedError, FetchFailedError):
            return None

    def _report_outcome(
        self, paid: Payment | SessionStep, page: FetchedPage | None, **options: Unpack[CallOptions]
    ) -> None:
        """Report the seller's response to a payment or a voucher, or that none arrived."""
        report = VoucherReport(
            charge_id=identifier_of(paid),
            status_code=NO_RESPONSE if page is None else page.status,
            receipt=None if page is None else receipt_in(page.headers),
        )
        report_outcome(self._client, report, **options)

    def _in_session(
        self, ref: str, step: SessionStep, status: PaymentStatus, reason: str | None
    ) -> PaymentResult:
        paid = reports.in_session(step, ref, status, reason)
        return FetchResult.of(paid, session_id=step.session_id)

    def _request(self, wanted: Wanted) -> PageRequest:
        target = fetching.target_of(wanted.url, self._private_origins)
        if target.origin == fetching.origin_of(self._client.base_url):
            raise FetchRefusedError(
                f"{target.origin} is the payment service itself",
                "Use the other tools, such as pay and get_payment.",
            )
        return PageRequest(
            target=target,
            method=wanted.method,
            headers=fetching.checked_headers(wanted.headers),
            body=None if wanted.body is None else wanted.body.encode(),
            tool=wanted.tool,
        )

    def _unpaid(self, request: PageRequest) -> tuple[PageRequest, FetchedPage]:
        """Send a request without a payment; follow redirects within its origin."""
        for _ in range(REDIRECTS_MAX + 1):
            page = _sent(request)
            location = page.header("location")
            if page.status not in _REDIRECTS or location is None:
                return request, page
            target = request.target.redirected(location, self._private_origins)
            if request.method != "GET":
                raise FetchRefusedError(
                    f"the address has moved; {request.method} is not repeated there",
                    "Call with the new address if the user's task asks for it.",
                )
            request = evolve(request, target=target)
        raise FetchRefusedError(f"more than {REDIRECTS_MAX} redirects", "Tell the user. Do not pay for it.")

    def _signed(
        self, ref: str, purchase: RecordedPurchase, request: PageRequest, page: FetchedPage, wanted: Wanted
    ) -> Payment | SessionStep | PaymentResult:
        """Return the payment to present, or why there is none."""
        earlier = purchase.transfer
        if earlier is not None and is_rejected_by_person(earlier):
            return self._report(earlier, ref)
        if earlier is not None and self._is_of_another(earlier, request):
            return self._conflict(earlier, ref, request)
        try:
            payment = self._authorized(purchase.key, request, page, wanted)
        except (AgentPayError, ValueError) as error:
            return _if_delivered(self._not_signed(ref, purchase, error, request), page)
        if isinstance(payment, Payment) and payment.header is None:
            return self._report(self._client.transfers.get(payment.transfer_id), ref)
        problem = self._problem(payment, request, wanted.max_usdc)
        # With a problem, only this process has the signed bytes, and they expire: no money can move.
        return payment if problem is None else self._unpresented(ref, purchase, "rejected", problem)

    def _is_of_another(self, transfer: Transfer, request: PageRequest) -> bool:
        """Return whether a transfer is another purchase than a request, and the service would sign for both.

        It forgets the key of a transfer that was no payment, and compares only payments of the same key.
        """
        if not is_refused(transfer) and str(transfer.status) != "settled":
            return False
        try:
            payment = self._client.payments.get(transfer.transfer_id)
        except NotFoundError:
            return True  # not a payment behind 402, but one of `pay`
        # As far as the service knows: no query tells.
        is_equal = (payment.origin, payment.url) == (request.target.origin, url_sent(request.sold_at))
        return is_refused(transfer) and not is_equal

    def _authorized(
        self, key: str, request: PageRequest, page: FetchedPage, wanted: Wanted
    ) -> Payment | SessionStep:
        return self._client.payments.authorize(
            account_id=self._account_id(),
            idempotency_key=key,
            url=request.sold_at,
            method=request.method,
            headers=page.headers,
            body=None if page.is_truncated else page.body,
            max_amount=wanted.max_usdc,
            session_cap=wanted.session_cap_usdc,
        )

    def _problem(self, payment: Payment | SessionStep, request: PageRequest, max_usdc: str) -> str | None:
        """Return why a signed payment must not be presented; None if it may."""
        assert isinstance(payment.header, PaymentHeader)  # noqa: S101 - checked before
        if payment.amount_usdc > to_decimal(max_usdc):
            return f"the payment is {payment.amount_usdc} USDC, more than max_usdc"
        if payment.origin != request.target.origin:
            return f"the payment is for {payment.origin}"
        if payment.header.name.lower() not in _PRESENTED:
            return f"the payment would be presented in the header {payment.header.name}"
        return None

    def _presented(self, ref: str, request: PageRequest, payment: Payment) -> FetchResult:
        """Send the request with its payment once, and report both outcomes."""
        page, reason = None, None
        try:
            page = _sent(request)
        except (FetchRefusedError, FetchFailedError) as error:
            reason = f"The payment was presented, and {error}."
        if page is not None and page.status in _REDIRECTS:
            reason = f"The seller responded {page.status}: a redirect of the paid request is not followed."
        elif page is not None and not page.is_success:
            reason = f"The seller responded {page.status} to the payment that was presented."
        is_delivered = page is not None and page.is_success
        if is_news(payment, is_delivered=is_delivered, is_named=True):
            # A redirect that is not followed is no response that can be used.
            is_redirect = page is not None and page.status in _REDIRECTS
            self._report_outcome(payment, None if is_redirect else page, **BRIEFLY)
        result = _because(self._outcome(ref, payment), reason)
        return _with_page(_if_delivered(result, page), page)

    def _outcome(self, ref: str, payment: Payment) -> PaymentResult:
        """Return the result for a payment that was presented, even if the service cannot be read."""
        try:
            transfer = self._client.transfers.wait(payment.transfer_id, total_timeout=SETTLE_SECONDS)
        except AgentPayError as error:
            held = error.transfer if isinstance(error, WaitTimeoutError) else None
            if held is None:
                # An exception would lose the page, which may have been paid for.
                return reports.unrecorded(
                    ref,
                    "unknown",
                    reports.reason_of(error),
                    amount_usdc=format_string(payment.amount_usdc),
                    transfer_id=payment.transfer_id,
                )
            transfer = held
        return self._report(transfer, ref)

    def _not_signed(
        self, ref: str, purchase: RecordedPurchase, error: AgentPayError | ValueError, request: PageRequest
    ) -> PaymentResult:
        """Return the result of a 402 for which the service signed nothing new."""
        reason = reports.reason_of(error)
        if reports.is_unauthorized(error):
            return reports.unrecorded(ref, "unauthorized", reason)
        held = self._purchases.found_after(ref, purchase, error)
        if isinstance(error, IdempotencyConflictError):
            # Without a record, what the reference paid is unknown.
            status: PaymentStatus = "conflict" if reports.is_other_kind(error) else "unknown"
            return (
                reports.unrecorded(ref, status, reason)
                if held is None
                else self._conflict(held, ref, request)
            )
        is_alive_still = isinstance(held, SessionStep) or (held is not None and is_alive(held))
        is_over = isinstance(error, ConflictError) and not is_alive_still
        if held is not None:
            result = reports.because(self._report(held, ref), error)
            return evolve(result, **_USED_UP) if is_over else result
        if isinstance(error, ChainUnavailableError):
            return reports.unrecorded(ref, "failed", reason)
        if reports.is_refusal(error):
            advice = _USED_UP if is_over else reports.after_refusal(error)
            if isinstance(error, SessionCapExceededError):
                advice = _CAP_REACHED
            transfer_id = getattr(error, "transfer_id", None)
            refused = reports.unrecorded(ref, "rejected", reason, transfer_id=transfer_id, advice=advice)
            return FetchResult.of(refused, session_id=getattr(error, "session_id", None))
        return reports.unrecorded(ref, "unknown", reason)

    def _conflict(self, held: Transfer | SessionStep, ref: str, request: PageRequest) -> PaymentResult:
        return reports.conflict(self._report(held, ref), f"another purchase, from {request.target.origin}")

    def _not_fetched(
        self, ref: str, purchase: RecordedPurchase, error: FetchRefusedError | FetchFailedError
    ) -> FetchResult:
        reason = f"{error}. Nothing was paid by this call."
        status: PaymentStatus = "rejected" if isinstance(error, FetchRefusedError) else "failed"
        result = _if_delivered(self._unpresented(ref, purchase, status, reason), None)
        if isinstance(error, FetchRefusedError):
            advice = reports.again if error.may_retry else reports.no_retry
            result = evolve(result, **advice(error.next_step))
        return _with_page(result, None)

    def _unpresented(
        self,
        ref: str,
        purchase: RecordedPurchase,
        status: PaymentStatus | None,
        reason: str,
    ) -> PaymentResult:
        """Return the result of a call that presented no payment."""
        step = purchase.step
        made = step if step is not None and step.step == "voucher" else purchase.alive
        if made is not None:
            return _because(self._report(made, ref), reason)
        return reports.unrecorded(ref, status, reason)

    def _report(self, made: Transfer | SessionStep, ref: str) -> PaymentResult:
        result = reports.payment_of(made, ref, base_url=self._client.base_url)
        if isinstance(made, SessionStep):
            return FetchResult.of(result, session_id=made.session_id)
        return evolve(result, **_ADVICE.get(str(made.status), {}))


_ADVICE: Final[Mapping[str, reports.Advice]] = {
    "submitted": reports.again(
        "The payment may still settle. Call the same tool again with the same ref and arguments: it presents "
        "the same payment and never signs another one."
    ),
    "pending_approval": reports.again(
        "A person must approve it at approval_url. Tell the user; once it is approved, call the same tool "
        "again with the same ref and arguments. Do not pay it another way."
    ),
}
_USED_UP: Final = reports.no_retry(
    "Nothing was paid, and this ref is used up. If the task still asks for it, use a new ref."
)
_CAP_REACHED: Final = reports.again(
    "The session's cap is used up. Close it with close_session. If the task asks "
    "for more, then call the same tool again with the SAME ref and arguments: it opens another session."
)


def _sent(request: PageRequest) -> FetchedPage:
    page: FetchedPage = request.fetcher.fetch(request)
    return page


def _presenting(request: PageRequest, page: FetchedPage, paid: Payment | SessionStep) -> PageRequest:
    """Return the request with what pays it, and the cookies of its 402, which may hold its challenge."""
    assert paid.header is not None  # noqa: S101 - checked before
    headers = {**request.headers, paid.header.name: paid.header.value}
    if IDEMPOTENCY_KEY.lower() not in map(str.lower, headers):
        headers[IDEMPOTENCY_KEY] = identifier_of(paid)
    cookie = cookie_of(request.target.url, page.headers)
    if cookie is not None:
        headers["Cookie"] = cookie
    return evolve(request, headers=headers, read_seconds=PAID_READ_SECONDS)


def _if_delivered(result: P, page: FetchedPage | None) -> P:
    """Return the result with the status `paid_not_delivered` if the payment has settled without a page."""
    if result.status != "settled" or (page is not None and page.is_success):
        return result
    return evolve(result, **reports.UNDELIVERED)


def _because(result: P, reason: str | None) -> P:
    return evolve(result, reason=reason or result.reason)


def _with_page(result: PaymentResult, page: FetchedPage | None) -> FetchResult:
    return FetchResult.of(result, untrusted_content=None if page is None else reports.content_of(page))
