"""Remembers which events were handled: delivery is at least once, but handlers want each event once.

An event is claimed before its handlers run. If one fails, the claim is released, so that a later delivery
runs them again; else it is finished. Storage of claims is behind a protocol.
"""

from threading import Lock
from typing import Final, Protocol

DEFAULT_MAX_EVENTS: Final = 100_000
"""About 20 MB: ten deliveries a second for the 2 h 35 min 30 s of retries."""


class SeenEvents(Protocol):
    """Remembers the ids of events. Its methods may be called by several threads at once.

    To share it between processes, use a table with a unique column, or a key with an expiry. If it outlives
    the process, claims of a process that died must expire, or their events are never handled again; a handler
    that writes to a database should rather insert the id in its own transaction.
    """

    __module__: str = "agentpay.integrations"

    def add(self, event_id: str) -> bool:
        """Claim an event; False if it is claimed already."""
        ...

    def discard(self, event_id: str) -> None:
        """Release an event whose handlers failed. Releasing one that is not claimed is allowed."""
        ...

    def finish(self, event_id: str) -> None:
        """Mark a claimed event as handled."""
        ...

    def is_finished(self, event_id: str) -> bool:
        """Whether a claimed event is handled; if not, its handlers run. Asked only with `answer="after"`."""
        ...


class MemorySeenEvents:
    """The events of this process; the oldest are forgotten first.

    Args:
        max_events: how many to remember.
    """

    __module__ = "agentpay.integrations"

    def __init__(self, max_events: int = DEFAULT_MAX_EVENTS) -> None:
        if max_events < 1:
            raise ValueError("max_events must be at least 1")
        self._max_events = max_events
        self._finished: dict[str, bool] = {}
        self._lock = Lock()

    def add(self, event_id: str) -> bool:
        """Claim an event; False if it is claimed already."""
        with self._lock:
            if event_id in self._finished:
                return False
            if len(self._finished) >= self._max_events:
                del self._finished[next(iter(self._finished))]
            self._finished[event_id] = False
            return True

    def discard(self, event_id: str) -> None:
        """Release an event whose handlers failed."""
        with self._lock:
            self._finished.pop(event_id, None)

    def finish(self, event_id: str) -> None:
        """Mark a claimed event as handled."""
        with self._lock:
            if event_id in self._finished:
                self._finished[event_id] = True

    def is_finished(self, event_id: str) -> bool:
        """Whether a claimed event is handled."""
        with self._lock:
            return self._finished.get(event_id, False)
