"""`agentpay-server`: the command line.

Output and exit codes are those of `agentpay`, which has the commands for a running service. A command's
module is imported when it runs.
"""

from collections.abc import Mapping
from typing import Final

import click

from agentpay._version import __version__
from agentpay.cli import COMMANDS as CLIENT_COMMANDS
from agentpay.cli import Commands

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("agentpay_server.cli.serve:serve", "Run a server."),
    "demo": (
        "agentpay_server.cli.demo:demo",
        "Run a server with sample agents that pay, are rejected, and wait for approval.",
    ),
    "keys": ("agentpay_server.cli.printing:keys", "Generate operator keys."),
    "console-link": CLIENT_COMMANDS["console-link"],
    "operators": (
        "agentpay_server.cli.operators:operators",
        "Create operators in a data directory or database.",
    ),
    "trigger": (
        "agentpay_server.cli.trigger:trigger",
        "Cause an event by real operations, on a test chain.",
    ),
    "pay": ("agentpay_server.cli.pay:pay", "Request URL, and pay if it responds 402."),
    "completion": CLIENT_COMMANDS["completion"],
    "openapi": ("agentpay_server.cli.printing:openapi", "Print the OpenAPI document of /v1."),
}
"""Module and one-line help of each command, so that `--help` imports no command."""


@click.command(
    "agentpay-server",
    cls=Commands,
    available=COMMANDS,
    others=dict.fromkeys(CLIENT_COMMANDS, "agentpay"),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="agentpay-server")
def main() -> None:
    """The reference server of the agent payment account service.

    The commands serve and demo start a server, and the command operators changes the data of a server
    directly. The commands trigger, pay and console-link call a running server: set its URL and the
    operator key in AGENTPAY_BASE_URL and AGENTPAY_API_KEY, or with --url and --key after the command.
    All other commands for a running server are those of agentpay.

    Exit codes: 0 done, 1 failed, 2 usage error, 3 done but the result could not be written, 4 waits for
    approval, 5 refused by policy, pause or balance, 6 outcome unknown, 7 needs attention (agentpay status),
    130 interrupted.
    """
