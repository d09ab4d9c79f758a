"""`agentpay profiles`: storing named services."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from agentpay.cli.options import takes_json, takes_quiet
from agentpay.cli.variables import IS_VISIBLE, KEY_VARIABLE, URL_VARIABLE

if TYPE_CHECKING:
    from agentpay.cli.output import Output
    from agentpay.cli.profiles import Config, ConfigError


@click.group()
def profiles() -> None:
    """Store named services with their URL and key.

    They are in one file that only you can read: agentpay/config.toml below $XDG_CONFIG_HOME, by default
    ~/.config, or the file that AGENTPAY_CONFIG names.
    """


@profiles.command("add")
@click.argument("name")
@click.option("--url", envvar=URL_VARIABLE, show_envvar=True, required=True, help="URL of the service.")
@click.option(
    "--key",
    help="Key for it. Default: read from standard input, without echo on a terminal, or "
    f"{KEY_VARIABLE} if the URL is from {URL_VARIABLE}. {IS_VISIBLE}",
)
@takes_quiet
@takes_json
def add_profile(*, name: str, url: str, key: str | None, is_json: bool, is_quiet: bool) -> None:
    """Store a service, or replace the one with this name. The first one becomes the current one.

    The key is checked first, if the service can be reached.
    """
    from agentpay import errors
    from agentpay.cli.connection import ServerAccess, client_of, reported_errors
    from agentpay.cli.output import Output
    from agentpay.cli.profiles import NAME, Profile

    output = Output(is_json=is_json, is_quiet=is_quiet)
    if not NAME.fullmatch(name):
        raise click.BadParameter("use 1 to 64 letters, digits, hyphens and underscores.", param_hint="NAME")
    address = ServerAccess(url=url, key=key or _asked_key())
    with reported_errors(address, output), client_of(address) as client:
        try:
            identity = client.whoami()
        except errors.NotSupportedError:
            identity = None
        except errors.APIConnectionError:
            identity = None
            output.note(f"No server responds at {url}: the key is stored unchecked.")
    config = _read(output)
    path = _written(output, config.with_profile(name, Profile(base_url=url, api_key=address.key)))
    if is_json:
        output.document({"name": name, "base_url": url})
    elif is_quiet:
        click.echo(name)
    else:
        kind = f" ({identity.kind} key, {identity.cluster})" if identity else ""
        output.line(f"{name} is stored in {path}{kind}")


@profiles.command("list")
@takes_quiet
@takes_json
def list_profiles(*, is_json: bool, is_quiet: bool) -> None:
    """List stored services. Keys are not shown."""
    from agentpay.cli.output import Output

    output = Output(is_json=is_json, is_quiet=is_quiet)
    config = _read(output)
    for name, profile in config.profiles.items():
        is_current = name == config.current
        if is_json:
            output.document({"name": name, "base_url": profile.base_url, "is_current": is_current})
        elif is_quiet:
            click.echo(name)
        else:
            output.line("*" if is_current else " ", name, profile.base_url)
    if not config.profiles and not is_json and not is_quiet:
        output.line("No profiles. Store one with agentpay profiles add NAME --url URL.")


@profiles.command("use")
@click.argument("name")
@takes_quiet
@takes_json
def use_profile(*, name: str, is_json: bool, is_quiet: bool) -> None:
    """Make a service the one that commands use by default."""
    from agentpay.cli.output import Output
    from agentpay.cli.profiles import Config

    output = Output(is_json=is_json, is_quiet=is_quiet)
    config = _known(output, name)
    _written(output, Config(profiles=config.profiles, current=name, listen_secret=config.listen_secret))
    output.done("name", name, "current")


@profiles.command("remove")
@click.argument("name")
@takes_quiet
@takes_json
def remove_profile(*, name: str, is_json: bool, is_quiet: bool) -> None:
    """Delete a service and its key from the file."""
    from agentpay.cli.output import Output

    output = Output(is_json=is_json, is_quiet=is_quiet)
    _written(output, _known(output, name).without_profile(name))
    output.done("name", name, "removed")


def _asked_key() -> str:
    """Return the key that is typed. The environment's is for the URL of the environment only."""
    context = click.get_current_context()
    is_same_source = context.get_parameter_source("url") is click.core.ParameterSource.ENVIRONMENT
    stored = os.environ.get(KEY_VARIABLE, "") if is_same_source else ""
    if not sys.stdin.isatty():
        key = sys.stdin.readline().strip() or stored
    else:
        key = stored or click.prompt("Key", hide_input=True).strip()
    if not key:
        raise click.UsageError("no key: pass it on standard input, or as --key.")
    return key


def _known(output: Output, name: str) -> Config:
    from agentpay.cli.connection import CommandRefusedError

    config = _read(output)
    if name not in config.profiles:
        known = ", ".join(config.profiles) or "none"
        raise CommandRefusedError(f"unknown profile {name!r}; stored: {known}.", output, error="not_found")
    return config


def _read(output: Output) -> Config:
    from agentpay.cli.profiles import ConfigError, read_config

    try:
        return read_config()
    except ConfigError as error:
        _refuse(output, error)


def _written(output: Output, config: Config) -> str:
    from agentpay.cli.profiles import ConfigError, write_config

    try:
        return str(write_config(config))
    except ConfigError as error:
        _refuse(output, error)


def _refuse(output: Output, error: ConfigError) -> NoReturn:
    from agentpay.cli.connection import CommandRefusedError

    raise CommandRefusedError(f"{error}.", output, error="config") from None
