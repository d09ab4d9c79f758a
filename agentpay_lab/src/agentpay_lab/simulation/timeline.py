"""The record of a simulation: a digest of all notes, and lines for people.

Only equal runs have equal digests. Lines are kept for major notes; those of others (units of work, RPC reads)
only with `keeps_all`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Final

_STORY: Final = frozenset(
    {"ask", "answer", "operator", "fault", "send", "land", "forget", "server", "hook", "VIOLATION", "world"}
)


class Timeline:
    def __init__(self, now: Callable[[], float], *, keeps: bool = True, keeps_all: bool = False) -> None:
        self._now = now
        self._digest = hashlib.blake2b(digest_size=16)
        self._keeps = keeps
        self._keeps_all = keeps_all
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()

    def note(self, kind: str, who: str, *what: object) -> None:
        line = f"{self._now():12.6f} {kind:9} {who:12} {' '.join(map(str, what))}"
        self._digest.update(line.encode())
        self.counts[kind] += 1
        if self._keeps and (self._keeps_all or kind in _STORY):
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
