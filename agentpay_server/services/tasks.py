"""Tasks that the server owns, so that a caller who hangs up cancels nothing that moves money."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentpay_server.domain.problems import Problem

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Tasks:
    """Starts tasks, keeps them alive, and waits for them or cancels them when the server stops."""

    def __init__(self) -> None:
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

    async def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end and return its result, whatever becomes of the caller meanwhile."""
        return await asyncio.shield(self.start(work))

    async def stop(self, *, within_seconds: float) -> None:
        """Cancel loops, wait for what is under way, and cancel what is not done in time.

        What is cancelled has its state in the database, which says how to go on.
        """
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Taken here, so that a failure that nobody awaits any more is not reported by the collector.
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Problem):
            logger.error("a task of the server failed", exc_info=error)
