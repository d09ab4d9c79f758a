"""Reports the seller's response to a payment or a voucher.

Within `with PaymentAuth(…)`, the report on a voucher waits for the next request to the service, which takes
it along. Without one within a second, an additional request sends it. Until then, no other process gets a
voucher of the session.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, Unpack

import attrs

from agentpay._async.client import AsyncAgentPay
from agentpay._calls.options import CallOptions
from agentpay._calls.settings import logger
from agentpay._pay402.timing import AsyncLocks, AsyncTimer
from agentpay.contract.ext.payments import VoucherReport
from agentpay.errors import AgentPayError

BRIEFLY: Final[CallOptions] = {"max_retries": 0, "total_timeout": 2.0}
"""For reports that a caller waits for, who may have a result already."""


async def report_outcome(
    client: AsyncAgentPay, report: VoucherReport, **options: Unpack[CallOptions]
) -> None:
    """Report a response to a payment or a voucher; a failure is logged."""
    outcome = attrs.asdict(report)
    try:
        await client.payments.report_outcome(outcome.pop("charge_id"), **outcome, **options)
    except AgentPayError as error:
        logger.warning("the outcome of payment %s was not reported: %s", report.charge_id, error)


class AsyncLateReports:
    """The newest report for each seller, changed only under the seller's lock."""

    def __init__(self, client: AsyncAgentPay, locks: AsyncLocks) -> None:
        self._client = client
        self._locks = locks
        self._reports: dict[str, VoucherReport] = {}
        self._timers: dict[str, AsyncTimer] = {}

    def keep(self, origin: str, report: VoucherReport) -> None:
        """Keep a report for the next request."""
        self._reports[origin] = report
        if origin not in self._timers:
            self._timers[origin] = AsyncTimer(partial(self._send, origin))

    @contextlib.contextmanager
    def taken(self, origin: str) -> Iterator[dict[str, Any]]:
        """Yield the arguments of `payments.authorize` that send a report; keep it if that fails."""
        report = self._reports.pop(origin, None)
        try:
            yield {} if report is None else {"previous": report}
        except BaseException:
            if report is not None:
                self.keep(origin, report)
            raise

    async def close(self) -> None:
        """Send every report now, and none later."""
        while self._timers:
            self._timers.popitem()[1].cancel()
        for origin in list(self._reports):
            await self._send(origin)

    async def _send(self, origin: str) -> None:
        async with self._locks.of(origin):
            self._timers.pop(origin, None)
            report = self._reports.pop(origin, None)
            try:
                if report is not None:
                    await report_outcome(self._client, report)
            except Exception as error:  # noqa: BLE001 - of a client that is closed by now
                logger.info("a late report of a voucher was not sent: %s", error)
