"""`agentpay completion`: the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


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
    root = click.get_current_context().find_root()
    name = root.info_name or "agentpay"
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}.")
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    # Not `source()` of bash, which runs bash to check its version.
    script = found(root.command, {}, name, variable)
    # In fish, the template of click splits at every comma, which cuts `transfer.settled,escalation.required`.
    template = script.source_template.replace('string split ","', 'string split --max 1 ","')
    click.echo(template % script.source_vars())
