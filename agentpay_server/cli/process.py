"""The server as a process: starting, announcing its URL, and stopping gracefully.

The command `serve` has the options and prints the errors.
"""

import asyncio
import contextlib
import errno
import gc
import json
import logging
import math
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from attrs import evolve, field, frozen
from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay.cli.options import KEY_VARIABLE, export_lines
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import ClusterAwayError, open_storage
from agentpay_server.assembly.server import Server, start_server
from agentpay_server.database.runner import DatabaseAwayError, DatabaseUnavailableError, StartRefusedError
from agentpay_server.http.app import Application
from agentpay_server.http.hosts import Hosts
from agentpay_server.http.port import PortServer, raise_descriptor_limit
from agentpay_server.platform.logs import LogFormat, log, logging_to
from agentpay_server.testkit.embedded.port import bound_socket, url_of

if TYPE_CHECKING:
    from agentpay_server.plugins.scenes.document import Scene
    from agentpay_server.plugins.scenes.hosting import SceneHost

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("agentpay_server")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_RESPONSE_SECONDS: Final = 0.5
"""How long sending responses may take after waiting callers are released."""


_START_PAUSE_SECONDS: Final = 1.0

_GC_THRESHOLDS: Final = (10_000, 20, 20)
"""Objects, and collections of younger generations, before each collection; 700, 10 and 10 by default."""


@frozen(kw_only=True)
class Announcement:
    """The line that a server prints once it accepts requests.

    Attributes:
        operator_key: key of the first operator, if this start created it.
        is_key_given: the user passed the key, which is then not printed.
    """

    base_url: str
    operator_key: str | None = field(repr=False)
    is_key_given: bool
    rpc_url: str | None = None
    facilitator_url: str | None = None
    console_url: str | None = field(default=None, repr=False)
    scene: Mapping[str, Any] | None = field(default=None, repr=False)

    def line(self) -> str:
        """Leave out `operator_key` if an earlier start created the key."""
        fields: dict[str, Any] = {"base_url": self.base_url}
        if self.operator_key is not None or self.is_key_given:
            fields["operator_key"] = self.operator_key
        if self.rpc_url is not None:
            fields["rpc_url"] = self.rpc_url
            fields["facilitator_url"] = self.facilitator_url
        if self.console_url is not None:
            fields["console_url"] = self.console_url
        if self.scene is not None:
            fields["scene"] = self.scene
        return json.dumps(fields)

    def to_paste(self) -> str:
        """Return shell lines that connect the SDK and the commands to this server."""
        lines = export_lines(self.base_url, self.operator_key)
        if self.operator_key is None:
            known = "that you passed" if self.is_key_given else "that the first start on this data printed"
            lines.append(f"Set {KEY_VARIABLE} to the operator key {known}.")
        if self.scene is not None:
            lines += [f"Seller {name}: {url}" for name, url in self.scene["sellers"].items()]
        if self.console_url is not None:
            lines.append(f"Operator console (the link works once, within 10 minutes): {self.console_url}")
        return "\n".join(lines)


def run(
    host: str,
    port: int,
    config: ServerConfig,
    *,
    allowed_hosts: Sequence[str],
    serves_chain: bool,
    scene: "Scene | None",
    log_format: LogFormat,
    log_level: int,
    start_wait_seconds: float,
) -> None:
    """Serve until a signal arrives.

    Prints the announcement on standard output once requests are accepted: `operator_key` is the new key, null
    if it was passed, omitted if an earlier start created it. Events are logged to standard error.

    Raises:
        BadParameter: `scene` cannot be built; `database_url` is not the URL of a database; or `operator_key`
            is not an operator key, is revoked, or belongs to another operator.
        ClickException: the port, the data or the cluster is unavailable.
    """
    try:
        sock = bound_socket(host, port)
    except OSError as error:
        raise click.ClickException(why_not_bound(host, port, error)) from None
    hosts = Hosts.of(sock.getsockname()[0], allowed_hosts)
    raise_descriptor_limit(config.settings.max_connections)
    serving = _serve(
        sock, hosts, config, serves_chain=serves_chain, scene=scene, start_wait_seconds=start_wait_seconds
    )
    with sock, logging_to(sys.stderr, log_format, log_level):
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(serving)
        except (StartRefusedError, DatabaseUnavailableError) as error:
            raise click.ClickException(str(error)) from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the event loop: uvloop's if it is installed, else None for asyncio's."""
    if find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def why_not_bound(host: str, port: int, error: OSError) -> str:
    is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
    advice = "pass another --port, or 0 for any free port" if is_port else "pass another --host"
    return f"cannot listen on {host} port {port}: {error.strerror or error}; {advice}"


async def _serve(
    sock: socket.socket,
    hosts: Hosts,
    config: ServerConfig,
    *,
    serves_chain: bool,
    scene: "Scene | None",
    start_wait_seconds: float,
) -> None:
    async def start() -> Server:
        try:
            storage = await open_storage(config)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--database-url") from None
        try:
            return await start_server(config, storage)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--operator-key") from None

    deadline = asyncio.get_running_loop().time() + start_wait_seconds
    server = await _started(start, deadline)
    _freeze_garbage_collection()
    is_key_given = config.operator_key is not None
    new_key = None if is_key_given else server.operator.key
    announcement = Announcement(
        base_url=url_of(sock),
        operator_key=new_key,
        is_key_given=is_key_given,
        console_url=await _console_url(server, url_of(sock), deadline),
    )
    try:
        await _serve_until_stopped(sock, hosts, server, announcement, serves_chain=serves_chain, scene=scene)
    finally:
        log(logger, logging.INFO, "server.stopped")


def _freeze_garbage_collection() -> None:
    """Leave what the start has made out of garbage collections, and make them rarer.

    They would look through all modules again and again. Only here, in a process of our own.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def _started(start: Callable[[], Awaitable[T]], deadline: float) -> T:
    """While the database or cluster does not respond, retry until `deadline`, in the event loop's time."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await start()
        except (DatabaseAwayError, ClusterAwayError) as error:
            remaining_seconds = deadline - loop.time()
            if remaining_seconds <= 0:
                raise
            log(logger, logging.WARNING, "server.waiting", detail=str(error))
            await asyncio.sleep(min(_START_PAUSE_SECONDS, remaining_seconds))


async def _console_url(server: Server, base_url: str, deadline: float) -> str | None:
    """Return the link to the console; None if it is not served, or if the database fails until `deadline`.

    The server starts without the link: to fail now would lose the new operator key.
    """
    if not server.context.settings.serves_dashboard:
        return None
    try:
        from agentpay_server.plugins import console as dashboard  # noqa: PLC0415 - a plug-in

        return await _started(partial(dashboard.console_url, server, base_url), deadline)
    except Exception as error:  # noqa: BLE001 - whatever it is, the server works
        log(logger, logging.ERROR, "console.no_link", exception=error)
        return None


async def _serve_until_stopped(
    sock: socket.socket,
    hosts: Hosts,
    server: Server,
    announcement: Announcement,
    *,
    serves_chain: bool,
    scene: "Scene | None",
) -> None:
    application = Application(server)
    app: ASGIApp = application
    sellers: SceneHost | None = None
    if scene is not None:
        from agentpay_server.plugins.scenes import hosting  # noqa: PLC0415 - seldom asked for
        from agentpay_server.plugins.scenes.building import incomplete  # noqa: PLC0415 - as above
        from agentpay_server.plugins.scenes.document import SceneError  # noqa: PLC0415 - as above

        sellers = hosting.SceneHost(application, server)
        try:
            # Before the port opens, so that no client sees half of one.
            announcement = evolve(announcement, scene=(await sellers.build_first(scene)).to_dict())
        except BaseException as error:
            await sellers.close()
            await server.stop(within_seconds=0)
            if isinstance(error, SceneError):
                reason = incomplete(error, server.config)
                raise click.BadParameter(f"{reason}.", param_hint="--scene") from None
            raise
    if serves_chain:
        from agentpay_server.plugins.facilitator import service as facilitator  # noqa: PLC0415 - seldom asked for
        from agentpay_server.plugins.node import app as chain_rpc  # noqa: PLC0415 - seldom asked for

        announcement = evolve(
            announcement,
            rpc_url=url_of(sock) + chain_rpc.PATH,
            facilitator_url=url_of(sock) + facilitator.PATH,
        )
        node = chain_rpc.node_of(server)
        node.chain.rpc_url = announcement.rpc_url
        app = chain_rpc.mounted(server, node, application)
    port = _GracefulServer(
        application,
        app,
        hosts,
        server,
        announcement,
        with_websockets=serves_chain,
    )
    try:
        await port.serve(sockets=[sock])
    finally:
        if sellers is not None:
            await sellers.close()
        await server.stop(within_seconds=port.remaining_seconds())


class _GracefulServer(PortServer):
    """Stops gracefully on a signal: requests in progress may continue for `shutdown_seconds`.

    Then requests that wait for a transfer return its current state, and all others are aborted.
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
        abort_seconds = math.ceil(self._wait_seconds + _RESPONSE_SECONDS) + 1
        super().__init__(
            application,
            hosts=hosts,
            shutdown_seconds=abort_seconds,
            app=self._answer,
            with_websockets=with_websockets,
        )

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        # The last step that can fail. The socket listens, and what connects now is accepted next.
        click.echo(self._announcement.line())
        if sys.stderr.isatty():
            # Only on a terminal: elsewhere standard error is a log, which must contain neither key nor code.
            click.echo(self._announcement.to_paste(), err=True)
        await super().startup(sockets=sockets)
        log(logger, logging.INFO, "server.started", base_url=self._announcement.base_url)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let the first signal stop the server gracefully, and a second one end the process."""
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                # While stopping, the default handler lets a second signal end the process.
                signal.signal(number, handler if self._ends_at is None else signal.SIG_DFL)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self._ends_at = self._loop.time() + self._wait_seconds
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._begin_to_stop, signal.Signals(sig).name)

    def remaining_seconds(self) -> float:
        return self._wait_seconds if self._ends_at is None else max(self._ends_at - self._loop.time(), 0.0)

    def _begin_to_stop(self, name: str) -> None:
        self._owner.end_streams()
        log(logger, logging.INFO, "server.stopping", signal=name, within_seconds=self._wait_seconds)
        self._loop.call_later(self._wait_seconds, self._hurry)

    def _hurry(self) -> None:
        self._owner.context.tasks.close()
        # Scheduled only now, so that released callers have time to receive their response.
        self._loop.call_later(_RESPONSE_SECONDS, self._abort)

    def _abort(self) -> None:
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
            # Aborted at the end of a stop. The connection is closed, so there is no response.
            if self._ends_at is None:
                raise
