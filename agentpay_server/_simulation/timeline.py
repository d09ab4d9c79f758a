"""What happened in a world: a digest of everything, and lines for people.

The digest covers every note, so that two runs agree in it only if they agree in all. Lines are kept for the
notes that tell the story; the others (units of work, RPC reads) only with `keeps_all`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Final

_STORY: Final = frozenset(
    {"ask", "answer", "operator", "fault", "send", "land", "forget", "server", "hook", "VIOLATION", "world"}
)


class Timeline:
    """Takes notes.

    Args:
        now: seconds since the world began.
        keeps_all: whether lines are kept of every note, not only of those that tell the story.
        keeps: whether lines are kept at all.
    """

    def __init__(self, now: Callable[[], float], *, keeps: bool = True, keeps_all: bool = False) -> None:
        self._now = now
        self._digest = hashlib.blake2b(digest_size=16)
        self._keeps = keeps
        self._keeps_all = keeps_all
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()

    def note(self, kind: str, who: str, *what: object) -> None:
        """Note that something happened.

        Args:
            kind: of what happened.
            who: whose doing it was.
            what: all there is to say about it.
        """
        line = f"{self._now():12.6f} {kind:9} {who:12} {' '.join(map(str, what))}"
        self._digest.update(line.encode())
        self.counts[kind] += 1
        if self._keeps and (self._keeps_all or kind in _STORY):
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """What is the same for two runs in which the same happened, and no others."""
        return self._digest.hexdigest()
