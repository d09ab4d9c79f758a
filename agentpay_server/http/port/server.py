"""A port: uvicorn's server with guarded, limited connections."""

import asyncio
import logging
import math
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay.contract.requests import BODY_MAX_BYTES
from agentpay_server.http.hosts import Hosts
from agentpay_server.http.port.admission import HEAD_MAX_BYTES
from agentpay_server.http.port.connections import Connections, connection_limit
from agentpay_server.http.port.guarded import Guarded, Port, Wait
from agentpay_server.http.responses import Headers
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import log
from agentpay_server.platform.metrics import Metrics
from agentpay_server.platform.settings import Settings

_SLACK_BYTES: Final = 1024
"""For the parts of a head that `admit` does not count, such as the method."""

_LINGER_SECONDS: Final = 2.0
"""How long a refused peer may keep sending: closing earlier could reset the connection before it reads."""

logger: logging.Logger = logging.getLogger(__name__)


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
