"""`agentpay-lab simulate`: running servers under faults on virtual time, from a seed."""

import secrets
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Final

import click

from agentpay.cli.options import Seconds, takes_json
from agentpay.cli.output import Output

if TYPE_CHECKING:
    from agentpay_lab.simulation.world import RunResult, SimulatedWorld

_SEEDS: Final = 10**9
_SHOWN_LINES: Final = 400
_REDRAW_SECONDS: Final = 0.5


@click.command()
@click.option(
    "--seed", type=click.IntRange(min=0), help="First seed. Default: a random one, which is printed."
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="Simulated minutes of work and faults in each run.",
)
@click.option("--runs", type=click.IntRange(min=1), help="Number of seeds to run, one after the other.")
@click.option(
    "--for",
    "seconds",
    type=Seconds(),
    metavar="SECONDS",
    help="Start new seeds for this much real time.",
)
@click.option(
    "--servers",
    type=click.IntRange(1, 9),
    help="Servers on one database. Default: 1 to 5, drawn by the seed.",
)
@click.option("--agents", type=click.IntRange(1, 100), default=8, show_default=True, help="Number of agents.")
@click.option(
    "--lies/--no-lies",
    default=False,
    help="Whether RPC nodes give false replies, one method at a time.  [default: no]",
)
@click.option(
    "--strength",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Multiplies how often each fault strikes; 0 is a world without faults.",
)
@click.option(
    "--shrink-for",
    type=Seconds(),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to search for a smaller run that breaks the same rule.",
)
@takes_json
def simulate(
    *,
    seed: int | None,
    minutes: float,
    runs: int | None,
    seconds: float | None,
    servers: int | None,
    agents: int,
    lies: bool,
    strength: float,
    shrink_for: float,
    is_json: bool,
) -> None:
    """Simulate servers under faults on virtual time, from a seed.

    Servers, SDK and SQLite are real; cluster, network and time are simulated. The command uses no network. A
    seed always gives the same run. If a run breaks a rule, the command searches for a smaller run that breaks
    it too, prints the timeline of that run and exits with code 1.
    """
    from agentpay_lab.simulation.plan import drawn  # noqa: PLC0415 - loaded for this command alone
    from agentpay_lab.simulation.world import simulate as run  # noqa: PLC0415

    output, show = Output(is_json=is_json), _Progress()
    seed = secrets.randbelow(_SEEDS) if seed is None else seed
    many = runs if runs is not None else (1 if seconds is None else None)
    ends_at = None if seconds is None else time.monotonic() + seconds
    click.echo(f"first seed: {seed}", err=True)
    number = 0
    while (many is None or number < many) and (ends_at is None or time.monotonic() < ends_at):
        plan = drawn(
            seed + number, minutes=minutes, servers=servers, agents=agents, lies=lies, strength=strength
        )
        outcome = run(plan, watch=show)
        show.ended(outcome)
        if outcome.violations:
            show.close()
            again = (
                f"--seed {plan.seed} --minutes {minutes:g} --servers {plan.servers} --agents {agents} "
                f"--{'lies' if lies else 'no-lies'} --strength {strength:g}"
            )
            _report(output, outcome, shrink_for, again)
            sys.exit(1)
        number += 1
    show.close()
    if is_json:
        output.document(
            {
                "first_seed": seed,
                "runs": number,
                "simulated_seconds": round(show.seconds),
                "times_real_time": round(show.seconds / show.cpu_seconds),
                "operations": show.calls,
                "faults": show.faults,
                "crashes": show.crashes,
                "landings": show.landed,
                "violations": 0,
            }
        )
    else:
        times = show.seconds / show.cpu_seconds
        summary = f"{number} runs from seed {seed}, {times:.0f} times real time: {show.line()}"
        click.echo(textwrap.fill(summary, 80, subsequent_indent="  "))


class _Progress:
    """Counts over all runs, shown as a line on standard error."""

    def __init__(self) -> None:
        self.seconds, self.cpu_seconds = 0.0, 0.0
        self.calls, self.faults, self.crashes, self.landed = 0, 0, 0, 0
        self._ended = (0.0, 0, 0, 0, 0)
        self._drawn_at = 0.0
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, world: "SimulatedWorld") -> None:
        seconds, calls, faults, crashes, landed = self._ended
        self.seconds, self.calls = seconds + world.loop.time(), calls + len(world.calls)
        self.faults, self.crashes = faults + len(world.faults.struck), crashes + world.crashes
        self.landed = landed + world.cluster.executed
        self._draw()

    def ended(self, outcome: "RunResult") -> None:
        seconds, calls, faults, crashes, landed = self._ended
        self._ended = (
            seconds + outcome.seconds,
            calls + len(outcome.calls),
            faults + len(outcome.struck),
            crashes + outcome.crashes,
            landed + outcome.landed,
        )
        self.seconds, self.calls, self.faults, self.crashes, self.landed = self._ended
        self.cpu_seconds += outcome.cpu_seconds

    def line(self) -> str:
        return (
            f"{_clock(self.seconds)} simulated, {self.calls} operations, {self.faults} faults, "
            f"{self.crashes} crashes, {self.landed} landings, violations: 0"
        )

    def close(self) -> None:
        if self._is_terminal:
            click.echo("\r\x1b[2K", nl=False, err=True)

    def _draw(self) -> None:
        now = time.monotonic()
        if self._is_terminal and now - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = now
            click.echo(f"\r\x1b[2K{self.line()}", nl=False, err=True)


def _report(output: Output, outcome: "RunResult", shrink_for: float, again: str) -> None:
    from agentpay_lab.simulation.shrinking import Shrinker  # noqa: PLC0415

    click.echo(f"VIOLATION {outcome.violations[0]}", err=True)
    click.echo(f"to repeat: agentpay-lab simulate {again}", err=True)
    shrinker = Shrinker(outcome, seconds=shrink_for)
    small = shrinker.shrink()
    click.echo(
        f"smallest of {shrinker.runs} runs: {small.plan.servers} servers, {len(small.calls)} calls, "
        f"{len(small.struck)} faults",
        err=True,
    )
    lines = small.lines[-_SHOWN_LINES:]
    violation = small.violations[0] if small.violations else outcome.violations[0]
    if output.is_json:
        output.document(
            {
                "seed": outcome.plan.seed,
                "violation": str(violation),
                "calls": list(small.calls),
                "faults": list(small.struck),
                "timeline": list(lines),
            }
        )
    else:
        click.echo("\n".join([*lines, "", f"VIOLATION {violation}"]))


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
