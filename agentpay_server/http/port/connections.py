"""The open connections of one port, and which of them wait for their peers.

A connection with a request in service is never dropped. One that waits for its peer (to send a request or the
rest of one, or to read a response) can be: a retry loses nothing. At the limit, each new connection replaces
the one that has waited longest, so slow or silent peers cannot lock others out.
"""

import asyncio
import contextlib
import math
from typing import Final, Protocol

try:
    import resource
except ImportError:  # Windows has no such limit.
    resource = None  # type: ignore[assignment]

from agentpay_server.platform.metrics import Metrics

_OTHER_DESCRIPTORS: Final = 400
"""File descriptors for everything else: 256 deliveries, the database, the chain, files."""


class Peer(Protocol):
    def drop(self) -> None: ...


class Connections:
    def __init__(self, limit: int, metrics: Metrics) -> None:
        self.limit: int = limit
        self._metrics = metrics
        self._open: set[Peer] = set()
        # Ordered by the start of the wait.
        self._waiting: dict[Peer, None] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self.limit

    def opened(self, connection: Peer) -> None:
        self._open.add(connection)
        self._metrics.connections += 1

    def closed(self, connection: Peer) -> None:
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._forget(connection)
        self._changed.set()

    def waits(self, connection: Peer) -> None:
        """The connection now waits for its peer."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._waiting[connection] = None
            self._changed.set()

    def serves(self, connection: Peer) -> None:
        """Its request is being served."""
        self._waiting.pop(connection, None)

    def make_room(self) -> bool:
        """Drop the connection that has waited longest; return False if none waits."""
        longest = next(iter(self._waiting), None)
        if longest is None:
            return False
        del self._waiting[longest]
        self._forget(longest)
        self.count_dropped("crowded")
        longest.drop()
        return True

    def count_dropped(self, reason: str) -> None:
        self._metrics.connections_dropped[reason] += 1

    async def changed(self, *, within_seconds: float) -> None:
        """Return once a connection closes or starts to wait, or after a timeout."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._changed.wait()

    def _forget(self, connection: Peer) -> None:
        self._open.discard(connection)
        self._metrics.connections -= 1


def connection_limit(wanted: int) -> int:
    """Return `wanted`, or fewer if the process may not open enough files."""
    if resource is None:
        return wanted
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    available = math.inf if descriptors == resource.RLIM_INFINITY else descriptors
    return int(min(wanted, max(available // 2, available - _OTHER_DESCRIPTORS, 1)))


def raise_descriptor_limit(connections: int) -> None:
    """Raise the soft limit on open files as needed, up to the hard limit."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_DESCRIPTORS
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        # macOS reports an unlimited hard limit, but refuses values above the kernel's.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
