"""One connection with deadlines, which refuses malformed HTTP in the application's own format.

uvicorn parses and prints HTTP; `Guarded` adds deadlines and refusals to each of its parsers. A connection
either has a request in service or waits for its peer, and each kind of wait has a deadline:

    HEAD      the rest of a request's head          ──► 408, then closed (closed silently if nothing arrived)
    IDLE      another request                       ──► closed
    BODY      a body that the application reads     ──► the application's deadline for bodies
    REST      the rest of a body that is not needed ──► dropped
    RESPONSE  the peer to read a response           ──► dropped
    LINGER    the peer to read a refusal            ──► dropped
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import h11
from attrs import frozen
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from agentpay.contract.errors import ErrorCode
from agentpay_server.http.hosts import Hosts
from agentpay_server.http.port.admission import admit, malformed
from agentpay_server.http.port.connections import Connections
from agentpay_server.http.requests import DROP, REFUSED, SHARE
from agentpay_server.http.responses import Headers
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.settings import Settings

Refusal = Callable[[Problem], tuple[int, Headers, bytes]]

_LINGER_SECONDS: Final = 2.0
"""How long a refused peer may keep sending: closing earlier could reset the connection before it reads."""

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
    refusal: Refusal
    hosts: Hosts
    connections: Connections
    seconds: Mapping[Wait, float]

    @property
    def share(self) -> int:
        """Maximum number of one operator's requests in service, so that others can connect."""
        return max(self.connections.limit * 3 // 4, 1)


def seconds_of(settings: Settings) -> Mapping[Wait, float]:
    return {
        Wait.HEAD: settings.head_timeout_seconds,
        Wait.IDLE: settings.idle_timeout_seconds,
        Wait.REST: settings.head_timeout_seconds,
        Wait.RESPONSE: settings.body_timeout_seconds,
        Wait.LINGER: _LINGER_SECONDS,
    }


if TYPE_CHECKING:

    class _Parser(asyncio.Protocol):
        app: Any
        flow: Any
        logger: logging.Logger
        access_log: bool
        loop: asyncio.AbstractEventLoop
        server_state: ServerState
        transport: asyncio.Transport
        scope: Any

        def __init__(
            self,
            config: Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None: ...
        def _unset_keepalive_if_required(self) -> None: ...
        def on_response_complete(self) -> None: ...
        def _should_upgrade_to_ws(self) -> bool: ...
        def shutdown(self) -> None: ...

else:
    _Parser = asyncio.Protocol


class Guarded(_Parser):
    """A mixin for uvicorn's protocols."""

    def __init__(
        self,
        port: Port,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger: logging.Logger = _LOGGER
        self.access_log: bool = False
        self._port = port
        self._wait: Wait | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._is_websocket = False
        self._refusal: Problem | None = None
        self.app: ASGIApp = self._serve

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._port.connections.opened(self)
        self._await(Wait.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)
        self._port.connections.closed(self)

    def data_received(self, data: bytes) -> None:
        """Discard data after a refusal."""
        if not self._is_refused:
            super().data_received(data)
            self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()
        self._look()
        if self._refusal is not None and self._wait is not None and not self.transport.is_closing():
            self._refuse(self._refusal)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def shutdown(self) -> None:
        """Close once the request in service, if any, has its response."""
        if self._is_refused:
            self.transport.abort()
        else:
            super().shutdown()
            self._look()

    def drop(self) -> None:
        """Close at once, to make room for another connection."""
        self._await(None)
        self.transport.abort()

    def _leave(self) -> None:
        """Hand the connection to a WebSocket, which the application bounds."""
        self._is_websocket = True
        self._await(None)
        self._port.connections.closed(self)

    def _should_upgrade_to_ws(self) -> bool:
        """An unaccepted host is refused like for any other request."""
        if not super()._should_upgrade_to_ws():
            return False
        scope: Scope = dict(self.scope)
        return admit(scope, self._port.hosts) and REFUSED not in scope

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's own text
        """Refuse malformed data, for which uvicorn would respond in plain text."""
        self._refuse(malformed())

    def _served(self) -> Any:  # noqa: ANN401 - uvicorn's RequestResponseCycle
        """Return the request in service, or the last one; None before the first."""
        raise NotImplementedError

    def _is_in_body(self) -> bool:
        raise NotImplementedError

    def _is_in_head(self) -> bool:
        raise NotImplementedError

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_refused:
            # The body turned out to be malformed in the meantime.
            return
        scope[DROP] = self.transport.abort
        scope[SHARE] = self._port.share
        is_certain = admit(scope, self._port.hosts)
        await self._port.app(scope, receive, send if is_certain else _closing(send))

    def _look(self) -> None:
        if self._is_refused or self._is_websocket:
            return
        served = self._served()
        wait: Wait | None
        if self.transport.is_closing() or self.flow.write_paused:
            wait = Wait.RESPONSE
        elif served is not None and not served.response_complete:
            wait = Wait.BODY if served.more_body else None
        elif self._is_in_body():
            wait = Wait.REST
        elif served is None or self._is_in_head():
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
        seconds = self._port.seconds.get(wait)
        if seconds is not None:
            self._deadline = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        wait, self._deadline = self._wait, None
        if wait is not Wait.IDLE:
            self._port.connections.count_dropped("slow")
        if wait is Wait.HEAD and self._is_in_head():
            seconds = self._port.seconds[Wait.HEAD]
            message = f"The head of the request did not arrive within {seconds:g} s; retry the request."
            self._refuse(Problem(ErrorCode.REQUEST_TIMEOUT, message))
        elif wait in (Wait.HEAD, Wait.IDLE):
            self.transport.close()
            self._look()
        else:
            self.transport.abort()

    def _refuse(self, problem: Problem) -> None:
        """Refuse malformed data, and close after the peer has read the refusal."""
        served = self._served()
        if served is not None and not served.response_complete:
            if not served.more_body:
                # The request in service is complete: its response is sent first.
                self._refusal = problem
                self.flow.pause_reading()
                return
            # The application waits for a body that cannot be completed: report a disconnect.
            served.disconnected = True
            served.message_event.set()
            if served.response_started:
                self.transport.abort()
                return
        elif self._wait is Wait.REST:
            self.transport.close()
            self._look()
            return
        self._is_refused = True
        self._send(*self._port.refusal(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._await(Wait.LINGER)

    def _send(self, status: int, headers: Headers, body: bytes) -> None:
        line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode("ascii")
        fields = (*self.server_state.default_headers, *headers, _CLOSE)
        head = b"".join(b"%s: %s\r\n" % field for field in fields)
        self.transport.write(b"".join((line, head, b"\r\n", body)))


class GuardedH11(Guarded, H11Protocol):
    def _served(self) -> Any:  # noqa: ANN401 - as its base has it
        return self.cycle

    def _is_in_body(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY

    def _is_in_head(self) -> bool:
        return bool(self.conn.trailing_data[0])

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._leave()
        super().handle_websocket_upgrade(event)


def _closing(send: Send) -> Send:
    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"].append(_CLOSE)
        await send(message)

    return closing
