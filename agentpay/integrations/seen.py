"""Which events were handled already: delivery is at least once, and handlers want each event once.

An event is claimed before its handlers run and released when one of them fails, so that a later delivery of
it runs them again. What remembers claims is behind a protocol of two methods.
"""

from threading import Lock
from typing import Final, Protocol

DEFAULT_MAX_EVENTS: Final = 100_000
"""Some 20 MB; ten deliveries a second for the 2 h 35 min 30 s over which the service retries."""


class SeenEvents(Protocol):
    """Remembers the ids of events. Its methods may be called by several threads at once.

    One that is shared by several processes is a table with a unique column, or a key with an expiry. Where
    it outlives the process, a claim whose process died must expire, or the event is never handled again; a
    handler that writes to a database had better insert the id in its own transaction.
    """

    __module__: str = "agentpay.integrations"

    def add(self, event_id: str) -> bool:
        """Claim an event; False when it is claimed already."""
        ...

    def discard(self, event_id: str) -> None:
        """Release an event, whose handlers failed. One that is not claimed is no error."""
        ...


class MemorySeenEvents:
    """The events of this process, forgotten in the order in which they came once there are too many.

    Args:
        max_events: how many are remembered.
    """

    __module__ = "agentpay.integrations"

    def __init__(self, max_events: int = DEFAULT_MAX_EVENTS) -> None:
        if max_events < 1:
            raise ValueError("max_events must be at least 1")
        self._max_events = max_events
        self._ids: dict[str, None] = {}
        self._lock = Lock()

    def add(self, event_id: str) -> bool:
        """Claim an event; False when it is claimed already."""
        with self._lock:
            if event_id in self._ids:
                return False
            if len(self._ids) >= self._max_events:
                del self._ids[next(iter(self._ids))]
            self._ids[event_id] = None
            return True

    def discard(self, event_id: str) -> None:
        """Release an event, whose handlers failed."""
        with self._lock:
            self._ids.pop(event_id, None)
