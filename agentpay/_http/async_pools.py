"""The pools of the async client: one per event loop, of asyncio or trio, closed when the loop ends.

Separate from `agentpay._http.pools`: the sync client imports neither anyio nor asyncio.
"""

# `enter` returns False at the end of `timeout`, rather than raising.
# ruff: noqa: ASYNC109

import contextlib
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

from agentpay._http.pools import CONNECTIONS_MAX, ByProcess
from agentpay.errors import ConfigurationError

C = TypeVar("C")


LANE_CONNECTIONS: Final = 4
"""For each request, httpcore checks every pair of a client's idle connections.

With 100 of them, this takes longer than the request. If fewer are kept, most requests open a new one.
"""


class Lane(Generic[C]):
    """One of the HTTP clients of a pool, and how many requests use it."""

    def __init__(self, client: C) -> None:
        self.client: C = client
        self.users = 0


class AsyncPool(Generic[C]):
    def __init__(self, make: Callable[[], C], close: Callable[[C], Awaitable[None]]) -> None:
        self._make = make
        self._lanes = [Lane(make())]
        self._ended = anyio.Event()
        self._keeper = _kept(self._lanes, close, self._ended)
        self._free = anyio.Semaphore(CONNECTIONS_MAX, fast_acquire=True)
        self._users = 0
        self._is_retired = False

    @property
    def is_closed(self) -> bool:
        """By `close` or with the event loop."""
        return self._ended.is_set()

    async def open(self) -> None:
        """Register the connections to close when the event loop ends."""
        await anext(self._keeper)

    async def enter(self, timeout: float | None) -> Lane[C] | None:
        """Wait for a free slot; call `leave` afterwards. None if `timeout` seconds pass first."""
        try:
            self._free.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.move_on_after(timeout) as scope:
                await self._free.acquire()
            if scope.cancelled_caught:
                return None
        try:
            lane = self._lane()
        except BaseException:
            self._free.release()
            raise
        lane.users += 1
        self._users += 1
        return lane

    def _lane(self) -> Lane[C]:
        """Return the first client with a free connection, so that few concurrent requests use one client."""
        for lane in self._lanes:
            if lane.users < LANE_CONNECTIONS:
                return lane
        lane = Lane(self._make())
        self._lanes.append(lane)
        return lane

    async def leave(self, lane: Lane[C]) -> None:
        lane.users -= 1
        self._users -= 1
        self._free.release()
        if self._is_retired and not self._users:
            await self.close()

    async def retire(self) -> None:
        """Close the connections once no request uses them."""
        self._is_retired = True
        if not self._users:
            await self.close()

    async def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # another task is closing them already
            await self._keeper.aclose()


async def _kept(
    lanes: list[Lane[C]], close: Callable[[C], Awaitable[None]], ended: anyio.Event
) -> AsyncGenerator[None, None]:
    """Close the clients at the end: an ending event loop closes its open generators."""
    try:
        yield
    finally:
        ended.set()
        for lane in lanes:
            with contextlib.suppress(Exception):  # a client that fails to close is dropped
                await close(lane.client)


class AsyncPools(Generic[C]):
    """`close` closes an HTTP client, on the event loop that used it."""

    def __init__(self, make: Callable[[], C], close: Callable[[C], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._pools: ByProcess[dict[object, AsyncPool[C]]] = ByProcess(dict)
        # A discarded SDK client is part of a reference cycle. This reference keeps its pools intact until
        # their event loops close them.
        weakref.finalize(self, _drop, self._pools).atexit = False

    async def current(self) -> AsyncPool[C]:
        pools = self._pools.get()
        loop = _running_loop()
        pool = pools.get(loop)
        if pool is None or pool.is_closed:
            _forget_the_ended(pools)
            pool = pools[loop] = AsyncPool(self._make, self._close)
            await pool.open()
        return pool

    async def retire(self) -> None:
        """Use new connections from now on, and close this loop's old ones once no request uses them."""
        pool = self._pools.get().pop(_running_loop(), None)
        if pool is not None:
            await pool.retire()

    async def close(self) -> None:
        """Other loops close their own connections."""
        pool = self._pools.get().pop(_running_loop(), None)
        _drop(self._pools)
        if pool is not None:
            await pool.close()


def _drop(pools: ByProcess[dict[object, AsyncPool[C]]]) -> None:
    pools.get().clear()


def _running_loop() -> object:
    try:
        return current_token().native_token
    except RuntimeError:
        raise ConfigurationError(
            "the async client runs on asyncio or trio, and neither is running here: await its methods there"
        ) from None


def _forget_the_ended(pools: dict[object, AsyncPool[C]]) -> None:
    for loop, pool in list(pools.items()):
        is_closed = getattr(loop, "is_closed", None)
        if pool.is_closed or (is_closed is not None and is_closed()):
            pools.pop(loop, None)
