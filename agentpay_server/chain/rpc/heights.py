"""What a cluster's heights are believed to be: one wrong number of a node is no proof of anything.

A height is a claim. It is judged by the server's own clock against the claims before it: blocks come at a
pace, which is learned here, and no block comes before its time. Pure: no I/O, and the time is a parameter.

What follows from a height is decided elsewhere: `chain.py` signs under no blockhash whose last valid height
does not fit, and `money/broadcast.py` believes no expiry before a blockhash can have expired.
"""

from collections import deque
from statistics import median_low
from typing import Final

from attrs import frozen

from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS

MOST_UNFINALIZED_BLOCKS: Final = 150
"""Blocks between the newest confirmed and the newest finalized one, at most; some 31 on a healthy cluster."""

_INTERVAL_SECONDS: Final = 4.0
_INTERVAL_BLOCKS: Final = 8
_LONGEST_INTERVAL_SECONDS: Final = 20.0
_INTERVALS: Final = 5
_LEAST_INTERVALS: Final = 3
_WINDOW_SECONDS: Final = 30.0
_LEAST_SPAN_SECONDS: Final = 15.0
_SPACING_SECONDS: Final = 1.0
_TOLERANCE: Final = 20
"""Blocks, or slots, that a claim may be ahead of the pace. Fewer than separate finalized from confirmed."""

_TOLERANCE_SECONDS: Final = 1.0
_LIFE_MARGIN: Final = 1.2
"""By how much the pace may be wrong. On a healthy cluster it delays nothing: finality takes as long."""


@frozen
class _Claim:
    """What a node told, and when."""

    at: float
    value: int


class Line:
    """The claims about a number that rises at a steady pace, such as a block height.

    The pace is taken from intervals of some seconds without the fastest and the slowest of them: however far
    a node jumps ahead, and back later, it spoils two. The line goes through the middle of the claims of the
    last half minute.
    """

    def __init__(self) -> None:
        self._claims: deque[_Claim] = deque()
        self._intervals: deque[tuple[float, int]] = deque(maxlen=_INTERVALS)
        self._interval_start: _Claim | None = None

    @property
    def per_second(self) -> float | None:
        """The pace; None while it is not known."""
        if len(self._intervals) < _LEAST_INTERVALS:
            return None
        by_pace = sorted(self._intervals, key=lambda interval: interval[1] / interval[0])[1:-1]
        pace = sum(gained for _, gained in by_pace) / sum(seconds for seconds, _ in by_pace)
        return pace if pace > 0 else None

    def note(self, value: int, now: float) -> None:
        """Take a claim into account, believed or not: what all nodes go on telling is true in the end."""
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
        """Return the number as the claims before let it be; None while too few are known."""
        pace = self.per_second
        claims = [claim for claim in self._claims if claim.at >= now - _WINDOW_SECONDS]
        if pace is None or not claims or claims[-1].at - claims[0].at < _LEAST_SPAN_SECONDS:
            return None
        # The lower one of two in the middle: in doubt it is earlier.
        return median_low(claim.value + int(pace * (now - claim.at)) for claim in claims)

    def highest(self, now: float) -> int | None:
        """Return the highest believable claim at a time; None while too little is known to tell."""
        expected = self.expected(now)
        return None if expected is None else expected + self._tolerance()

    def lowest(self, now: float) -> int | None:
        """Return what a node that does not lag claims at least; None while too little is known to tell."""
        expected = self.expected(now)
        return None if expected is None else expected - self._tolerance()

    def is_plausible(self, value: int, now: float) -> bool:
        """Return whether a claim has not risen faster than the time since the claims before it allows."""
        highest = self.highest(now)
        return highest is None or value <= highest

    def believed(self, value: int, now: float) -> int:
        """Return what is certain enough to act on, once a claim is noted: never more than was claimed.

        While the pace is not known, it is the lowest claim of the last half minute.
        """
        expected = self.expected(now)
        if expected is None:
            return min([value, *(claim.value for claim in self._claims)])
        return value if self.is_plausible(value, now) else min(value, expected)

    def newest_believable(self, now: float) -> int | None:
        """Return the highest claim of the last half minute that is still believed; None without any."""
        values = [claim.value for claim in self._claims if claim.at >= now - _WINDOW_SECONDS]
        return max((value for value in values if self.is_plausible(value, now)), default=None)

    def _tolerance(self) -> int:
        return max(_TOLERANCE, int((self.per_second or 0) * _TOLERANCE_SECONDS))


def _is_interval(seconds: float, gained: int) -> bool:
    """Whether so much has passed that a block more or less does not matter to the pace."""
    is_long = seconds >= _INTERVAL_SECONDS and abs(gained) >= _INTERVAL_BLOCKS
    return is_long or seconds >= _LONGEST_INTERVAL_SECONDS


def has_plausible_life(last_valid_height: int, *, height: int, lowest_height: int | None = None) -> bool:
    """Return whether a blockhash fits the height of the cluster: whether it is new.

    Args:
        last_valid_height: up to which a transaction can land that is signed under it.
        height: of the newest finalized block, read before it.
        lowest_height: which that block has at least, by what was told earlier; None where that is not known.
    """
    known = height if lowest_height is None else max(height, lowest_height)
    ahead = last_valid_height - height
    return (
        last_valid_height >= known + BLOCKHASH_LIFE_BLOCKS
        and ahead <= BLOCKHASH_LIFE_BLOCKS + MOST_UNFINALIZED_BLOCKS
    )


def life_seconds(blocks_per_second: float) -> float:
    """Return how long after it was signed a transaction may still land, at a pace, with a margin."""
    return BLOCKHASH_LIFE_BLOCKS / blocks_per_second * _LIFE_MARGIN
