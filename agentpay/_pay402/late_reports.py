"""Outcomes of vouchers that wait for the next request to the service, so that they cost none of their own.

A report that no request takes along within a second is sent by itself: until then, no other process gets a
voucher of the session.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from agentpay._calls.settings import logger
from agentpay.contract.ext.payments import VoucherReport

LATEST_SECONDS: Final = 1.0


class LateReports:
    """The newest report for each seller, changed only under the seller's lock.

    Args:
        flush: sends the report of a seller; awaitable for tasks of asyncio.
    """

    def __init__(self, flush: Callable[[str], Coroutine[Any, Any, None] | None]) -> None:
        self._flush = flush
        self._reports: dict[str, VoucherReport] = {}
        self._timers: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def origins(self) -> list[str]:
        """The sellers with a report."""
        return list(self._reports)

    def keep(self, origin: str, report: VoucherReport, *, is_async: bool) -> None:
        """Keep a report for the next request."""
        self._reports[origin] = report
        if origin in self._timers:
            return
        if is_async:
            loop = asyncio.get_running_loop()
            self._timers[origin] = loop.call_later(LATEST_SECONDS, self._begin, origin)
        else:
            timer = threading.Timer(LATEST_SECONDS, self._run, (origin,))
            timer.daemon = True
            self._timers[origin] = timer
            timer.start()

    @contextlib.contextmanager
    def taken(self, origin: str, *, is_async: bool) -> Iterator[dict[str, Any]]:
        """Yield the arguments of `payments.authorize` that send a report; keep it if that fails."""
        report = self._reports.pop(origin, None)
        try:
            yield {} if report is None else {"previous": report}
        except BaseException:
            if report is not None:
                self.keep(origin, report, is_async=is_async)
            raise

    def cancel(self) -> None:
        """Send nothing later."""
        while self._timers:
            self._timers.popitem()[1].cancel()

    def due(self, origin: str) -> VoucherReport | None:
        """Return the report of a seller as its timer ends."""
        self._timers.pop(origin, None)
        return self._reports.pop(origin, None)

    def _run(self, origin: str) -> None:
        try:
            self._flush(origin)
        except Exception as error:  # noqa: BLE001 - of a client that is closed by now
            logger.info("a late report of a voucher was not sent: %s", error)

    def _begin(self, origin: str) -> None:
        flushing = self._flush(origin)
        assert flushing is not None  # noqa: S101 - of an async client
        task = asyncio.get_running_loop().create_task(self._awaited(flushing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _awaited(flushing: Coroutine[Any, Any, None]) -> None:
        try:
            await flushing
        except Exception as error:  # noqa: BLE001 - as above
            logger.info("a late report of a voucher was not sent: %s", error)
