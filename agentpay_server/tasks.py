"""Tasks that the server owns: a caller who hangs up cancels nothing that moves money. And wake-ups."""

import asyncio
import logging
from collections.abc import Collection, Coroutine
from typing import Any, Final, TypeVar

from agentpay_server.errors import Problem
from agentpay_server.logs import log

T = TypeVar("T")

_LAST_WORD_SECONDS: Final = 0.5

logger: logging.Logger = logging.getLogger(__name__)


async def all_ended(tasks: "Collection[asyncio.Task[Any]]", *, within_seconds: float | None = None) -> None:
    """Wait for tasks of others, and raise what one of them failed with.

    One that is cut off takes nobody with it who waits for it, and those that take longer go on.
    """
    if tasks:
        ended, _ = await asyncio.wait(tasks, timeout=within_seconds)
        for task in ended:
            if not task.cancelled():
                task.result()


class Tasks:
    """Starts tasks, keeps them alive, and waits for them or cancels them when the server stops.

    Attributes:
        closing: done once the server is about to end, and nobody may wait for anything any more.
    """

    def __init__(self) -> None:
        self.closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loops: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def start_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Start `work` that goes on until the server stops."""
        self._loops.add(asyncio.get_running_loop().create_task(work))

    def end_loops(self) -> None:
        """Cancel all loops: none of them goes on from where it waits."""
        for loop in self._loops:
            loop.cancel()
            loop.add_done_callback(self._loops.discard)

    async def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end and return its result, whatever becomes of the caller meanwhile."""
        return await asyncio.shield(self.start(work))

    async def rest(self, *, within_seconds: float) -> bool:
        """Wait until nothing but loops is under way, and return whether it came to that in time.

        The caller is no such task, or it would wait for itself.
        """
        return await self._rest(within_seconds, is_cut_off=False)

    async def cut_off(self, *, within_seconds: float) -> bool:
        """Cancel what is under way, but for loops, and return whether all of it has ended in time.

        Whoever waits for what is cancelled gets a `CancelledError` without being cancelled.
        """
        return await self._rest(within_seconds, is_cut_off=True)

    async def _rest(self, within_seconds: float, *, is_cut_off: bool) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_seconds
        while self._tasks:
            remaining_seconds = deadline - loop.time()
            if remaining_seconds <= 0:
                return False
            for task in self._tasks if is_cut_off else ():
                task.cancel()
            await asyncio.wait(self._tasks, timeout=remaining_seconds)
        return True

    def close(self) -> None:
        """Have those who wait for an end say how things stand instead; calling it again does nothing."""
        if not self.closing.done():
            self.closing.set_result(None)

    async def stop(self, *, within_seconds: float) -> None:
        """Cancel loops, wait for what is under way, and cancel what is not done in time.

        What is cancelled has its state in the database, which says how to go on.
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
        # Taken here, so that a failure that nobody awaits any more is not reported by the collector.
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Problem):
            log(logger, logging.ERROR, "task.failed", exception=error)


class Wakeup:
    """Tells whoever waits for due work that a due time has changed."""

    def __init__(self) -> None:
        self._listeners: list[asyncio.Event] = []

    def listener(self) -> asyncio.Event:
        """Return an event that is set whenever `set` is called; it is cleared before work is looked for."""
        event = asyncio.Event()
        self._listeners.append(event)
        return event

    def forget_listeners(self) -> None:
        """Wake none of them any more: they have ended."""
        self._listeners.clear()

    def set(self) -> None:
        """Wake every listener."""
        for event in self._listeners:
            event.set()
