"""A port: uvicorn's server, a limit on its connections, and deadlines for what each waits for.

uvicorn reads and writes HTTP, by h11.

A connection with a request in service is never dropped. One that waits for its peer (to send a request or the
rest of one, or to read a response) can be: a retry loses nothing. At the limit, each new connection replaces
the one that has waited longest, so slow or silent peers cannot lock others out. If none waits, new ones stay
in the kernel's backlog; asyncio's own servers would accept them, and fail without file descriptors.

A connection either has a request in service or waits for its peer, and each kind of wait has a deadline:

    HEAD      the rest of a request's head          ──► 408, then closed (closed silently if nothing arrived)
    IDLE      another request                       ──► closed
    BODY      a body that the application reads     ──► the application's deadline for bodies
    REST      the rest of a body that is not needed ──► dropped
    RESPONSE  the peer to read a response           ──► dropped
    LINGER    the peer to read a refusal            ──► dropped

Of uvicorn, this uses what a protocol of asyncio has, and the attributes that are no names with an underscore.
"""

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol

import h11
import uvicorn
from attrs import frozen
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from agentpay.contract.errors import ErrorCode
from agentpay.contract.requests import BODY_MAX_BYTES
from agentpay_server.http.admission import HEAD_MAX_BYTES, admit, malformed
from agentpay_server.http.hosts import Hosts
from agentpay_server.http.requests import DROP, REFUSED, SHARE, WHOLE
from agentpay_server.http.responses import Headers
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import Metrics, log
from agentpay_server.platform.settings import Settings

try:
    import resource
except ImportError:  # Windows has no such limit.
    resource = None  # type: ignore[assignment]

_SLACK_BYTES: Final = 1024
"""For the parts of a head that `admit` does not count, such as the method."""

_LINGER_SECONDS: Final = 2.0
"""How long a refused peer may keep sending: closing earlier could reset the connection before it reads."""

_OTHER_DESCRIPTORS: Final = 400
"""File descriptors for everything else: 256 deliveries, the database, the chain, files."""

_PAUSE_SECONDS: Final = 1.0
"""Pause before accepting is retried, unless a connection closes earlier."""

_LINE_SECONDS: Final = 60.0

_CLOSE: Final = (b"connection", b"close")

logger: logging.Logger = logging.getLogger(__name__)

# Silences uvicorn's warnings about malformed requests, which the application logs. By a filter, because a
# uvicorn server elsewhere in this process resets levels.
_LOGGER: Final = logging.getLogger("uvicorn.error.connections")
_LOGGER.addFilter(lambda record: record.levelno >= logging.ERROR)


class Served(Protocol):
    """`metrics` receives the port's counts."""

    settings: Settings
    metrics: Metrics

    def refusal(self, problem: Problem) -> tuple[int, Headers, bytes]:
        """Refuse malformed HTTP: status, headers and body."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class PortServer(uvicorn.Server):
    """Requests in service may continue for `shutdown_seconds` after the port closes.

    `app` is `application` in a wrapper.
    """

    def __init__(
        self,
        application: Served,
        *,
        hosts: Hosts,
        shutdown_seconds: int,
        app: ASGIApp | None = None,
        with_websockets: bool = False,
    ) -> None:
        settings, metrics = application.settings, application.metrics
        limit = connection_limit(settings.max_connections)
        self._port = Port(
            app=app or application,
            refusal=application.refusal,
            hosts=hosts,
            connections=Connections(limit, metrics),
            seconds={
                Wait.HEAD: settings.head_timeout_seconds,
                Wait.IDLE: settings.idle_timeout_seconds,
                Wait.REST: settings.head_timeout_seconds,
                Wait.RESPONSE: settings.body_timeout_seconds,
                Wait.LINGER: _LINGER_SECONDS,
            },
        )
        self._accepting: list[asyncio.Task[None]] = []
        super().__init__(
            uvicorn.Config(
                self._port.serve_websocket,
                # uvicorn does not recognize a bound method.
                interface="asgi3",
                http=Guarded,
                # `admit` has the exact limit.
                h11_max_incomplete_event_size=HEAD_MAX_BYTES + _SLACK_BYTES,
                ws="websockets-sansio" if with_websockets else "none",
                ws_max_size=BODY_MAX_BYTES,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                # The deadline of `Guarded` is earlier.
                timeout_keep_alive=math.ceil(settings.idle_timeout_seconds) + 1,
                timeout_graceful_shutdown=shutdown_seconds,
            )
        )
        if limit < settings.max_connections:
            wanted = settings.max_connections
            log(logger, logging.WARNING, "connections.limited", limit=limit, max_connections=wanted)

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Accept connections up to the limit, which servers of asyncio do not have."""
        make = partial(
            Guarded,
            self._port,
            config=self.config,
            server_state=self.server_state,
            app_state={},
            _loop=asyncio.get_running_loop(),
        )
        accepting = self._port.connections.accept
        self._accepting = [asyncio.create_task(accepting(sock, make)) for sock in sockets or ()]
        for task in self._accepting:
            task.add_done_callback(_log_failure)
        self.servers: list[Any] = []
        self.started = True

    async def stop_accepting(self) -> None:
        """Close each socket, at the end of the task that accepts from it."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Let requests in service continue, within the limit."""
        await self.stop_accepting()
        await super().shutdown(None)


def _log_failure(accepting: asyncio.Task[None]) -> None:
    if not accepting.cancelled() and (error := accepting.exception()) is not None:
        log(logger, logging.ERROR, "connections.failed", exception=error)


class Connections:
    def __init__(self, limit: int, metrics: Metrics) -> None:
        self.limit: int = limit
        self._metrics = metrics
        self._open: set[Guarded] = set()
        self._waiting: dict[Guarded, None] = {}
        self._changed = asyncio.Event()
        self._next_line_at = 0.0

    def opened(self, connection: "Guarded") -> None:
        self._open.add(connection)
        self._metrics.connections += 1

    def closed(self, connection: "Guarded") -> None:
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._open.remove(connection)
            self._metrics.connections -= 1
        self._changed.set()

    def waits(self, connection: "Guarded") -> None:
        """The connection now waits for its peer."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._waiting[connection] = None
            self._changed.set()

    def serves(self, connection: "Guarded") -> None:
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


class Wait(Enum):
    HEAD = auto()
    IDLE = auto()
    BODY = auto()
    REST = auto()
    RESPONSE = auto()
    LINGER = auto()


@frozen(kw_only=True)
class Port:
    """The state that the connections of one port share.

    `refusal` counts and logs malformed HTTP; returns status, headers and body. `seconds` are the deadlines,
    unless the application bounds a wait.
    """

    app: ASGIApp
    refusal: Callable[[Problem], tuple[int, Headers, bytes]]
    hosts: Hosts
    connections: Connections
    seconds: Mapping[Wait, float]

    async def serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the upgrade for a host that is not accepted, as any request."""
        request = {**scope, "method": "GET"}
        problem = request.get(REFUSED) if admit(request, self.hosts) else malformed()
        if problem is None:
            await self.app(scope, receive, send)
            return
        status, headers, body = self.refusal(problem)
        await receive()
        await send({"type": "websocket.http.response.start", "status": status, "headers": list(headers)})
        await send({"type": "websocket.http.response.body", "body": body})

    @property
    def share(self) -> int:
        """Maximum number of one operator's requests in service, so that others can connect."""
        return max(self.connections.limit * 3 // 4, 1)


class Guarded(H11Protocol):
    def __init__(self, port: Port, **options: Any) -> None:  # noqa: ANN401 - those of uvicorn
        super().__init__(**options)
        self.logger: logging.Logger = _LOGGER
        self.access_log: bool = False
        self.app: Any = self._serve
        self._port = port
        self._wait: Wait | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._port.connections.opened(self)
        self._await(Wait.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)
        self._port.connections.closed(self)

    def data_received(self, data: bytes) -> None:
        """Discard data after a refusal."""
        if self._wait is not Wait.LINGER:
            super().data_received(data)
            self._update_wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_wait()

    def shutdown(self) -> None:
        """Close once the request in service, if any, has its response."""
        if self._wait is Wait.LINGER:
            self.transport.abort()
        else:
            super().shutdown()
            self._update_wait()

    def drop(self) -> None:
        """Close at once, to make room for another connection."""
        self._await(None)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's own text
        """Refuse malformed data, for which uvicorn would respond in plain text."""
        if self._wait is Wait.REST:
            self.transport.close()
        elif self._is_in_service() and self.cycle.response_started:
            self.transport.abort()
        else:
            self._refuse(malformed())

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to the WebSocket, which the application bounds."""
        self._await(None)
        self._port.connections.closed(self)
        super().handle_websocket_upgrade(event)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[DROP] = self.transport.abort
        scope[SHARE] = self._port.share
        scope[WHOLE] = lambda: not self.cycle.more_body
        if admit(scope, self._port.hosts):
            await self._port.app(scope, receive, send)
        else:
            self._refuse(malformed())

    def _served(self) -> RequestResponseCycle | None:
        """Return the request in service, or the last one; None before the first."""
        return self.cycle

    def _is_in_service(self) -> bool:
        served = self._served()
        return served is not None and not served.response_complete

    def _update_wait(self) -> None:
        if self._wait is Wait.LINGER or self.transport.get_protocol() is not self:
            return
        wait: Wait | None
        if self.transport.is_closing() or self.flow.write_paused:
            wait = Wait.RESPONSE
        elif self._is_in_service():
            wait = Wait.BODY if self.cycle.more_body else None
        elif self.conn.their_state is h11.SEND_BODY:
            wait = Wait.REST
        elif self._served() is None or self.conn.trailing_data[0]:
            wait = Wait.HEAD
        else:
            wait = Wait.IDLE
        self._await(wait)

    def _await(self, wait: Wait | None) -> None:
        """A wait of the same kind keeps its deadline."""
        if wait is self._wait:
            return
        self._wait = wait
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if wait is None:
            self._port.connections.serves(self)
            return
        self._port.connections.waits(self)
        if (seconds := self._port.seconds.get(wait)) is not None:
            self._deadline = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        wait, self._deadline = self._wait, None
        if wait is not Wait.IDLE:
            self._port.connections.count_dropped("slow")
        if wait is Wait.HEAD and self.conn.trailing_data[0]:
            seconds = self._port.seconds[Wait.HEAD]
            message = f"The head of the request did not arrive within {seconds:g} s; retry the request."
            self._refuse(Problem(ErrorCode.REQUEST_TIMEOUT, message))
        elif wait in (Wait.HEAD, Wait.IDLE):
            self.transport.close()
            self._update_wait()
        else:
            self.transport.abort()

    def _refuse(self, problem: Problem) -> None:
        """Respond, and close after the peer has read the refusal.

        To an application that reads a body which turned out to be malformed, the peer is gone.
        """
        if self._wait is Wait.LINGER or self.transport.is_closing():
            return
        if (served := self._served()) is not None:
            served.disconnected = True
            served.message_event.set()
        status, headers, body = self._port.refusal(problem)
        fields = (*self.server_state.default_headers, *headers, _CLOSE)
        head = b"".join(b"%s: %s\r\n" % field for field in fields)
        line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode("ascii")
        self.transport.write(b"".join((line, head, b"\r\n", body)))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._await(Wait.LINGER)
