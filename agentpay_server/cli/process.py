"""The server as a process of its own: how it starts, says where it is, and stops in good order.

What it is told, and how it is told to people, is the business of the command `serve`; what it serves, that of
the application.
"""

import asyncio
import contextlib
import errno
import json
import logging
import math
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final

import click
from attrs import evolve, field, frozen
from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay_server.cli.variables import KEY_VARIABLE, export_lines
from agentpay_server.config import ServerConfig
from agentpay_server.database.runner import DatabaseAwayError, DatabaseUnavailableError, StartRefusedError
from agentpay_server.embedded.port import bound_socket, url_of
from agentpay_server.http.app import Application
from agentpay_server.http.hosts import Hosts
from agentpay_server.http.port.connections import raise_descriptor_limit
from agentpay_server.http.port.server import PortServer
from agentpay_server.logs import LogFormat, log, logging_to
from agentpay_server.server import ClusterAwayError, Server, start_server
from agentpay_server.storage import open_storage

logger: logging.Logger = logging.getLogger("agentpay_server")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_CUT_OFF_SECONDS: Final = 0.5
"""How long an answer may take to leave once nobody is let wait any more."""


_START_PAUSE_SECONDS: Final = 1.0


class OptionError(Exception):
    """The value of an option is none that it can have.

    Attributes:
        option: its name.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class CannotServeError(Exception):
    """The server cannot start, or cannot go on; the message says why, and what to do."""


@frozen(kw_only=True)
class Announcement:
    """What a server says of itself once it accepts requests.

    Attributes:
        base_url: its address.
        operator_key: the first operator's key, if it was made now.
        is_key_given: whether the caller gave the key, which then is not repeated.
        rpc_url: address of the JSON-RPC of its chain; None where that is not served.
    """

    base_url: str
    operator_key: str | None = field(repr=False)
    is_key_given: bool
    rpc_url: str | None = None

    def line(self) -> str:
        """Return the line of JSON; without `operator_key` where an earlier start made the key."""
        told: dict[str, str | None] = {"base_url": self.base_url}
        if self.operator_key is not None or self.is_key_given:
            told["operator_key"] = self.operator_key
        if self.rpc_url is not None:
            told["rpc_url"] = self.rpc_url
        return json.dumps(told)

    def to_paste(self) -> str:
        """Return the lines that let the SDK and the commands in a shell reach this server."""
        lines = export_lines(self.base_url, self.operator_key)
        if self.operator_key is None:
            known = "that you gave" if self.is_key_given else "that the first start on this data printed"
            lines.append(f"Set {KEY_VARIABLE} to the operator key {known}.")
        return "\n".join(lines)


def run(
    host: str,
    port: int,
    config: ServerConfig,
    *,
    allowed_hosts: Sequence[str],
    serves_chain: bool,
    log_format: LogFormat,
    start_wait_seconds: float,
) -> None:
    """Serve until a signal says otherwise.

    Prints one JSON line on standard output once requests are accepted: `base_url`; `operator_key`, which is
    the key if it was made now, null if it was given, and left out if it was made at an earlier start; and
    `rpc_url` where the chain is served. Events are logged to standard error.

    Raises:
        OptionError: `database_url` is no address of a database; or `operator_key` is not an operator key, is
            revoked, or is another operator's.
        CannotServeError: the port, the data or the cluster is not to be had, or was lost.
    """
    try:
        sock = bound_socket(host, port)
    except OSError as error:
        raise CannotServeError(why_not_bound(host, port, error)) from None
    hosts = Hosts.of(sock.getsockname()[0], allowed_hosts)
    raise_descriptor_limit(config.settings.max_connections)
    serving = _serve(sock, hosts, config, serves_chain=serves_chain, start_wait_seconds=start_wait_seconds)
    with sock, logging_to(sys.stderr, log_format):
        try:
            asyncio.run(serving)
        except (StartRefusedError, DatabaseUnavailableError) as error:
            raise CannotServeError(str(error)) from None


def why_not_bound(host: str, port: int, error: OSError) -> str:
    """Return what to say when a port is not to be had, and what to do."""
    is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
    advice = "give another --port, or 0 for any that is free" if is_port else "give another --host"
    return f"cannot listen on {host} port {port}: {error.strerror or error}; {advice}"


async def _serve(
    sock: socket.socket,
    hosts: Hosts,
    config: ServerConfig,
    *,
    serves_chain: bool,
    start_wait_seconds: float,
) -> None:
    async def start() -> Server:
        try:
            storage = await open_storage(config)
        except ValueError as error:
            raise OptionError("--database-url", str(error)) from None
        try:
            return await start_server(config, storage)
        except ValueError as error:
            raise OptionError("--operator-key", str(error)) from None

    server = await _started(start, start_wait_seconds)
    is_key_given = config.operator_key is not None
    new_key = None if is_key_given else server.operator.key
    announcement = Announcement(base_url=url_of(sock), operator_key=new_key, is_key_given=is_key_given)
    try:
        await _serve_until_told(sock, hosts, server, announcement, serves_chain=serves_chain)
    finally:
        log(logger, logging.INFO, "server.stopped")


async def _started(start: Callable[[], Awaitable[Server]], wait_seconds: float) -> Server:
    """Start, and again for as long as database or cluster do not answer and there is time left."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while True:
        try:
            return await start()
        except (DatabaseAwayError, ClusterAwayError) as error:
            remaining_seconds = deadline - loop.time()
            if remaining_seconds <= 0:
                raise
            log(logger, logging.WARNING, "server.waiting", detail=str(error))
            await asyncio.sleep(min(_START_PAUSE_SECONDS, remaining_seconds))


async def _serve_until_told(
    sock: socket.socket, hosts: Hosts, server: Server, announcement: Announcement, *, serves_chain: bool
) -> None:
    application = Application(server)
    app: ASGIApp = application
    if serves_chain:
        from agentpay_server.http import chain_rpc  # noqa: PLC0415 - seldom asked for

        announcement = evolve(announcement, rpc_url=url_of(sock) + chain_rpc.PATH)
        app = chain_rpc.Mounted(chain_rpc.chain_rpc(server), application)
    port = _Server(application, app, hosts, server, announcement, with_websockets=serves_chain)
    lost = server.storage.lost
    watch = asyncio.create_task(port.stop_when(lost))
    try:
        await port.serve(sockets=[sock])
    finally:
        watch.cancel()
        await server.stop(within_seconds=port.remaining_seconds())
    if lost.is_set():
        raise CannotServeError(
            "the connection that kept other servers away from the database was lost; start again, and what "
            "is under way is taken up"
        )


class _Server(PortServer):
    """Says where it is reached as soon as it accepts requests, and stops in good order when it is told to.

    From the signal on nothing new is accepted. Requests under way have the time that the settings give; then
    those that wait for a transfer are told how it stands, and whatever is left is cut off.
    """

    def __init__(
        self,
        application: Application,
        app: ASGIApp,
        hosts: Hosts,
        server: Server,
        announcement: Announcement,
        *,
        with_websockets: bool,
    ) -> None:
        self._app = app
        self._owner = server
        self._announcement = announcement
        self._loop = asyncio.get_running_loop()
        self._wait_seconds = server.context.settings.shutdown_seconds
        self._ends_at: float | None = None
        cut_off_seconds = math.ceil(self._wait_seconds + _CUT_OFF_SECONDS) + 1
        super().__init__(
            application,
            hosts=hosts,
            shutdown_seconds=cut_off_seconds,
            app=self._answer,
            with_websockets=with_websockets,
        )

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Start to accept requests, and print the line that says so."""
        await super().startup(sockets=sockets)
        click.echo(self._announcement.line())
        if sys.stderr.isatty():
            # For people alone: elsewhere standard error is a log, which holds no key.
            click.echo(self._announcement.to_paste(), err=True)
        log(logger, logging.INFO, "server.started", base_url=self._announcement.base_url)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let the first signal stop the server; a second one has its usual effect, at once."""
        told = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in told.items():
                # What stops after this must not be stopped over again; a second signal still ends it.
                signal.signal(number, handler if self._ends_at is None else signal.SIG_DFL)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler
        """Begin to stop."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self._ends_at = self._loop.time() + self._wait_seconds
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._begin_to_stop, signal.Signals(sig).name)

    async def stop_when(self, lost: asyncio.Event) -> None:
        """Stop once the database is lost; there is nothing left to wait for."""
        await lost.wait()
        log(logger, logging.ERROR, "database.lost")
        self._wait_seconds = 0.0
        self._ends_at = self._loop.time()
        self.should_exit = True
        self._owner.context.tasks.close()

    def remaining_seconds(self) -> float:
        """Return how long work under way may still go on."""
        return self._wait_seconds if self._ends_at is None else max(self._ends_at - self._loop.time(), 0.0)

    def _begin_to_stop(self, name: str) -> None:
        log(logger, logging.INFO, "server.stopping", signal=name, within_seconds=self._wait_seconds)
        self._loop.call_later(self._wait_seconds, self._hurry)

    def _hurry(self) -> None:
        self._owner.context.tasks.close()
        # From here on: however late this is, those who wait have the time to be told.
        self._loop.call_later(_CUT_OFF_SECONDS, self._cut_off)

    def _cut_off(self) -> None:
        for connection in list(self.server_state.connections):
            transport: Any = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            # Cut off at the end of a stop: there is nobody left to answer.
            if self._ends_at is None:
                raise
