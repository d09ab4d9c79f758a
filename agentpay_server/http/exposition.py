"""Metrics in Prometheus' text format. Imported at the first request for metrics, to keep starts fast.

Those of a queue or treasury that is None are left out.
"""

from collections.abc import Iterator
from decimal import Decimal
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from agentpay_server.http.operations import Queue
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.logs import Metrics

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4.encode("ascii")


class Exposition(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._queue: Queue | None = None
        self._treasury_sol: Decimal | None = None
        self._now_us = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self, queue: Queue | None, now_us: int, treasury_sol: Decimal | None) -> bytes:
        self._queue, self._now_us, self._treasury_sol = queue, now_us, treasury_sol
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "agentpay_requests",
            "Responses, by route template, method and status.",
            labels=("route", "method", "status"),
        )
        for request, count in self._metrics.requests.items():
            requests.add_metric(request, count)
        yield requests
        transfers = CounterMetricFamily(
            "agentpay_transfers",
            "Transfers decided or ended, by outcome and error code.",
            labels=("outcome", "error"),
        )
        for end, count in self._metrics.transfers.items():
            transfers.add_metric(end, count)
        yield transfers
        latency = self._metrics.settlement_seconds
        bounds = (*(repr(bound) for bound in latency.bounds), "+Inf")
        yield HistogramMetricFamily(
            "agentpay_settlement_seconds",
            "From the acceptance of a transfer to its finality, by the server's clock.",
            buckets=list(zip(bounds, accumulate(latency.counts), strict=True)),
            sum_value=latency.total,
        )
        yield GaugeMetricFamily(
            "agentpay_connections", "Open connections of the port.", value=self._metrics.connections
        )
        dropped = CounterMetricFamily(
            "agentpay_connections_dropped",
            "Connections that were closed because of their peers: slow, or dropped for new ones.",
            labels=("reason",),
        )
        for reason, count in self._metrics.connections_dropped.items():
            dropped.add_metric((reason,), count)
        yield dropped
        if self._queue is not None:
            yield from self._waiting(self._queue)
        if self._treasury_sol is not None:
            yield GaugeMetricFamily(
                "agentpay_treasury_sol",
                "SOL of the treasury, which pays all fees and lends the rent of accounts and escrows.",
                value=float(self._treasury_sol),
            )

    def _waiting(self, queue: Queue) -> Iterator[Metric]:
        lag_us = 0 if queue.oldest_due_us is None else self._now_us - queue.oldest_due_us
        yield GaugeMetricFamily(
            "agentpay_delivery_lag_seconds",
            "How long the oldest due delivery has waited.",
            value=lag_us / SECOND_US,
        )
        depth = GaugeMetricFamily(
            "agentpay_queue_depth", "Queued work in the database, by kind.", labels=("queue",)
        )
        depth.add_metric(("deliveries_due",), queue.deliveries_due)
        depth.add_metric(("transfers_submitted",), queue.transfers_submitted)
        yield depth
        yield GaugeMetricFamily(
            "agentpay_stopped_accounts",
            "Accounts for which nothing is signed until an operator has reviewed them.",
            value=queue.stopped_accounts,
        )
