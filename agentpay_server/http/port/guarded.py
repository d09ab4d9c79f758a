"""One connection with deadlines: uvicorn reads and writes HTTP, by h11.

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
import logging
from collections.abc import Callable, Mapping
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final

import h11
from attrs import frozen
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from agentpay.contract.errors import ErrorCode
from agentpay_server.http.hosts import Hosts
from agentpay_server.http.port.admission import admit, malformed
from agentpay_server.http.port.connections import Connections
from agentpay_server.http.requests import DROP, REFUSED, SHARE
from agentpay_server.http.responses import Headers
from agentpay_server.platform.errors import Problem

# Silences uvicorn's warnings about malformed requests, which the application logs. By a filter, because a
# uvicorn server elsewhere in this process resets levels.
_LOGGER: Final = logging.getLogger("uvicorn.error.connections")
_LOGGER.addFilter(lambda record: record.levelno >= logging.ERROR)

_CLOSE: Final = (b"connection", b"close")


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
