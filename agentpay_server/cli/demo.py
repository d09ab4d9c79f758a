"""`agentpay-server demo`: a server with sample agents, for trying out the other commands."""

import contextlib
import itertools
import json
import secrets
import select
import signal
import socket
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

import click
from rich.text import Text

from agentpay._installation import install_command
from agentpay.cli.options import KEY_VARIABLE, Seconds, export_lines, takes_json
from agentpay.cli.output import Output
from agentpay.cli.tables import styled
from agentpay.contract.printable import printable
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.cli.options import HOST, takes
from agentpay_server.platform.settings import Settings

if TYPE_CHECKING:
    from agentpay_server.plugins.scenes.demo_world import DemoStep
    from agentpay_server.testkit.embedded.server import AgentPayServer

_HOST: Final = "127.0.0.1"
_TRY_NEXT: Final = (
    ("agentpay approvals list", "see what waits for you"),
    ("agentpay listen", "watch events as they happen"),
    ('agentpay budget "Research bot"', "see what it may spend"),
    ('agentpay accounts policy "Intern bot" --resume', "let a paused agent pay"),
    ("agentpay deliveries list --watch", "watch webhooks and retries"),
    ("agentpay-server trigger session.settled", "cause an event"),
)
_SEEDS: Final = 1_000_000
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8402,
    show_default=True,
    help=f"Port on {_HOST}; 0 chooses a free one.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Run the same story each time. Keys are derived from the seed, so others can compute them.",
)
@takes(
    ServerConfig,
    "config",
    only={"operator_key": "Operator key to use instead of a new one. It is never printed."},
)
@click.option(
    "--interval",
    type=Seconds(),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Pause after each step.",
)
@click.option("--steps", type=click.IntRange(min=0), metavar="N", help="Stop after N steps.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    type=HOST,
    multiple=True,
    metavar="HOST",
    help="Host name or IP address to accept in the Host header in addition to loopback names. Repeatable.",
)
@takes(Settings, "settings", only={"serves_dashboard": None})
@click.option(
    "--mcp",
    "has_tools",
    is_flag=True,
    help="Also create a funded, limited account and print the configuration of an MCP server for it.",
)
@click.option("--for", "seconds", type=Seconds(), metavar="SECONDS", help="Stop after this time.")
@takes_json
def demo(
    *,
    port: int,
    seed: int | None,
    config: dict[str, Any],
    interval: float,
    steps: int | None,
    seconds: float | None,
    allowed_hosts: tuple[str, ...],
    settings: dict[str, Any],
    has_tools: bool,
    is_json: bool,
) -> None:
    """Run a server with sample agents that pay, are rejected, and wait for approval.

    The server is in memory. It has several agents with policies, shops, a metered session, a webhook, and
    transfers that wait for approval. Try the other commands on it. Ctrl-C stops it with exit code 0.
    """
    output = Output(is_json=is_json)
    story_seed = secrets.randbelow(_SEEDS) if seed is None else seed
    ends_at = None if seconds is None else time.monotonic() + seconds
    # Imported late: loading the server takes longer than reporting a usage error.
    from agentpay_server.plugins.scenes.demo_world import DemoWorld  # noqa: PLC0415
    from agentpay_server.testkit.embedded.server import AgentPayServer  # noqa: PLC0415
    from agentpay_server.testkit.embedded.world import CannotListenError  # noqa: PLC0415

    # The story's seed is short and printed, so keys are derived only from a seed that the user passes.
    chosen, is_key_given = Settings(**settings), bool(config.get("operator_key"))
    server = AgentPayServer(clock="system", seed=seed, settings=chosen, **config)
    with _Stop() as stop, _running(server):
        world = DemoWorld(server, story_seed, lambda step: _print_step(output, step))
        # Before the port opens, so that no client sees incomplete data.
        with output.progress("Creating the sample data") as say:
            world.begin(say)
        try:
            server.listen(port=port, allowed_hosts=allowed_hosts)
        except CannotListenError as error:
            message = str(error).replace("pass another port", "pass another --port")
            raise click.ClickException(f"{message}.") from None
        _introduce(
            output,
            server.base_url,
            None if is_key_given else server.operator_key,
            story_seed,
            console_url=server.console_url if chosen.serves_dashboard else None,
            paid_api_url=world.paid_api_url,
            tools=world.tools() if has_tools else None,
        )
        if has_tools and find_spec("mcp") is None:
            output.note(f"The MCP server needs the extra mcp: {install_command('mcp')}")
        if seed is not None:
            output.note("Warning: anyone who knows --seed can compute all keys of this server.")
        for number in itertools.count() if steps is None else range(steps):
            if number:
                stop.rest(interval if ends_at is None else max(min(interval, ends_at - time.monotonic()), 0))
            if stop.is_requested or (ends_at is not None and time.monotonic() >= ends_at):
                break
            world.step()


@contextlib.contextmanager
def _running(server: "AgentPayServer") -> Iterator[None]:
    try:
        server.start()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--operator-key") from None
    with contextlib.closing(server):
        yield


class _Stop:
    """Lets Ctrl-C and SIGTERM end the demo between two steps. A second signal ends it at once.

    An interrupt in the middle of a step could be lost in a callback, or leave a call incomplete.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._before: dict[int, Any] = {}
        # A byte in it ends a rest: a lock may not be taken in a signal handler.
        self._receiver, self._sender = socket.socketpair()

    def __enter__(self) -> Self:
        # Only the main thread may set signal handlers.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._request) for number in _SIGNALS}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._receiver.close()
        self._sender.close()

    def rest(self, seconds: float) -> None:
        select.select([self._receiver], [], [], seconds)

    def _request(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, self._before[number])
        self.is_requested = True
        self._sender.send(b"\0")


def _introduce(
    output: Output,
    base_url: str,
    operator_key: str | None,
    seed: int,
    *,
    console_url: str | None,
    paid_api_url: str,
    tools: Mapping[str, Any] | None,
) -> None:
    if output.is_json:
        details = {"base_url": base_url, "operator_key": operator_key, "seed": seed}
        details |= {"paid_api_url": paid_api_url, **(tools or {})}
        output.document({"demo": details if console_url is None else {**details, "console_url": console_url}})
        return
    output.line(
        Text(
            "A server with sample data, in memory. Try commands in another terminal:",
            style="bold",
        )
    )
    for line in export_lines(base_url, operator_key):
        output.line(f"  {line}")
    if operator_key is None:
        output.line(f"  and set {KEY_VARIABLE} to the operator key that you passed")
    if console_url is not None:
        output.line("Operator console (the link works once, within 10 minutes):")
        output.line(f"  {console_url}")
    output.line("There are payments, a rejection, an open session, and two waiting transfers.")
    output.line("This URL sells calls for 0.05 USDC by MPP and x402, and responds 402 to a GET:")
    output.line(f"  {paid_api_url}")
    output.line(Text("Then try:", style="bold"))
    width = max(len(command) for command, _ in _TRY_NEXT)
    for command, purpose in _TRY_NEXT:
        output.line(f"  {command:<{width}} ", Text(purpose, style="dim"))
    if tools is not None:
        title = "Configuration of an MCP server for a model, with a separate account:"
        output.line(Text(title, style="bold"))
        for line in json.dumps(tools, indent=2).splitlines():
            output.line(Text(line))
    output.line(f"--seed {seed} runs the same story again. Press Ctrl-C to stop.")
    output.line()


def _print_step(output: Output, step: "DemoStep") -> None:
    if output.is_json:
        output.document({"step": step})
        return
    output.line(f"{step.actor:<14}", f"{step.action:<44}", styled(step.status))
    if step.message is not None:
        indent = " " * 15
        # Identifiers are not cut, so that they can be copied.
        said = textwrap.wrap(
            printable(step.message),
            80,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
        )
        for part in said:
            output.line(Text(part, style="dim"))
