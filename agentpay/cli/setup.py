"""`agentpay profiles` and `agentpay completion`: commands for this machine and its shell."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import click

from agentpay.cli import Group
from agentpay.cli.options import IS_VISIBLE, KEY_VARIABLE, URL_VARIABLE, takes_output

if TYPE_CHECKING:
    from agentpay.cli.output import Output
    from agentpay.cli.profiles import Config


_BASH: Final = """\
%(complete_func)s() {
    # Bash splits words at : and @ too, replaces only "$2", and inserts what it is given as it is.
    local line=${COMP_LINE:0:COMP_POINT} type value kept
    kept=${line%%"$2"}; kept=${kept##* }
    [[ $kept$2 ]] || line+="''"
    COMPREPLY=()
    while IFS=, read -r type value; do
        if [[ $type != plain ]]; then
            compopt -o default
        elif [[ $kept != [\\"\\']* ]]; then
            printf -v value %%q "${value#"$kept"}"
            COMPREPLY+=("${value//\\\\,/,}")
        elif [[ $value != *[\\"\\'\\\\\\$\\`]* ]]; then
            COMPREPLY+=("$value")
        fi
    done < <(env COMP_WORDS="$line" COMP_CWORD=-1 %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@click.group(cls=Group)
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
@takes_output
def add_profile(*, output: Output, name: str, url: str, key: str | None) -> None:
    """Store a service, or replace the one with this name. The first one becomes the current one.

    The key is checked first, if the service can be reached.
    """
    from agentpay import errors
    from agentpay.cli.connection import ServerAccess, client_of, reported_errors
    from agentpay.cli.profiles import NAME, Profile, read_config, write_config

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
    path = write_config(read_config().with_profile(name, Profile(base_url=url, api_key=address.key)))
    if output.is_json:
        output.document({"name": name, "base_url": url})
    elif output.is_quiet:
        click.echo(name)
    else:
        kind = f" ({identity.kind} key, {identity.cluster})" if identity else ""
        output.line(f"{name} is stored in {path}{kind}")


@profiles.command("list")
@takes_output
def list_profiles(*, output: Output) -> None:
    """List stored services. Keys are not shown."""
    from agentpay.cli.profiles import read_config

    config = read_config()
    for name, profile in config.profiles.items():
        is_current = name == config.current
        if output.is_json:
            output.document({"name": name, "base_url": profile.base_url, "is_current": is_current})
        elif output.is_quiet:
            click.echo(name)
        else:
            output.line("*" if is_current else " ", name, profile.base_url)
    if not config.profiles and not output.is_json and not output.is_quiet:
        output.line("No profiles. Store one with agentpay profiles add NAME --url URL.")


@profiles.command("use")
@click.argument("name")
@takes_output
def use_profile(*, output: Output, name: str) -> None:
    """Make a service the one that commands use by default."""
    from attrs import evolve

    from agentpay.cli.profiles import write_config

    write_config(evolve(_known(output, name), current=name))
    output.done("name", name, "current")


@profiles.command("remove")
@click.argument("name")
@takes_output
def remove_profile(*, output: Output, name: str) -> None:
    """Delete a service and its key from the file."""
    from agentpay.cli.profiles import write_config

    write_config(_known(output, name).without_profile(name))
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
    from agentpay.cli.output import CommandRefusedError
    from agentpay.cli.profiles import read_config

    config = read_config()
    if name not in config.profiles:
        known = ", ".join(config.profiles) or "none"
        raise CommandRefusedError(f"unknown profile {name!r}; stored: {known}.", output, error="not_found")
    return config


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--json", "_", is_flag=True, expose_value=False, help="Accepted for consistency.")
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: eval "$(agentpay completion bash)" in ~/.bashrc
    zsh:  eval "$(agentpay completion zsh)" in ~/.zshrc, after compinit
    fish: agentpay completion fish > ~/.config/fish/completions/agentpay.fish
    """  # noqa: D301 - the escape stops click from rewrapping the lines
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    name = root.info_name or "agentpay"
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}.")
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    # Not `source()` of bash, which runs bash to check its version.
    script = found(root.command, {}, name, variable)
    source = _BASH if shell == "bash" else script.source_template
    # In fish, the template of click splits at every comma, which cuts `transfer.settled,escalation.required`.
    template = source.replace('string split ","', 'string split --max 1 ","')
    click.echo(template % script.source_vars())
