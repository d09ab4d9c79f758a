"""`agentpay`: the command line for a running service. It needs only the SDK and the extra `cli`.

The module of a command is imported when it runs. Results go to standard output: as text, with `--json` as
JSON, with `--quiet` as identifiers; everything else goes to standard error.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final

import click

from agentpay._loading import load, needing
from agentpay._version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Exit codes, by which a script tells a refusal from an unknown outcome.
FAILED: Final = 1
USAGE: Final = 2
UNWRITTEN: Final = 3
"""The command did what it was asked to, but its result could not be written: look it up."""
PENDING_APPROVAL: Final = 4
REFUSED: Final = 5
"""The policy, a pause or the balance does not allow it. No money moved."""
OUTCOME_UNKNOWN: Final = 6
NEEDS_ATTENTION: Final = 7
"""`status`: not all is well."""
INTERRUPTED: Final = 130

_WORDS: Final = "agentpay.words"
"""Where a context has the words of the command line."""

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "status": ("agentpay.cli.status:status", "Show whether all is well, and what needs attention."),
    "accounts": (
        "agentpay.cli.accounts:accounts",
        "Create, list, fund, read and unblock accounts; set policies.",
    ),
    "budget": ("agentpay.cli.accounts:budget", "Show what an account may spend now."),
    "spend": ("agentpay.cli.accounts:spend", "Show what was spent, by day or hour."),
    "transfers": ("agentpay.cli.transfers:transfers", "Create, check and list transfers."),
    "payments": (
        "agentpay.cli.payments:payments",
        "Pay for API calls (HTTP 402) and tools (MCP) that ask for money; list payments.",
    ),
    "sellers": ("agentpay.cli.payments:sellers", "Pin and list sellers; a pin can block one."),
    "sessions": ("agentpay.cli.payments:sessions", "Open, charge, close and list sessions."),
    "approvals": (
        "agentpay.cli.transfers:approvals",
        "List, approve and reject transfers that wait for approval.",
    ),
    "webhooks": (
        "agentpay.cli.webhooks:webhooks",
        "Create, list, change, test and delete webhooks, and rotate secrets.",
    ),
    "events": ("agentpay.cli.webhooks:events", "List events and replay them."),
    "deliveries": ("agentpay.cli.webhooks:deliveries", "List webhook deliveries and replay them."),
    "listen": (
        "agentpay.cli.webhooks:listen",
        "Print events as they happen, and optionally forward them, signed.",
    ),
    "keys": ("agentpay.cli.keys:keys", "Manage agent keys."),
    "operator-keys": ("agentpay.cli.keys:operator_keys", "Manage your operator keys."),
    "audit": ("agentpay.cli.keys:audit", "List who changed what."),
    "requests": ("agentpay.cli.keys:requests", "List requests that the service has responded to."),
    "search": ("agentpay.cli.accounts:search", "Find accounts, transfers, sessions, deposits and events."),
    "whoami": (
        "agentpay.cli.keys:whoami",
        "Show the key that commands use, and whether its money is real.",
    ),
    "console-link": (
        "agentpay.cli.keys:console_link",
        "Print a link that signs in to the operator console.",
    ),
    "profiles": ("agentpay.cli.setup:profiles", "Store named services with their URL and key."),
    "completion": ("agentpay.cli.setup:completion", "Print the completion script of a shell."),
}
"""Module and one-line help of each command, so that `--help` imports no command."""


GUESSES: Final[Mapping[str, str]] = {
    "approve": "agentpay approvals approve",
    "balance": "agentpay accounts get, or with an agent key agentpay budget",
    "health": "agentpay status",
    "history": "agentpay accounts history",
    "login": "agentpay console-link for the browser, or agentpay profiles add",
    "logs": "agentpay events list, agentpay requests list or agentpay audit list",
    "pause": "agentpay accounts policy ACCOUNT --pause, or agentpay accounts pause-all",
    "reject": "agentpay approvals reject",
    "resume": "agentpay accounts policy ACCOUNT --resume, or agentpay accounts resume-all",
    "send": "agentpay transfers create",
    "version": "agentpay --version",
}
"""What to run in place of the commands that people guess first."""


class Group(click.Group):
    """A group whose message for an unknown command names the right one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named; UsageError with what to run instead of a guess."""
        name = args[0]
        if name in GUESSES and name not in self.list_commands(ctx) and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}. Run {GUESSES[name]}.", ctx)
        return super().resolve_command(ctx, args)


class Commands(Group):
    """A group that imports a command when it is used.

    `available` has the module and the one-line help of each command. `others` are commands of another
    program, with its name.
    """

    def __init__(
        self,
        *,
        available: Mapping[str, tuple[str, str]],
        others: Mapping[str, str] | None = None,
        **attributes: Any,  # noqa: ANN401 - as its base has it
    ) -> None:
        super().__init__(**attributes)
        self.available = available
        self.others: Mapping[str, str] = others or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as its base has it
        """Return the names, in the order of the help."""
        return list(self.available)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command; ModuleNotFoundError if a package that it needs is not installed."""
        if cmd_name not in self.available:
            return None
        module, _, name = self.available[cmd_name][0].partition(":")
        # Commands of the client load what they need when they run.
        command: click.Command = getattr(load(module, part=cmd_name, extra="server"), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete the names of commands without importing any."""
        from click.shell_completion import CompletionItem

        named = [(name, short) for name, (_, short) in self.available.items() if name.startswith(incomplete)]
        # Options, which the base of a group completes.
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=short) for name, short in named), *options]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named; UsageError with the name that may have been meant."""
        name = args[0]
        is_known = name in self.available or name in GUESSES
        if is_known or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if name in self.others:
            raise click.UsageError(
                f"{name} is a command of {self.others[name]}: run {self.others[name]} {name}.", ctx
            )
        from difflib import get_close_matches

        near = get_close_matches(name, self.available, n=1)
        raise click.UsageError(
            f"No such command {name!r}." + "".join(f" Did you mean {n!r}?" for n in near), ctx
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options before the command."""
        ctx.meta[_WORDS] = words = tuple(args)
        with _usage_errors_as(words):
            return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands with the one-line help of each."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in self.available.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as its base has it
        """Run a command; Ctrl-C ends it with exit code 130 and without a message."""
        missing = needing("the command line", extra="cli", refusal=click.ClickException)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                with missing, _usage_errors_as(ctx.meta[_WORDS]):
                    return super().invoke(ctx)
            except KeyboardInterrupt:
                ctx.exit(INTERRUPTED)


class JsonUsageError(click.ClickException):
    """A usage error of a command with `--json`: one line of JSON."""

    exit_code: ClassVar[int] = USAGE

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line, by default on standard error."""
        import json

        click.echo(json.dumps({"error": "usage", "message": self.message}), file=file, err=True)


@contextlib.contextmanager
def _usage_errors_as(words: Sequence[str]) -> Iterator[None]:
    """Raise usage errors in the form that the words of the command line ask for."""
    try:
        yield
    except click.UsageError as error:
        if "--json" not in words:
            raise
        raise JsonUsageError(error.format_message()) from None


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning without the line of code that caused it."""
    from agentpay.contract.printable import printable

    click.echo(printable(f"Warning: {message}."), err=True)


@click.command(
    "agentpay", cls=Commands, available=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="agentpay")
def main() -> None:
    """Operate a running agent payment account service.

    Set its URL and your key in AGENTPAY_BASE_URL and AGENTPAY_API_KEY, or with --url and --key after the
    command, or store both with agentpay profiles add. Give an account by its identifier, or by a unique name
    or handle.

    Exit codes: 0 done, 1 failed, 2 usage error, 3 done but the result could not be written, 4 waits for
    approval, 5 refused by policy, pause or balance, 6 outcome unknown, 7 needs attention (status), 130
    interrupted.
    """
