"""A port: uvicorn's server with guarded, limited connections."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, Protocol

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay.contract.requests import BODY_MAX_BYTES
from agentpay_server.http.hosts import Hosts
from agentpay_server.http.port.acceptor import Acceptor
from agentpay_server.http.port.admission import HEAD_MAX_BYTES
from agentpay_server.http.port.connections import Connections, connection_limit
from agentpay_server.http.port.guarded import Guarded, GuardedH11, Port, seconds_of
from agentpay_server.http.responses import Headers
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.logs import log
from agentpay_server.platform.metrics import Metrics
from agentpay_server.platform.settings import Settings

_SLACK_BYTES: Final = 1024
"""For the parts of a head that `admit` does not count, such as the method."""

logger: logging.Logger = logging.getLogger(__name__)


def parser() -> type[Guarded]:
    if find_spec("httptools") is None:
        return GuardedH11
    from agentpay_server.http.port.fast import GuardedHttptools  # noqa: PLC0415 - an extra's

    return GuardedHttptools


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
            seconds=seconds_of(settings),
        )
        self._parser = parser()
        super().__init__(
            uvicorn.Config(
                self._port.app,
                # uvicorn does not recognize a bound method.
                interface="asgi3",
                http=self._parser,
                # `admit` has the exact limit.
                h11_max_incomplete_event_size=HEAD_MAX_BYTES + _SLACK_BYTES,
                ws="websockets-sansio" if with_websockets else "none",
                ws_max_size=BODY_MAX_BYTES,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=shutdown_seconds,
            )
        )
        if limit < settings.max_connections:
            wanted = settings.max_connections
            log(logger, logging.WARNING, "connections.limited", limit=limit, max_connections=wanted)

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        make = partial(
            self._parser,
            self._port,
            self.config,
            self.server_state,
            {},
            asyncio.get_running_loop(),
        )
        # uvicorn expects `asyncio.Server`, but only closes them.
        self.servers: list[Any] = [Acceptor(sock, self._port.connections, make) for sock in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:  # noqa: ARG002
        """The acceptors close their own sockets."""
        await super().shutdown(None)
