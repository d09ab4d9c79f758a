"""`agentpay-server`: the server as a process (decisions, "What stands beside /v1", last paragraphs).

One JSON line on standard output says where it is reached and with which key; everything else is logged to
standard error.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
import uvicorn
from starlette.types import Receive, Scope, Send

from agentpay._version import __version__
from agentpay_server.clock import Clock, SystemClock
from agentpay_server.embedded.listener import bound_socket, server_config, url_of
from agentpay_server.http.app import Application, document_text
from agentpay_server.logs import LogFormat, log, logging_to
from agentpay_server.runtime import Runtime, manual_clock, start_runtime
from agentpay_server.settings import OnchainMemo, PolicyUpdate, Settings
from agentpay_server.storage import KEY_VARIABLE, open_storage
from agentpay_server.store.database import DatabaseUnavailableError, StartRefusedError

logger = logging.getLogger("agentpay_server")

_CUT_OFF_SECONDS: Final = 0.5
"""How long an answer may take to leave once nobody is let wait any more."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentpay-server")
def main() -> None:
    """The reference server of the agent payment account service."""


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8402, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option("--in-memory", is_flag=True, help="Keep everything in memory. The default.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to keep everything in; made if it is not there.",
)
@click.option(
    "--database-url",
    envvar="AGENTPAY_SERVER_DATABASE_URL",
    show_envvar=True,
    metavar="URL",
    help=f"PostgreSQL database to keep everything in, postgresql://…; {KEY_VARIABLE} must be set.",
)
@click.option(
    "--operator-key",
    envvar="AGENTPAY_SERVER_OPERATOR_KEY",
    show_envvar=True,
    help="Operator key to use instead of a new one; at a later start, one to use beside those there are.",
)
@click.option(
    "--clock",
    type=click.Choice(["system", "manual"]),
    default="system",
    show_default=True,
    help="manual stands still until it is advanced over /sandbox/clock/advance.",
)
@click.option(
    "--policy-update",
    type=click.Choice([choice.value for choice in PolicyUpdate]),
    default=PolicyUpdate.MERGE.value,
    show_default=True,
    help="What becomes of the fields that a policy update leaves out.",
)
@click.option(
    "--onchain-memo",
    type=click.Choice([choice.value for choice in OnchainMemo]),
    default=OnchainMemo.ID.value,
    show_default=True,
    help="What a transaction publishes of a transfer's memo.",
)
@click.option(
    "--settlement-wait",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="How long POST /v1/transfers waits for finality.",
)
@click.option(
    "--approval-ttl",
    type=click.FloatRange(min=0, min_open=True, max=366 * 24 * 3600),
    default=24 * 3600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a transfer that needs approval waits for an operator.",
)
@click.option(
    "--rate-limit",
    type=click.IntRange(min=1),
    metavar="PER_MINUTE",
    help="Requests that one key may make in a minute; without it there is no limit.",
)
@click.option(
    "--shutdown-wait",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long requests and transfers under way may go on after SIGTERM or SIGINT.",
)
@click.option(
    "--log-format",
    type=click.Choice([choice.value for choice in LogFormat]),
    default=LogFormat.JSON.value,
    show_default=True,
    help="How events are printed on standard error.",
)
@click.option("--allow-remote", is_flag=True, help="Allow a --host that other machines can reach.")
def serve(
    *,
    host: str,
    port: int,
    in_memory: bool,
    data_dir: Path | None,
    database_url: str | None,
    operator_key: str | None,
    clock: str,
    policy_update: str,
    onchain_memo: str,
    settlement_wait: float,
    approval_ttl: float,
    rate_limit: int | None,
    shutdown_wait: float,
    log_format: str,
    allow_remote: bool,
) -> None:
    """Serve until it is stopped.

    Prints one JSON line on standard output once it accepts requests, with base_url, and with operator_key
    when that was made now or given. SIGTERM and SIGINT stop it in good order; a second one ends it at once.
    """
    if not _is_loopback(host) and not (allow_remote and operator_key):
        raise click.UsageError(
            f"{host} can be reached by other machines: give --allow-remote and --operator-key, or keep the "
            "default --host."
        )
    if (in_memory, data_dir is not None, database_url is not None).count(True) > 1:
        raise click.UsageError("give one of --in-memory, --data-dir and --database-url.")
    settings = Settings(
        policy_update=policy_update,
        onchain_memo=onchain_memo,
        settlement_wait_seconds=settlement_wait,
        approval_ttl_seconds=approval_ttl,
        rate_limit_per_minute=rate_limit,
        shutdown_seconds=shutdown_wait,
    )
    try:
        sock = bound_socket(host, port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host} port {port}: {error.strerror or error}"
        ) from None
    chosen: Clock = manual_clock() if clock == "manual" else SystemClock()
    try:
        with sock, logging_to(sys.stderr, LogFormat(log_format)):
            asyncio.run(
                _serve(
                    sock,
                    settings,
                    data_dir=data_dir,
                    database_url=database_url,
                    clock=chosen,
                    operator_key=operator_key,
                )
            )
    except _BadKeyError as error:
        raise click.BadParameter(str(error), param_hint="--operator-key") from None
    except _BadUrlError as error:
        raise click.BadParameter(str(error), param_hint="--database-url") from None
    except (StartRefusedError, DatabaseUnavailableError, _LostDatabaseError) as error:
        raise click.ClickException(str(error)) from None


class _BadKeyError(Exception):
    """The operator key that was given is none."""


class _BadUrlError(Exception):
    """The database URL that was given is none."""


class _LostDatabaseError(Exception):
    """The database is no longer the server's own."""


async def _serve(
    sock: socket.socket,
    settings: Settings,
    *,
    data_dir: Path | None,
    database_url: str | None,
    clock: Clock,
    operator_key: str | None,
) -> None:
    try:
        storage = await open_storage(settings, data_dir=data_dir, database_url=database_url)
    except ValueError as error:
        raise _BadUrlError(str(error)) from None
    try:
        runtime = await start_runtime(storage=storage, clock=clock, operator_key=operator_key, may_crash=True)
    except ValueError as error:
        raise _BadKeyError(str(error)) from None
    try:
        await _serve_until_told(sock, runtime)
    finally:
        log(logger, logging.INFO, "server.stopped")


async def _serve_until_told(sock: socket.socket, runtime: Runtime) -> None:
    announcement = {"base_url": url_of(sock)}
    if runtime.operator.key is not None:
        announcement["operator_key"] = runtime.operator.key
    server = _Server(Application(runtime), runtime, announcement)
    lost = runtime.storage.lost
    watch = asyncio.create_task(server.stop_when(lost))
    try:
        await server.serve(sockets=[sock])
    finally:
        watch.cancel()
        await runtime.stop(within_seconds=server.remaining_seconds())
    if lost.is_set():
        raise _LostDatabaseError(
            "the connection that kept other servers away from the database was lost; start again, and what "
            "is under way is taken up"
        )


class _Server(uvicorn.Server):
    """Says where it is reached as soon as it accepts requests, and stops in good order when it is told to.

    From the signal on nothing new is accepted. Requests under way have the time that the settings give; then
    those that wait for a transfer are told how it stands, and whatever is left is cut off.
    """

    def __init__(self, application: Application, runtime: Runtime, announcement: dict[str, str]) -> None:
        self._application = application
        self._runtime = runtime
        self._announcement = announcement
        self._loop = asyncio.get_running_loop()
        self._wait_seconds = runtime.context.settings.shutdown_seconds
        self._ends_at: float | None = None
        cut_off_seconds = math.ceil(self._wait_seconds + _CUT_OFF_SECONDS) + 1
        super().__init__(server_config(self._answer, shutdown_seconds=cut_off_seconds))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept requests, and print the line that says so."""
        await super().startup(sockets=sockets)
        click.echo(json.dumps(self._announcement))
        log(logger, logging.INFO, "server.started", base_url=self._announcement["base_url"])

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
        self._runtime.context.tasks.close()

    def remaining_seconds(self) -> float:
        """Return how long work under way may still go on."""
        return self._wait_seconds if self._ends_at is None else max(self._ends_at - self._loop.time(), 0.0)

    def _begin_to_stop(self, name: str) -> None:
        log(logger, logging.INFO, "server.stopping", signal=name, within_seconds=self._wait_seconds)
        self._loop.call_later(self._wait_seconds, self._runtime.context.tasks.close)
        self._loop.call_later(self._wait_seconds + _CUT_OFF_SECONDS, self._cut_off)

    def _cut_off(self) -> None:
        for connection in list(self.server_state.connections):
            transport: Any = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._application(scope, receive, send)
        except asyncio.CancelledError:
            # Cut off at the end of a stop: there is nobody left to answer.
            if self._ends_at is None:
                raise


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@main.command("openapi")
@click.option("--beside", is_flag=True, help="Print that of what stands beside /v1: console and sandbox.")
def print_openapi(*, beside: bool) -> None:
    """Print the OpenAPI document of /v1."""
    click.echo(document_text(beside=beside), nl=False)


if __name__ == "__main__":
    main()
