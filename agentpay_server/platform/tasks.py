"""Background tasks, which no disconnecting caller cancels, and the wake-ups of schedulers."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar

from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import log

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_LAST_WORD_SECONDS: Final = 0.5

logger: logging.Logger = logging.getLogger(__name__)


async def all_ended(tasks: "Collection[asyncio.Task[Any]]", *, within_seconds: float | None = None) -> None:
    """Wait for tasks, and raise the error of a failed one.

    A cancelled task does not cancel the waiting one. Tasks that take longer continue.
    """
    if tasks:
        ended, _ = await asyncio.wait(tasks, timeout=within_seconds)
        for task in ended:
            if not task.cancelled():
                task.result()


class Tasks:
    """`closing` is done once the server is about to end, so that callers stop waiting."""

    def __init__(self) -> None:
        self.closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loops: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def start_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until the server stops."""
        self._loops.add(asyncio.get_running_loop().create_task(work))

    def end_loops(self) -> None:
        for loop in self._loops:
            loop.cancel()
            loop.add_done_callback(self._loops.discard)

    async def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, even if the caller is cancelled."""
        return await asyncio.shield(self.start(work))

    async def drain(self, *, within_seconds: float) -> bool:
        """Wait until only loops are running; return False on a timeout. A task must not call it."""
        return await self._drain(within_seconds, cancels=False)

    async def cancel_all(self, *, within_seconds: float) -> bool:
        """Cancel all tasks except loops; return False if one has not ended in time.

        Their awaiting callers get a `CancelledError` without being cancelled.
        """
        return await self._drain(within_seconds, cancels=True)

    async def _drain(self, within_seconds: float, *, cancels: bool) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_seconds
        while self._tasks:
            remaining_seconds = deadline - loop.time()
            if remaining_seconds <= 0:
                return False
            for task in self._tasks if cancels else ():
                task.cancel()
            await asyncio.wait(self._tasks, timeout=remaining_seconds)
        return True

    def close(self) -> None:
        """Make waiting callers return the current state. Idempotent."""
        if not self.closing.done():
            self.closing.set_result(None)

    async def stop(self, *, within_seconds: float) -> None:
        """Cancel loops at once, and tasks that do not finish in time.

        A later start resumes them from the database.
        """
        self.end_loops()
        if self._loops:
            await asyncio.wait(self._loops)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_seconds)
        self.close()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_LAST_WORD_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Retrieved here, so that asyncio does not report it if no caller awaits the task.
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Problem):
            log(logger, logging.ERROR, "task.failed", exception=error)


class SingleFlight(Generic[K, T]):
    """At most one running task for each key; its callers share it.

    `ended` is called once with each task that ends on its own, after it has left.
    """

    def __init__(self, tasks: Tasks, ended: "Callable[[K, asyncio.Task[T]], None] | None" = None) -> None:
        self._start = tasks.start
        self._ended = ended
        self._running: dict[K, asyncio.Task[T]] = {}

    def __contains__(self, key: K) -> bool:
        return self.running(key) is not None

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[K]:
        return iter(tuple(self._running))

    def running(self, key: K) -> asyncio.Task[T] | None:
        """Return the running task of a key, if there is one."""
        running = self._running.get(key)
        # A task that has ended stays for one turn of the loop.
        return None if running is None or running.done() else running

    def start(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Return the running task of a key; start one if no task runs."""
        running = self.running(key)
        if running is None:
            running = self._running[key] = self._start(work())
            running.add_done_callback(partial(self._forget, key))
        return running

    def cancel(self, key: K) -> None:
        """Cancel the task of a key, if there is one."""
        running = self._running.pop(key, None)
        if running is not None:
            running.cancel()

    def _forget(self, key: K, task: asyncio.Task[T]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if self._ended is not None:
            self._ended(key, task)


class Wakeup:
    """Wakes schedulers after a due time has changed.

    A unit of work calls `note` when it writes a due time. The caller that runs it compares `noted` after the
    commit with its value before the unit, and wakes the schedulers only if it differs. A note of another unit
    in between wakes them once too often.
    """

    def __init__(self) -> None:
        self._listeners: list[asyncio.Event] = []
        self.noted: int = 0

    def listener(self) -> asyncio.Event:
        """Return an event that every `set` sets. Its owner clears it before it checks for work."""
        event = asyncio.Event()
        self._listeners.append(event)
        return event

    def forget_listeners(self) -> None:
        """All listeners have ended."""
        self._listeners.clear()

    def note(self) -> None:
        """Note that the running unit of work writes a due time."""
        self.noted += 1

    def set_since(self, noted: int) -> None:
        """Wake the schedulers if anything was noted since `noted` was read."""
        if self.noted != noted:
            self.set()

    def set(self) -> None:
        for event in self._listeners:
            event.set()
