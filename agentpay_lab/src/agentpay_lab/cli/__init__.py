"""`agentpay-lab`: the command line. Each command has its own module, imported when it runs."""

from collections.abc import Mapping
from typing import Final

import click

from agentpay._version import __version__
from agentpay.cli import Commands

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "simulate": (
        "agentpay_lab.cli.simulate:simulate",
        "Simulate servers under faults on virtual time, from a seed.",
    ),
    "crash-test": (
        "agentpay_lab.cli.crash_test:crash_test",
        "Kill servers and agents while hostile sellers are paid, then count payments on the chain.",
    ),
    "receiver-test": (
        "agentpay_lab.cli.receiver_test:receiver_test",
        "Deliver genuine and hostile webhook events, and score what a receiver acts on.",
    ),
    "completion": ("agentpay.cli.setup:completion", "Print the completion script of a shell."),
}
"""Module and one-line help of each command, so that `--help` imports no command."""


@click.command(
    "agentpay-lab",
    cls=Commands,
    available=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="agentpay-lab")
def main() -> None:
    """Find out what servers, agents and payments do when everything fails.

    Each command starts its own servers on this machine; no money is real.

    Exit codes: 0 passed, 1 a rule was broken or a server cannot start, 2 usage error, 130 interrupted.
    """
