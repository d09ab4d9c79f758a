"""`agentpay-server demo`: a server with a world in it that lives, to look at and to try commands on."""

import contextlib
import itertools
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

import click
from rich.text import Text

from agentpay.contract.printable import printable
from agentpay_server.cli.output import Output, styled, takes_json
from agentpay_server.cli.values import Host, Seconds
from agentpay_server.cli.variables import KEY_VARIABLE, export_lines

if TYPE_CHECKING:
    from agentpay_server.cli.demo_world import Step
    from agentpay_server.embedded.server import AgentPayServer

_HOST: Final = "127.0.0.1"
_SEEDS: Final = 1_000_000
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8402,
    show_default=True,
    help=f"Port on {_HOST}; 0 takes a free one.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="The same seed tells the same story. Its keys are the same too: others can compute them.",
)
@click.option(
    "--operator-key",
    envvar="AGENTPAY_SERVER_OPERATOR_KEY",
    show_envvar=True,
    help="Operator key to use instead of a new one; it is never printed.",
)
@click.option(
    "--interval",
    type=Seconds(),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait after each step.",
)
@click.option("--steps", type=click.IntRange(min=0), metavar="N", help="Run N steps, then end.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    type=Host(),
    multiple=True,
    metavar="HOST",
    help="Host name or IP address to accept in the Host header in addition to loopback names. Repeatable.",
)
@click.option("--no-dashboard", is_flag=True, help="Do not serve the operator console at /dashboard.")
@click.option("--for", "seconds", type=Seconds(), metavar="SECONDS", help="End after so long.")
@takes_json
def demo(
    *,
    port: int,
    seed: int | None,
    operator_key: str | None,
    interval: float,
    steps: int | None,
    seconds: float | None,
    allowed_hosts: tuple[str, ...],
    no_dashboard: bool,
    is_json: bool,
) -> None:
    """Serve a living world: agents that pay, are refused, and wait for you.

    It is a whole server in memory, with several agents under policies, shops, a metered session, a webhook,
    and transfers that wait for approval. Try the other commands on it. Ctrl-C ends it, with exit code 0.
    """
    output = Output(is_json=is_json)
    story_seed = secrets.randbelow(_SEEDS) if seed is None else seed
    ends_at = None if seconds is None else time.monotonic() + seconds
    # All of a server takes longer to load than it takes to say what is wrong with the options.
    from agentpay_server.cli.demo_world import DemoWorld  # noqa: PLC0415
    from agentpay_server.embedded.server import AgentPayServer  # noqa: PLC0415
    from agentpay_server.embedded.world import CannotListenError  # noqa: PLC0415
    from agentpay_server.settings import Settings  # noqa: PLC0415

    # The seed of the story is printed, and short: only a seed that was asked for may make keys.
    server = AgentPayServer(
        clock="system",
        seed=seed,
        operator_key=operator_key,
        settings=Settings(serves_dashboard=not no_dashboard),
    )
    with _Stop() as stop, _running(server):
        world = DemoWorld(server, story_seed, lambda step: _tell(output, step))
        # Before anybody can reach it: the world that is found is always whole.
        with output.progress("Making the world") as say:
            world.begin(say)
        try:
            server.listen(port=port, allowed_hosts=allowed_hosts)
        except CannotListenError as error:
            said = str(error).replace("pass another port", "give another --port")
            raise click.ClickException(f"{said}.") from None
        _introduce(output, server.base_url, None if operator_key else server.operator_key, story_seed)
        if not no_dashboard:
            output.note(
                f"The operator console is at {server.base_url}/dashboard; sign in with the operator key."
            )
        if seed is not None:
            output.note("This server is seeded: anybody who knows the seed can compute all of its keys.")
        for number in itertools.count() if steps is None else range(steps):
            if number:
                stop.rest(interval if ends_at is None else max(min(interval, ends_at - time.monotonic()), 0))
            if stop.is_told or (ends_at is not None and time.monotonic() >= ends_at):
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
    """Lets Ctrl-C and SIGTERM end the demo between two of its steps; a second one ends it at once.

    Raised anywhere, the interrupt could be lost in a callback that nobody hears, or leave a call half done.
    """

    def __init__(self) -> None:
        self.is_told = False
        self._is_resting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Elsewhere there are no handlers to be had.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in _SIGNALS}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def rest(self, seconds: float) -> None:
        """Do nothing for a while, or until it is told to stop."""
        with contextlib.suppress(_Told):
            self._is_resting = True
            try:
                if not self.is_told:
                    time.sleep(seconds)
            finally:
                self._is_resting = False

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, self._before[number])
        self.is_told = True
        if self._is_resting:
            self._is_resting = False
            raise _Told


class _Told(BaseException):
    """The demo is told to stop while it rests."""


def _introduce(output: Output, base_url: str, operator_key: str | None, seed: int) -> None:
    if output.is_json:
        told = {"base_url": base_url, "operator_key": operator_key, "seed": seed}
        output.document({"demo": told})
        return
    output.line(
        Text("A world with test money, in memory. To look around, in another terminal:", style="bold")
    )
    for line in export_lines(base_url, operator_key):
        output.line(f"  {line}")
    if operator_key is None:
        output.line(f"  and set {KEY_VARIABLE} to the operator key that you gave")
    output.line("and then: agentpay-server approvals list, deliveries list, listen, trigger session.settled.")
    output.line("It holds payments, a refusal, a transfer that waits for approval, and an open session.")
    output.line(f"--seed {seed} tells the same story again; Ctrl-C ends it.")
    output.line()


def _tell(output: Output, step: "Step") -> None:
    if output.is_json:
        output.document({"step": step})
        return
    message = () if step.message is None else (Text(printable(step.message), style="dim"),)
    output.line(f"{step.actor:<16}", f"{step.action:<48}", styled(step.status), *message)
