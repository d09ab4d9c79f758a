"""A value that is asked for once, for all who want it at about the same time."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from agentpay_server.chain.protocol import ChainUnavailableError

T = TypeVar("T")


class Recent(Generic[T]):
    """What a chain said a moment ago. Errors are told to those who wait, and not kept.

    Args:
        fetch: asks for the value.
        max_age_seconds: how long after it was asked for it may be used.

    Attributes:
        max_age_seconds: the same; it may be changed at any time.
    """

    def __init__(self, fetch: Callable[[], Awaitable[T]], max_age_seconds: float) -> None:
        self._fetch = fetch
        self.max_age_seconds = max_age_seconds
        self._task: asyncio.Task[T] | None = None
        self._forgotten: asyncio.Task[T] | None = None
        self._asked_at = -math.inf

    async def get(self) -> T:
        """Return the value; giving up on waiting for it disturbs nobody else who waits."""
        while self._forgotten is not None and not self._forgotten.done():
            # One question at a time, and this one was asked too early.
            await asyncio.wait({self._forgotten})
        task = self._task
        now = asyncio.get_running_loop().time()
        if task is None or (task.done() and (_failed(task) or now >= self._asked_at + self.max_age_seconds)):
            task = self._task = asyncio.ensure_future(_awaited(self._fetch))
            task.add_done_callback(_failed)
            self._asked_at = now
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ChainUnavailableError("the server stops") from None
            raise

    def forget(self) -> None:
        """Use no longer what was asked for until now, answered or not."""
        self._forgotten = self._task
        self._asked_at = -math.inf

    def close(self) -> None:
        """Stop asking; who waits is told that the chain is gone."""
        if self._task is not None:
            self._task.cancel()


async def _awaited(fetch: Callable[[], Awaitable[T]]) -> T:
    return await fetch()


def _failed(task: "asyncio.Task[T]") -> bool:
    # Looking at the exception also tells asyncio that it is not lost when nobody waits any more.
    return task.cancelled() or task.exception() is not None
