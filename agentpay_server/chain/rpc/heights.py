"""Plausibility of a cluster's block heights: a single wrong number of a node proves nothing. Pure.

A height is a claim of a node. It is compared with earlier claims by the server's own clock: blocks come at a
measured pace, and none comes early. `chain.py` does not sign with a blockhash whose last valid height is
implausible, and `engine/broadcast.py` accepts no expiry before a blockhash can have expired.
"""

from collections import deque
from statistics import median_low
from typing import Final

from attrs import frozen

from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS

MOST_UNFINALIZED_BLOCKS: Final = 150
"""Maximum blocks between the newest confirmed and finalized ones; about 31 on a healthy cluster."""

_INTERVAL_SECONDS: Final = 4.0
_INTERVAL_BLOCKS: Final = 8
_LONGEST_INTERVAL_SECONDS: Final = 20.0
_INTERVALS: Final = 5
_LEAST_INTERVALS: Final = 3
_WINDOW_SECONDS: Final = 30.0
_LEAST_SPAN_SECONDS: Final = 15.0
_SPACING_SECONDS: Final = 1.0
_TOLERANCE: Final = 20
"""Number of blocks, or slots, that a claim may be ahead of the pace; fewer than between finalized and
confirmed.
"""

_TOLERANCE_SECONDS: Final = 1.0
_LIFE_MARGIN: Final = 1.2
"""Tolerance of the pace. On a healthy cluster it causes no delay, because finality takes as long."""


@frozen
class _Claim:
    """A number that a node reported, and when."""

    at: float
    value: int


class SlotRate:
    """Claims about a number that rises at a steady pace, such as a block height.

    The pace is the average over intervals of some seconds, without the fastest and the slowest one: a node
    that jumps ahead and later back affects only these two. The line goes through the median of the claims of
    the last half minute.
    """

    def __init__(self) -> None:
        self._claims: deque[_Claim] = deque()
        self._intervals: deque[tuple[float, int]] = deque(maxlen=_INTERVALS)
        self._interval_start: _Claim | None = None

    @property
    def per_second(self) -> float | None:
        """The pace; None while it is unknown."""
        if len(self._intervals) < _LEAST_INTERVALS:
            return None
        by_pace = sorted(self._intervals, key=lambda interval: interval[1] / interval[0])[1:-1]
        pace = sum(gained for _, gained in by_pace) / sum(seconds for seconds, _ in by_pace)
        return pace if pace > 0 else None

    def note(self, value: int, now: float) -> None:
        """Record a claim, plausible or not: one that all nodes keep reporting is eventually accepted."""
        claim = _Claim(now, value)
        start = self._interval_start
        if start is None:
            self._interval_start = claim
        elif _is_interval(now - start.at, value - start.value):
            self._intervals.append((now - start.at, value - start.value))
            self._interval_start = claim
        if not self._claims or now - self._claims[-1].at >= _SPACING_SECONDS:
            self._claims.append(claim)
        while self._claims[0].at < now - _WINDOW_SECONDS:
            self._claims.popleft()

    def expected(self, now: float) -> int | None:
        """Return the number expected from earlier claims; None if there are too few."""
        pace = self.per_second
        claims = [claim for claim in self._claims if claim.at >= now - _WINDOW_SECONDS]
        if pace is None or not claims or claims[-1].at - claims[0].at < _LEAST_SPAN_SECONDS:
            return None
        # The lower of two medians, to assume less progress if in doubt.
        return median_low(claim.value + int(pace * (now - claim.at)) for claim in claims)

    def highest(self, now: float) -> int | None:
        """Return the highest plausible claim at a time; None if there is too little information."""
        expected = self.expected(now)
        return None if expected is None else expected + self._tolerance()

    def lowest(self, now: float) -> int | None:
        """Return the lowest plausible claim of a node that does not lag; None if it is unknown."""
        expected = self.expected(now)
        return None if expected is None else expected - self._tolerance()

    def is_plausible(self, value: int, now: float) -> bool:
        """Return whether a claim has not risen faster than possible since earlier claims."""
        highest = self.highest(now)
        return highest is None or value <= highest

    def accepted(self, value: int, now: float) -> int:
        """Return a number, at most the claim, that is safe to act on.

        While the pace is unknown, the lowest claim of the last half minute.
        """
        expected = self.expected(now)
        if expected is None:
            return min([value, *(claim.value for claim in self._claims)])
        return value if self.is_plausible(value, now) else min(value, expected)

    def newest_believable(self, now: float) -> int | None:
        """Return the highest plausible claim of the last half minute, or None."""
        values = [claim.value for claim in self._claims if claim.at >= now - _WINDOW_SECONDS]
        return max((value for value in values if self.is_plausible(value, now)), default=None)

    def _tolerance(self) -> int:
        return max(_TOLERANCE, int((self.per_second or 0) * _TOLERANCE_SECONDS))


def _is_interval(seconds: float, gained: int) -> bool:
    """Return whether an interval is long enough that one block does not affect the pace."""
    is_long = seconds >= _INTERVAL_SECONDS and abs(gained) >= _INTERVAL_BLOCKS
    return is_long or seconds >= _LONGEST_INTERVAL_SECONDS


def has_plausible_life(last_valid_height: int, *, height: int, lowest_height: int | None = None) -> bool:
    """Return whether a blockhash's last valid height fits the cluster's height: whether it is new.

    `height` is that of the newest finalized block, read before the blockhash; `lowest_height` the lowest
    plausible height of that block, None if unknown.
    """
    known = height if lowest_height is None else max(height, lowest_height)
    ahead = last_valid_height - height
    return (
        last_valid_height >= known + BLOCKHASH_LIFE_BLOCKS
        and ahead <= BLOCKHASH_LIFE_BLOCKS + MOST_UNFINALIZED_BLOCKS
    )


def life_seconds(blocks_per_second: float) -> float:
    """Return how long a transaction may still land after it was signed, at a pace, with a margin."""
    return BLOCKHASH_LIFE_BLOCKS / blocks_per_second * _LIFE_MARGIN
