"""Connection pools, each owned by one process and, in async code, by one event loop.

Two processes on one socket would read each other's responses, and a connection of an event loop that has
ended fails after the request was sent. So neither a forked child nor another loop uses a pool that it did not
create.

Each pool limits its concurrent requests itself: httpcore takes quadratic time for requests that wait inside
it. This module is independent of the HTTP library.
"""

import os
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

CONNECTIONS_MAX: Final = 100
"""Concurrent requests of one pool, each on its own connection."""

C = TypeVar("C")

_inherited: Final[list[object]] = []
"""Pools of the parent that forked children must not touch. They are kept alive: finalizing one could close
the parent's connections at the peer, or remove them from an epoll set that both processes share."""


class ByProcess(Generic[C]):
    """A value per process: a forked child starts with a new one."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._values: dict[int, C] = {}

    def get(self) -> C:
        process = os.getpid()
        value = self._values.get(process)
        if value is None:
            # An atomic operation instead of a lock, which a thread that does not exist in the child may have
            # held at the fork.
            value = self._values.setdefault(process, self._make())
            for other in [other for other in self._values if other != process]:
                _inherited.append(self._values.pop(other, None))
        return value


class PoolShard(Generic[C]):
    def __init__(self, client: C, close: Callable[[C], None]) -> None:
        self.client: C = client
        self._close = close
        self._free = threading.Semaphore(CONNECTIONS_MAX)
        self._lock = threading.Lock()
        self._users = 0
        self._is_retired = False

    def enter(self, timeout: float | None) -> bool:
        """Wait until a request may be sent; `leave` must follow. False after `timeout` seconds."""
        if not (self._free.acquire(blocking=False) or self._free.acquire(timeout=timeout)):
            return False
        with self._lock:
            self._users += 1
        return True

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            is_last = self._is_retired and not self._users
        self._free.release()
        if is_last:
            self.close()

    def retire(self) -> None:
        """Close the connections once no request uses them."""
        with self._lock:
            self._is_retired = True
            is_idle = not self._users
        if is_idle:
            self.close()

    def close(self) -> None:
        self._close(self.client)


class Pools(Generic[C]):
    def __init__(self, make: Callable[[], C], close: Callable[[C], None]) -> None:
        self._make = make
        self._close = close
        self._own: ByProcess[_Own[C]] = ByProcess(_Own)

    def current(self) -> PoolShard[C]:
        own = self._own.get()
        with own.lock:
            if own.pool is None:
                own.pool = PoolShard(self._make(), self._close)
            return own.pool

    def retire(self) -> None:
        """Use new connections from now on, and close the old ones once no request uses them."""
        pool = self._taken()
        if pool is not None:
            pool.retire()

    def close(self) -> None:
        """Close the connections of this process, but not those of others."""
        pool = self._taken()
        if pool is not None:
            pool.close()

    def _taken(self) -> PoolShard[C] | None:
        own = self._own.get()
        with own.lock:
            pool, own.pool = own.pool, None
        return pool


class _Own(Generic[C]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pool: PoolShard[C] | None = None
