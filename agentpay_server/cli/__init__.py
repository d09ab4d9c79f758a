"""`agentpay-server`: the command line.

`serve` and `demo` start servers; `operators` opens a store directly; the other commands are HTTP clients of a
running server. Each command has its own module, imported when the command runs. Results go to standard
output, as text or with `--json` as JSON; everything else goes to standard error. Exit codes: 0 success, 1 the
server refused, failed or cannot be reached, 2 usage error, 130 interrupted.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

from agentpay._version import __version__

_INTERRUPTED: Final = 130

_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("serve:serve", "Run a server."),
    "demo": ("demo:demo", "Run a server with sample agents that pay, are rejected, and wait for approval."),
    "keys": ("keys:keys", "Manage agent keys, and generate operator keys."),
    "operator-keys": ("operator_keys:operator_keys", "Manage your operator keys."),
    "operators": ("operators:operators", "Create operators in a data directory or database."),
    "approvals": ("approvals:approvals", "List, approve and reject transfers that wait for approval."),
    "deliveries": ("deliveries:deliveries", "List webhook deliveries and replay them."),
    "listen": ("listen:listen", "Print events as they happen, and optionally forward them, signed."),
    "trigger": ("trigger:trigger", "Cause an event by real operations, on a test chain."),
    "pay": ("pay:pay", "Request a URL, pay if it asks for money, and show the exchange."),
    "simulate": ("simulate:simulate", "Simulate servers under faults on virtual time, from a seed."),
    "openapi": ("openapi:openapi", "Print the OpenAPI document of /v1."),
}
"""Module and one-line help of each command; stated here so that `--help` imports no command."""


class _Commands(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as its base has it
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as its base has it
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # The user pressed Ctrl-C: the exit code is enough.
            ctx.exit(_INTERRUPTED)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentpay-server")
def main() -> None:
    """The reference server of the agent payment account service.

    serve and demo start a server. operators works on a server's data. All other commands call a running
    server: set its URL with --url or AGENTPAY_BASE_URL, and the operator key with --key or AGENTPAY_API_KEY.

    Exit codes: 0 success, 1 refused, failed or not reachable, 2 usage error, 130 interrupted.
    """
