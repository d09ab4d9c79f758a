"""How long transactions take to land, learned from landings. Only for pauses: it proves nothing.

The status of a transaction is first requested when most would have landed. Earlier requests cost a commit,
because the caller is then told that the transaction was sent; later ones make callers wait.
"""

from collections import deque
from typing import Final

from attrs import evolve, frozen

_SHORTEST_SECONDS: Final = 0.05
_LONGEST_SECONDS: Final = 2.0
"""A node that reports landings late, or never, delays first checks no longer than this."""

_LANDINGS: Final = 16
_LEAST_LANDINGS: Final = 8
_LANDED_BY_THEN: Final = 0.75
_EARLIER: Final = 0.97
"""A transaction that has landed at its first check may have landed earlier: the next are checked earlier."""

_MAX_SENT: Final = 4_096


class LandingTime:
    """Observes when transactions are sent, and when they are first known to have landed. Pure."""

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}
        self._landed: deque[float] = deque(maxlen=_LANDINGS)
        self._seconds: float | None = None

    @property
    def seconds(self) -> float | None:
        """The time by which most transactions have landed; None until some have."""
        return self._seconds

    def note_sent(self, signature: str, now: float, expected_seconds: float) -> None:
        """Record that a transaction was sent, and is first checked after `expected_seconds`."""
        if signature not in self._sent:
            if len(self._sent) >= _MAX_SENT:
                del self._sent[next(iter(self._sent))]
            self._sent[signature] = _Sent(now, expected_seconds)

    def note_missing(self, signature: str) -> None:
        """Record that a check has found no landing."""
        sent = self._sent.get(signature)
        if sent is not None and not sent.is_missed:
            self._sent[signature] = evolve(sent, is_missed=True)

    def note_landed(self, signature: str, asked_at: float) -> None:
        """Record that a status that was requested at `asked_at` reports a landing."""
        sent = self._sent.pop(signature, None)
        if sent is None:
            return
        seconds = asked_at - sent.at
        if not sent.is_missed:
            # A check comes a little later than it was to, on a busy server.
            seconds = min(seconds, sent.expected_seconds) * _EARLIER
        self._landed.append(seconds)
        if len(self._landed) >= _LEAST_LANDINGS:
            slowest = sorted(self._landed)[int(len(self._landed) * _LANDED_BY_THEN)]
            self._seconds = min(max(slowest, _SHORTEST_SECONDS), _LONGEST_SECONDS)


@frozen
class _Sent:
    """When a transaction was sent, when its first check is expected, and whether one has found no landing."""

    at: float
    expected_seconds: float
    is_missed: bool = False
