"""Accepts connections up to a limit, and pauses at the limit.

asyncio's own servers have no limit: out of file descriptors, they log one traceback a second for each place
in the backlog. An `Acceptor` leaves new connections in the kernel's backlog until there is room, and logs one
line a minute.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final

from agentpay_server.http.port.connections import Connections
from agentpay_server.platform.logs import log

_PAUSE_SECONDS: Final = 1.0
"""Pause before retrying, unless a connection closes earlier."""

_LINE_SECONDS: Final = 60.0

logger: logging.Logger = logging.getLogger(__name__)


class Acceptor:
    """Has the methods of `asyncio.Server` that uvicorn calls, and closes its socket in the end."""

    def __init__(
        self, sock: socket.socket, connections: Connections, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._socket = sock
        self._connections = connections
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._next_line_at = 0.0
        sock.settimeout(0)
        self._accepting = self._loop.create_task(self._accept())
        self._accepting.add_done_callback(self._ended)

    def close(self) -> None:
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait({self._accepting})

    async def _accept(self) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._socket)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # In practice, no file descriptor is free.
                self._log_full(type(error).__name__ if error.errno is None else f"errno {error.errno}")
                self._connections.make_room()
                await self._connections.changed(within_seconds=_PAUSE_SECONDS)
                continue
            with contextlib.suppress(OSError):
                await self._connect(accepted)

    async def _connect(self, accepted: socket.socket) -> None:
        """Serve once there is room. Later ones wait in the backlog."""
        try:
            while self._connections.is_full:
                self._log_full("max_connections")
                if not self._connections.make_room():
                    await self._connections.changed(within_seconds=_PAUSE_SECONDS)
            await self._loop.connect_accepted_socket(self._protocol, accepted)
        except BaseException:
            accepted.close()
            raise

    def _log_full(self, reason: str) -> None:
        now = self._loop.time()
        if now < self._next_line_at:
            return
        self._next_line_at = now + _LINE_SECONDS
        log(
            logger,
            logging.WARNING,
            "connections.full",
            reason=reason,
            open=len(self._connections),
            limit=self._connections.limit,
        )

    def _ended(self, accepting: asyncio.Task[None]) -> None:
        # Only now: the event loop watches the socket until the task ends.
        self._socket.close()
        with contextlib.suppress(asyncio.CancelledError):
            if (error := accepting.exception()) is not None:
                log(logger, logging.ERROR, "connections.failed", exception=error)
