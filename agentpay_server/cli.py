"""`agentpay-server`: the server as a process (decisions, "What stands beside /v1", last paragraphs).

One JSON line on standard output says where it is reached and with which key; everything else is logged to
standard error.
"""

import asyncio
import ipaddress
import json
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import uvicorn

from agentpay._version import __version__
from agentpay_server.clock import Clock, SystemClock
from agentpay_server.embedded.listener import bound_socket, server_config, url_of
from agentpay_server.http.app import Application, document_text
from agentpay_server.runtime import manual_clock, start_runtime
from agentpay_server.settings import OnchainMemo, PolicyUpdate, Settings

logger = logging.getLogger("agentpay_server")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentpay-server")
def main() -> None:
    """The reference server of the agent payment account service."""


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8402, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--in-memory", is_flag=True, help="Keep everything in memory. The default, and all there is yet."
)
@click.option(
    "--operator-key",
    envvar="AGENTPAY_SERVER_OPERATOR_KEY",
    show_envvar=True,
    help="Operator key to use instead of a new one.",
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
    "--rate-limit",
    type=click.IntRange(min=1),
    metavar="PER_MINUTE",
    help="Requests that one key may make in a minute; without it there is no limit.",
)
@click.option("--allow-remote", is_flag=True, help="Allow a --host that other machines can reach.")
def serve(
    *,
    host: str,
    port: int,
    in_memory: bool,  # noqa: ARG001 - the only store yet
    operator_key: str | None,
    clock: str,
    policy_update: str,
    onchain_memo: str,
    settlement_wait: float,
    rate_limit: int | None,
    allow_remote: bool,
) -> None:
    """Serve until it is stopped.

    Prints one JSON line with base_url and operator_key on standard output once it accepts requests.
    """
    # They log the addresses of webhooks, which may hold secrets of the receivers.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if not _is_loopback(host) and not (allow_remote and operator_key):
        raise click.UsageError(
            f"{host} can be reached by other machines: give --allow-remote and --operator-key, or keep the "
            "default --host."
        )
    settings = Settings(
        policy_update=policy_update,
        onchain_memo=onchain_memo,
        settlement_wait_seconds=settlement_wait,
        rate_limit_per_minute=rate_limit,
    )
    try:
        sock = bound_socket(host, port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host} port {port}: {error.strerror or error}"
        ) from None
    chosen: Clock = manual_clock() if clock == "manual" else SystemClock()
    try:
        with sock:
            asyncio.run(_serve(sock, settings, chosen, operator_key))
    except _BadKeyError as error:
        raise click.BadParameter(str(error), param_hint="--operator-key") from None


class _BadKeyError(Exception):
    """The operator key that was given is none."""


async def _serve(sock: socket.socket, settings: Settings, clock: Clock, operator_key: str | None) -> None:
    try:
        runtime = await start_runtime(settings=settings, clock=clock, operator_key=operator_key)
    except ValueError as error:
        raise _BadKeyError(str(error)) from None
    announcement = {"base_url": url_of(sock), "operator_key": runtime.operator.key}
    server = _AnnouncingServer(
        server_config(Application(runtime)),
        announcement,
    )
    try:
        await server.serve(sockets=[sock])
    finally:
        await runtime.stop()


class _AnnouncingServer(uvicorn.Server):
    """Says where it is reached as soon as it accepts requests."""

    def __init__(self, config: uvicorn.Config, announcement: dict[str, str]) -> None:
        super().__init__(config)
        self._announcement = announcement

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take a signal as a request to stop in order; a second one stops at once."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept requests, and print the line that says so."""
        await super().startup(sockets=sockets)
        click.echo(json.dumps(self._announcement))
        logger.info("serving on %s", self._announcement["base_url"])


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
