"""A real loopback port for a server that runs in process, by uvicorn on the owner's loop."""

import asyncio
import socket
from typing import Any, Final

import uvicorn

SHUTDOWN_SECONDS: Final = 5
"""How long requests that are under way may take when a port closes; what is left then is cut off."""


class Listener:
    """Serves an ASGI application on a socket until it is closed."""

    def __init__(self, app: Any, sock: socket.socket) -> None:  # noqa: ANN401 - any ASGI application
        self._server = uvicorn.Server(server_config(app))
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
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        self._socket.close()


def server_config(
    app: Any,  # noqa: ANN401 - any ASGI application
    *,
    shutdown_seconds: int = SHUTDOWN_SECONDS,
) -> uvicorn.Config:
    """Return how every port is served: bounded in what it reads before a key is known, and in how it ends."""
    return uvicorn.Config(
        app,
        # Told, since a bound method is not seen to be one.
        interface="asgi3",
        # The one that bounds what it keeps of a head that is not complete.
        http="h11",
        ws="none",
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
