"""`agentpay-server`: the command line.

`serve` and `demo` are servers; `operators` works on a store; the other commands are clients of a server that
runs, over HTTP like any client, and never touch its data. Each command has a module of its own, which is
loaded when it is called for. What a command found goes to standard output, for people or, with `--json`, as
JSON; everything else goes to standard error. The exit code is 0 when it is done, 1 when the server refused or
failed or cannot be reached, 2 when the command cannot be meant as it was given, 130 when it was interrupted
before it was done.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

from agentpay._version import __version__

_INTERRUPTED: Final = 130

_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("serve:serve", "Serve until it is stopped."),
    "demo": ("demo:demo", "Serve a living world: agents that pay, are refused, and wait for you."),
    "keys": ("keys:keys", "The keys of agents; and new operator keys."),
    "operator-keys": ("operator_keys:operator_keys", "Your operator keys."),
    "operators": ("operators:operators", "The operators of a data directory or a database."),
    "approvals": ("approvals:approvals", "Transfers that wait for an operator."),
    "deliveries": ("deliveries:deliveries", "Events on their way to webhooks."),
    "listen": ("listen:listen", "Print events as they happen, and forward them, signed."),
    "trigger": ("trigger:trigger", "Make an event happen for real, on a test chain."),
    "simulate": ("simulate:simulate", "Run servers under faults on virtual time, from one seed."),
    "openapi": ("openapi:openapi", "Print the OpenAPI document of /v1."),
}
"""Where each command lives, and what `--help` says of it: said here so that nothing is loaded for it."""


class _Commands(click.Group):
    """The commands, loaded one by one as they are called for."""

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
            # Whoever interrupts knows that it was interrupted.
            ctx.exit(_INTERRUPTED)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentpay-server")
def main() -> None:
    """The reference server of the agent payment account service.

    serve and demo start one. operators works on the store of one. The other commands ask one that runs: tell
    them where with --url or AGENTPAY_BASE_URL, and as whom with --key or AGENTPAY_API_KEY, as in the SDK.

    Exit codes: 0 done, 1 refused, failed or not reached, 2 not to be meant, 130 interrupted.
    """
