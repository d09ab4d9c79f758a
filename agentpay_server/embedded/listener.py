"""A real loopback port for a server that runs in process, by uvicorn on the owner's loop."""

import asyncio
import contextlib
import errno
import socket
from typing import Any, Final

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentpay.contract.requests import BODY_MAX_BYTES
from agentpay_server.http.exchange import DROP

SHUTDOWN_SECONDS: Final = 5
"""How long requests that are under way may take when a port closes; what is left then is cut off."""
_TURNS_TO_CLOSE: Final = 3


class Listener:
    """Serves an ASGI application on a socket until it is closed."""

    def __init__(
        self,
        app: Any,  # noqa: ANN401 - any ASGI application
        sock: socket.socket,
        *,
        with_websockets: bool = False,
    ) -> None:
        self._server = _Server(server_config(app, with_websockets=with_websockets))
        self._socket = sock
        self._serving: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        """Where the application is reached."""
        return url_of(self._socket)

    async def start(self) -> None:
        """Return once requests are accepted."""
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise RuntimeError("the listener stopped before it accepted requests")
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        """Answer what is under way, then let go of the socket."""
        self._server.stop()
        if self._serving is not None:
            await self._serving
        self._socket.close()


class _Server(uvicorn.Server):
    """Stops as soon as it is told to and has nothing to wait for: uvicorn looks ten times in a second.

    A test that opens a port pays for every one of those tenths.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    def stop(self) -> None:
        """Begin to stop."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        """Keep the date of answers current until it is told to stop."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), 1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let go of the port and of idle connections, and of the others when they are answered."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for _ in range(_TURNS_TO_CLOSE):
            # A connection that is closed is gone in one of the next turns of the loop.
            await asyncio.sleep(0)
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)


class _Protocol(H11Protocol):
    """One connection, which the application may drop: ASGI itself has no word for that."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as its base takes them
        super().__init__(*args, **kwargs)
        served = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope[DROP] = self.transport.abort
            await served(scope, receive, send)

        self.app = app


def server_config(
    app: Any,  # noqa: ANN401 - any ASGI application
    *,
    shutdown_seconds: int = SHUTDOWN_SECONDS,
    with_websockets: bool = False,
) -> uvicorn.Config:
    """Return how every port is served: bounded in what it reads before a key is known, and in how it ends."""
    return uvicorn.Config(
        app,
        # Told, since a bound method is not seen to be one.
        interface="asgi3",
        # The one that bounds what it keeps of a head that is not complete.
        http=_Protocol,
        ws="websockets-sansio" if with_websockets else "none",
        ws_max_size=BODY_MAX_BYTES,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=shutdown_seconds,
    )


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: address to bind.
        port: port to bind; 0 takes a free one.

    Raises:
        OSError: the address is not to be had.
    """
    try:
        host.encode("idna")
    except UnicodeError:
        raise OSError(errno.EINVAL, "this is no name that a host can have") from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only where the protocol is named does asyncio switch Nagle's algorithm off, which else holds each answer
    # on a kept connection back until the caller's delayed acknowledgement, some 40 ms.
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
    """Return the address of a listening socket as a URL."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
