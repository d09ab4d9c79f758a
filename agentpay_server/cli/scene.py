"""`agentpay-server scene`: scenes of a running server, as files and by name."""

from pathlib import Path
from typing import Final

import click

from agentpay import AgentPay
from agentpay.cli.columns import Column
from agentpay.cli.options import takes_server
from agentpay.cli.output import Output
from agentpay.contract.printable import printable

_COLUMNS: Final = [
    Column("scene", lambda scene: scene.name),
    Column("state", lambda scene: scene.description, is_text=True),
]
_SUFFIX: Final = ".toml"
_BUILD_SECONDS: Final = 600


@click.group()
def scene() -> None:
    """List, build and save scenes: states of a running server."""


@scene.command("list")
@takes_server
def list_scenes(*, server: AgentPay, output: Output) -> None:
    """List the scenes that come with the server."""
    from agentpay_server.clients import Sandbox  # noqa: PLC0415 - as below

    output.items(list(Sandbox(server).scenes(limit=100)), _COLUMNS, empty="No scenes.")


@scene.command("build")
@click.argument("scene_", metavar="SCENE")
@takes_server
def build(*, server: AgentPay, output: Output, scene_: str) -> None:
    """Build a scene on a running server, on a test chain.

    SCENE is a name that agentpay-server scene list prints, or a file whose name ends in .toml, of at most
    60,000 characters. The accounts of the scene are new, beside the existing ones. The server builds it in
    memory first: if that fails, nothing is stored. Prints the accounts, and their keys and secrets, which are
    shown only once; with --quiet, only the identifiers of the accounts.
    """
    from agentpay_server.clients import Sandbox  # noqa: PLC0415 - as below

    document = _content(Path(scene_)) if scene_.endswith(_SUFFIX) else None
    with output.progress("Building the scene"):
        created = Sandbox(server).create_scene(
            scene_ if document is None else None, document=document, timeout=_BUILD_SECONDS
        )
    if output.is_quiet and not output.is_json:
        for account_id in created.accounts.values():
            click.echo(printable(account_id))
        return
    output.record_once(created, "Scene")


def _content(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{file} is not UTF-8 text.") from None


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
