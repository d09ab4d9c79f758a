"""`agentpay-server scene`: the state of a running server as a file, which `serve --scene` builds again."""

from pathlib import Path

import click

from agentpay import AgentPay
from agentpay.cli.options import takes_server
from agentpay.cli.output import Output


@click.group()
def scene() -> None:
    """Save the state of a running server as a scene."""


@scene.command("save")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@takes_server
def save(*, server: AgentPay, output: Output, file: Path | None) -> None:
    """Save the state of the server as a scene.

    It has the accounts, policies, keys, webhooks, sellers and history. Standard error names what is left out,
    such as transfers in flight, failed ones, and rejected ones that the present policy would allow.

    FILE is written anew; without it, the scene is printed. The file contains no key and no webhook secret:
    agentpay-server serve --scene FILE creates new ones and prints them. It contains the names, memos and URLs
    of the operator, so keep it as you keep those.
    """
    # Imported late: loading the server takes longer than reporting a usage error.
    from agentpay_server.testkit.scenes.saving import save as saved  # noqa: PLC0415

    with output.progress("Reading the state"):
        scene = saved(server)
    for line in scene.left_out:
        output.note(line)
    if file is None:
        click.echo(scene.text)
        return
    try:
        file.write_text(scene.text, "utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot write {file}: {error.strerror or error}.") from None
    output.note(f"Saved as {file}. Build it with: agentpay-server serve --scene {file}")
