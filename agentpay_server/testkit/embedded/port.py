"""A real loopback port for an in-process server, by uvicorn on the server's event loop."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Final

from agentpay_server.http.hosts import Hosts
from agentpay_server.http.port import PortServer, Served

SHUTDOWN_SECONDS: Final = 5
"""How long requests in progress may take when a port closes, before they are aborted."""
_TURNS_TO_CLOSE: Final = 3


class Listener(PortServer):
    """Serves until it is closed; ValueError if one of `allowed_hosts` is not a host.

    Stops without delay, for fast tests: uvicorn checks for a stop only ten times a second.
    """

    def __init__(
        self,
        application: Served,
        app: Any,  # noqa: ANN401 - any ASGI application
        sock: socket.socket,
        allowed_hosts: Iterable[str] = (),
        *,
        with_websockets: bool = False,
    ) -> None:
        super().__init__(
            application,
            hosts=Hosts.of(sock.getsockname()[0], allowed_hosts),
            shutdown_seconds=SHUTDOWN_SECONDS,
            app=app,
            with_websockets=with_websockets,
        )
        self._socket = sock
        self._serving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def base_url(self) -> str:
        return url_of(self._socket)

    async def start(self) -> None:
        """Return once requests are accepted."""
        self._serving = asyncio.get_running_loop().create_task(self.serve(sockets=[self._socket]))
        while not self.started:
            if self._serving.done():
                self._serving.result()
                raise RuntimeError("the listener stopped before it accepted requests")
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        self.should_exit = True
        self._stopping.set()
        if self._serving is not None:
            await self._serving

    async def main_loop(self) -> None:
        """Update the date header of responses until stopped."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1.0)

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Close the port and idle connections, and the others once they have their response."""
        await self.stop_accepting()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for _ in range(_TURNS_TO_CLOSE):
            # uvicorn removes a closed connection within the next turns of the loop.
            await asyncio.sleep(0)
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Port 0 selects a free one."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise OSError(errno.EINVAL, "the host name is invalid") from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the protocol is explicit. Otherwise each response on a
    # kept-alive connection waits about 40 ms for the client's delayed acknowledgement.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(1024)
    except OSError:
        sock.close()
        raise
    return sock


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
