"""The server's counters: plain numbers, printed by `http/exposition.py`.

Counting happens on the server's own thread, between two awaits, so it needs no lock.
"""

from bisect import bisect_left
from collections import Counter
from typing import Final

SETTLEMENT_BOUNDS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of settlement latency, around the interface's 400 ms."""


class Histogram:
    """`bounds` are ascending and inclusive; the last of `counts` is above all bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """The counts of one server since its start.

    Attributes:
        transfers: decided or ended by this server, by outcome and error code.
        settlement_seconds: from acceptance to finality, by the server's clock.
        connections_dropped: because of their peers, by reason: `slow` (a deadline passed) or `crowded`
            (replaced by a new connection).
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.transfers: Counter[tuple[str, str]] = Counter()
        self.settlement_seconds: Histogram = Histogram(SETTLEMENT_BOUNDS_SECONDS)
        self.connections: int = 0
        self.connections_dropped: Counter[str] = Counter()
