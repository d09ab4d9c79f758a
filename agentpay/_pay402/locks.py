"""One lock for each name: vouchers of one session are presented one after another."""

import threading
from typing import Any


class Locks:
    """Locks by name, for threads."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}

    def of(self, name: str) -> threading.Lock:
        """Return the lock of a name."""
        return self._locks.setdefault(name, threading.Lock())


class AsyncLocks:
    """Locks by name, for the tasks of one event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, Any] = {}

    def of(self, name: str) -> Any:  # noqa: ANN401 - of whichever event loop runs
        """Return the lock of a name."""
        import anyio  # noqa: PLC0415 - httpx brings it, and only sessions need it

        return self._locks.setdefault(name, anyio.Lock())
