"""The options that commands share.

Importing this module or a command loads nothing that only a run needs, so that help and completion are quick.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agentpay.cli.values import Moment, Seconds
from agentpay.cli.variables import DEFAULT_URL, IS_VISIBLE, KEY_VARIABLE, PROFILE_VARIABLE, URL_VARIABLE

if TYPE_CHECKING:
    from datetime import datetime

    from click.shell_completion import CompletionItem

_Command = TypeVar("_Command", bound=Callable[..., Any])


def takes_server(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the connection options to a command; it is called with `server` and `output`."""

    @functools.wraps(command)
    def with_server(
        *,
        url: str | None,
        key: str | None,
        profile: str | None,
        is_json: bool,
        is_quiet: bool,
        **others: Any,  # noqa: ANN401 - the values of other options
    ) -> None:
        from agentpay.cli.connection import address_of, client_of, reported_errors
        from agentpay.cli.output import Output

        output, address = Output(is_json=is_json, is_quiet=is_quiet), address_of(url, key, profile)
        with reported_errors(address, output), client_of(address) as server:
            command(server=server, output=output, **others)

    return takes_address(takes_json(takes_quiet(with_server)))


def takes_address(command: _Command) -> _Command:
    """Add the options `--url`, `--key` and `--profile` to a command."""
    for option in (
        click.option(
            "--profile",
            metavar="NAME",
            shell_complete=_complete_profile,
            help=f"Service of `profiles add` to use.  [env var: {PROFILE_VARIABLE}]",
        ),
        click.option(
            "--key",
            envvar=KEY_VARIABLE,
            show_envvar=True,
            help=f"Operator key or agent key. {IS_VISIBLE} A profile hides the key, too.",
        ),
        click.option(
            "--url",
            envvar=URL_VARIABLE,
            show_envvar=True,
            help=f"URL of the server.  [default: {DEFAULT_URL}]",
        ),
    ):
        command = option(command)
    return command


def takes_json(command: _Command) -> _Command:
    """Add `--json`; the command is called with `is_json`."""
    return click.option("--json", "is_json", is_flag=True, help="Print JSON, one object per line.")(command)


def takes_quiet(command: _Command) -> _Command:
    """Add `--quiet`; the command is called with `is_quiet`."""
    return click.option(
        "-q", "--quiet", "is_quiet", is_flag=True, help="Print only the identifier, or only the new key."
    )(command)


def takes_yes(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--yes`; the command is called with `is_yes`."""
    return click.option("-y", "--yes", "is_yes", is_flag=True, help="Do not ask on a terminal.")(command)


def takes_listing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of lists to a command; it is called with `listing`."""

    @functools.wraps(command)
    def with_listing(
        *,
        limit: int,
        is_all: bool,
        since: datetime | None,
        until: datetime | None,
        is_csv: bool,
        is_wide: bool,
        is_watched: bool,
        interval: float,
        **others: Any,  # noqa: ANN401 - the values of other options
    ) -> None:
        from agentpay.cli.listing import Listing

        source = click.get_current_context().get_parameter_source("limit")
        if is_all and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("pass either --all or --limit.")
        is_whole = is_all or (is_csv and source is not click.core.ParameterSource.COMMANDLINE)
        if is_csv and (is_watched or others["is_json"] or others["is_quiet"]):
            raise click.UsageError("pass --csv without --watch, --json and --quiet.")
        listing = Listing(
            limit=None if is_whole else limit,
            since=since,
            until=until,
            is_csv=is_csv,
            is_wide=is_wide,
            watch_seconds=interval if is_watched else None,
        )
        command(listing=listing, **others)

    for option in (
        click.option(
            "--interval",
            type=Seconds(0.05, 3600),
            default=2.0,
            show_default=True,
            metavar="SECONDS",
            help="Pause between two refreshes with --watch.",
        ),
        click.option("--watch", "is_watched", is_flag=True, help="Repeat until Ctrl-C; show changes."),
        click.option("--wide", "is_wide", is_flag=True, help="Show every column, and exact times."),
        click.option("--csv", "is_csv", is_flag=True, help="Print CSV: all items, every field."),
        click.option("--all", "is_all", is_flag=True, help="All items."),
        click.option(
            "--until",
            type=Moment(),
            metavar="TIME",
            help="Only up to and including this time.",
        ),
        click.option(
            "--since",
            type=Moment(),
            metavar="TIME",
            help="Only after this time, such as 2026-01-31T12:00:00Z.",
        ),
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            default=100,
            show_default=True,
            help="Largest number of items.",
        ),
    ):
        with_listing = option(with_listing)
    return with_listing


def complete_account(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name, the handle or the identifier of an account, from the service that is set up."""
    from agentpay.cli.naming import completed_accounts

    return completed_accounts(context, parameter, incomplete)


def _complete_profile(
    _context: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from agentpay.cli.profiles import ConfigError, read_config

    try:
        names = read_config().profiles
    except ConfigError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
