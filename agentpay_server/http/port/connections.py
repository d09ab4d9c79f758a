"""The open connections of one port, a limit on them, and which of them wait for their peers.

A connection with a request in service is never dropped. One that waits for its peer (to send a request or the
rest of one, or to read a response) can be: a retry loses nothing. At the limit, each new connection replaces
the one that has waited longest, so slow or silent peers cannot lock others out. If none waits, new ones stay
in the kernel's backlog; asyncio's own servers would accept them, and fail without file descriptors.
"""

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable
from typing import Final, Protocol

from agentpay_server.platform.logs import log
from agentpay_server.platform.metrics import Metrics

try:
    import resource
except ImportError:  # Windows has no such limit.
    resource = None  # type: ignore[assignment]

_OTHER_DESCRIPTORS: Final = 400
"""File descriptors for everything else: 256 deliveries, the database, the chain, files."""

_PAUSE_SECONDS: Final = 1.0
"""Pause before accepting is retried, unless a connection closes earlier."""

_LINE_SECONDS: Final = 60.0

logger: logging.Logger = logging.getLogger(__name__)


class Peer(Protocol):
    def drop(self) -> None: ...


class Connections:
    def __init__(self, limit: int, metrics: Metrics) -> None:
        self.limit: int = limit
        self._metrics = metrics
        self._open: set[Peer] = set()
        self._waiting: dict[Peer, None] = {}
        self._changed = asyncio.Event()
        self._next_line_at = 0.0

    def opened(self, connection: Peer) -> None:
        self._open.add(connection)
        self._metrics.connections += 1

    def closed(self, connection: Peer) -> None:
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._open.remove(connection)
            self._metrics.connections -= 1
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

    def count_dropped(self, reason: str) -> None:
        self._metrics.connections_dropped[reason] += 1

    async def accept(self, sock: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Accept connections until cancelled, and close the socket in the end."""
        loop = asyncio.get_running_loop()
        sock.settimeout(0)
        with sock:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(sock)
                except ConnectionAbortedError:
                    continue
                except OSError as error:
                    # In practice, no file descriptor is free.
                    await self._make_room(f"errno {error.errno}", pauses=True)
                    continue
                try:
                    while len(self._open) >= self.limit:
                        await self._make_room("max_connections", pauses=not self._waiting)
                    await loop.connect_accepted_socket(protocol, accepted)
                except BaseException as error:
                    accepted.close()
                    if not isinstance(error, OSError):
                        raise

    async def _make_room(self, reason: str, *, pauses: bool) -> None:
        """Drop the connection that has waited longest, if any does."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_line_at:
            self._next_line_at = now + _LINE_SECONDS
            open_ones = len(self._open)
            log(logger, logging.WARNING, "connections.full", reason=reason, open=open_ones, limit=self.limit)
        self._changed.clear()
        if (longest := next(iter(self._waiting), None)) is not None:
            self.closed(longest)
            self.count_dropped("crowded")
            longest.drop()
            self._changed.clear()
        if pauses:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _PAUSE_SECONDS)


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
