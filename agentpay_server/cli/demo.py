"""`agentpay-server demo`: a server with a world in it that lives, to look at and to try commands on."""

import contextlib
import secrets
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

import click
from rich.text import Text

from agentpay_server.cli.output import Output, printable, styled, takes_json
from agentpay_server.cli.values import Host, Seconds

if TYPE_CHECKING:
    from agentpay_server.cli.demo_world import Step

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
    "--seed", type=click.IntRange(min=0), help="The same seed is the same story, and the same operator key."
)
@click.option(
    "--interval",
    type=Seconds(),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait after each step.",
)
@click.option("--steps", type=click.IntRange(min=0), metavar="N", help="End after so many steps.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    type=Host(),
    multiple=True,
    metavar="HOST",
    help="Host name or IP address to accept in the Host header in addition to loopback names. Repeatable.",
)
@click.option("--for", "seconds", type=Seconds(), metavar="SECONDS", help="End after so long.")
@takes_json
def demo(
    *,
    port: int,
    seed: int | None,
    interval: float,
    steps: int | None,
    seconds: float | None,
    allowed_hosts: tuple[str, ...],
    is_json: bool,
) -> None:
    """Serve a living world: agents that pay, are refused, and wait for you.

    It is a whole server in memory, with several agents under policies, shops, a metered session, a webhook,
    and transfers that wait for approval. Try the other commands on it. Ctrl-C ends it, with exit code 0.
    """
    output = Output(is_json=is_json)
    seed = secrets.randbelow(_SEEDS) if seed is None else seed
    ends_at = None if seconds is None else time.monotonic() + seconds
    # All of a server takes longer to load than it takes to say what is wrong with the options.
    from agentpay_server.cli.demo_world import DemoWorld  # noqa: PLC0415
    from agentpay_server.cli.process import why_not_bound  # noqa: PLC0415
    from agentpay_server.embedded.server import AgentPayServer  # noqa: PLC0415

    with _Stop() as stop, AgentPayServer(clock="system", seed=seed) as server:
        story: list[Step] = []
        world = DemoWorld(server, seed, story.append)
        # Before anybody can reach it: the world that is found is always whole.
        with output.progress("Making the world") as say:
            world.begin(say)
        try:
            server.listen(port=port, allowed_hosts=allowed_hosts)
        except OSError as error:
            raise click.ClickException(f"{why_not_bound(_HOST, port, error)}.") from None
        _introduce(output, server.base_url, server.operator_key, seed)
        while not stop.is_told:
            for step in story:
                _tell(output, step)
            story.clear()
            if steps == 0 or (ends_at is not None and time.monotonic() >= ends_at):
                break
            steps = None if steps is None else steps - 1
            world.step()
            left = interval if ends_at is None else min(interval, ends_at - time.monotonic())
            stop.rest(max(left, 0))


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


def _introduce(output: Output, base_url: str, operator_key: str, seed: int) -> None:
    if output.is_json:
        told = {"base_url": base_url, "operator_key": operator_key, "seed": seed}
        output.document({"demo": told})
        return
    output.line(
        Text("A world with test money, in memory. To look around, in another terminal:", style="bold")
    )
    output.line(f"  export AGENTPAY_BASE_URL={base_url}")
    output.line(f"  export AGENTPAY_SERVER_OPERATOR_KEY={operator_key}")
    output.line("and then: agentpay-server approvals list, deliveries list, listen, trigger session.settled.")
    output.line(f"--seed {seed} tells the same story again; Ctrl-C ends it.")
    output.line()


def _tell(output: Output, step: "Step") -> None:
    if output.is_json:
        output.document({"step": step})
        return
    message = () if step.message is None else (Text(printable(step.message), style="dim"),)
    output.line(f"{step.actor:<16}", f"{step.action:<48}", styled(step.status), *message)
