"""Locks by name, and work to do later: for threads, and for the tasks of an event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final

LATEST_SECONDS: Final = 1.0
"""How long the outcome of a voucher waits for the next request to the service, in seconds."""


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


class Timer(threading.Timer):
    """Calls a function in `LATEST_SECONDS`, in a thread, unless it is cancelled."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(LATEST_SECONDS, work)
        self.daemon = True
        self.start()


class AsyncTimer:
    """Awaits a function in `LATEST_SECONDS`, in a task of asyncio, unless it is cancelled."""

    _tasks: ClassVar[set[asyncio.Task[None]]] = set()  # An event loop does not keep its tasks.

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._handle = asyncio.get_running_loop().call_later(LATEST_SECONDS, self._begin)

    def cancel(self) -> None:
        self._handle.cancel()

    def _begin(self) -> None:
        task = asyncio.get_running_loop().create_task(self._work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
