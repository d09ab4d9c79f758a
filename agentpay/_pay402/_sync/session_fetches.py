# Generated from _async by scripts/unasync.py. Edit that one.
"""Pays for pages of sellers that sell by session: opens a channel if there is none, presents one voucher.

The tool `fetch_paid` uses it. The caller holds the seller's lock, because the next voucher of a session is
signed only once the outcome of this one is reported.
"""

from collections.abc import Callable
from typing import Final

from attrs import evolve

from agentpay._sync.client import AgentPay
from agentpay._calls.settings import logger
from agentpay._http.clients import cookie_of
from agentpay._pay402.challenges import NO_RESPONSE, RECEIPT_FIELDS, RECEIPT_MAX_CHARACTERS
from agentpay._pay402.fetching import (
    Fetcher,
    FetchedPage,
    FetchFailedError,
    FetchRefusedError,
    PageRequest,
)
from agentpay.contract.ext.payments import SessionStep
from agentpay.errors import AgentPayError

OPENINGS_MAX: Final = 3
PRESENTED_MAX: Final = 2


class SessionFetches:
    """Presents openings and vouchers.

    Args:
        client: the client of the service.
        fetcher: fetches pages.
        read_seconds: longest wait for the response to an opening or a voucher.
    """

    def __init__(self, client: AgentPay, fetcher: Fetcher, read_seconds: float) -> None:
        self._client = client
        self._fetcher = fetcher
        self._read_seconds = read_seconds

    def opened(
        self,
        request: PageRequest,
        page: FetchedPage,
        step: SessionStep,
        authorize: Callable[[FetchedPage], SessionStep],
    ) -> SessionStep:
        """Open the channel if necessary, and return the voucher of a request, or the opening if that failed.

        Args:
            request: the request that was not paid.
            page: its 402.
            step: what the service signed for it.
            authorize: asks the service again, for a 402.

        Raises:
            AgentPayError: the service signed nothing more.
            FetchFailedError: the seller did not respond to the opening.
        """
        for _ in range(OPENINGS_MAX):
            if step.step != "open":
                break
            response = self._present_opening(request, page, step)
            page = response if response.status == 402 else page
            step = authorize(page)
        return step

    def paid(self, request: PageRequest, page: FetchedPage, step: SessionStep) -> FetchedPage | None:
        """Present a voucher, report its outcome, and return the response; None if none arrived."""
        response: FetchedPage | None = None
        for _ in range(PRESENTED_MAX):
            try:
                response = self._fetcher.fetch(self._presenting(request, page, step))
            except (FetchRefusedError, FetchFailedError):
                response = None
                break
            if response.status != 402:
                break
            # The voucher may have been refused because its first reply was lost: the same one, once more.
        assert step.charge_id is not None  # noqa: S101 - a voucher has it
        self.report(step.charge_id, response)
        return response

    def report(self, paid_by: str, response: FetchedPage | None) -> None:
        """Report the seller's response to a payment or a voucher, or that none arrived."""
        status = NO_RESPONSE if response is None else response.status
        receipt = None if response is None else _receipt_of(response)
        try:
            self._client.payments.report_outcome(paid_by, status_code=status, receipt=receipt)
        except AgentPayError as error:
            logger.warning("the outcome of %s was not reported: %s", paid_by, error)

    def _present_opening(
        self, request: PageRequest, page: FetchedPage, step: SessionStep
    ) -> FetchedPage:
        # Sellers run their handler on it, so other requests than GET are sent only if a GET opens nothing.
        if request.method != "GET":
            probe = PageRequest(target=request.target)
            opened = self._fetcher.fetch(self._presenting(probe, page, step))
            if _receipt_of(opened) is not None:
                return opened
        return self._fetcher.fetch(self._presenting(request, page, step))

    def _presenting(self, request: PageRequest, page: FetchedPage, step: SessionStep) -> PageRequest:
        assert step.header is not None  # noqa: S101 - checked before
        headers = {**request.headers, step.header.name: step.header.value}
        cookie = cookie_of(request.target.url, page.headers)
        if cookie is not None:
            headers["Cookie"] = cookie
        return evolve(request, headers=headers, read_seconds=self._read_seconds)


def _receipt_of(page: FetchedPage) -> str | None:
    found = next((value for name, value in page.headers if name in RECEIPT_FIELDS), None)
    return None if found is None else found[:RECEIPT_MAX_CHARACTERS]
