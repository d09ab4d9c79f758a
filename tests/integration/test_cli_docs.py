"""The page about the command line is complete, and all its commands are valid."""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from agentpay.cli import main as client
from agentpay_lab.cli import main as laboratory
from agentpay_server.cli import main as server

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "command-line.md").read_text("utf-8")
EVERYTHING = "\n".join(page.read_text("utf-8") for page in DOCS.rglob("*.md"))


PROGRAMS = {"agentpay": client, "agentpay-server": server, "agentpay-lab": laboratory}


def shell_lines(text: str) -> list[list[str]]:
    """Return the command lines of ours in the shell blocks of a page."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    pattern = r"^agentpay(?:-server|-lab)? .*$"
    lines = re.findall(pattern, "\n".join(blocks).replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join([*path, name]), command


COMMANDS = {**dict(commands(client)), **dict(commands(server)), **dict(commands(laboratory))}


def parsed(arguments: list[str]) -> click.Context:
    """Parse a command line without running it; an invalid one raises."""
    command: click.Command = PROGRAMS[arguments[0]]
    arguments = arguments[1:]
    for shell in ("||", "|", ">"):
        if shell in arguments:
            arguments = arguments[: arguments.index(shell)]
    while isinstance(command, click.Group):
        name, *arguments = arguments
        found = command.get_command(click.Context(command), name)
        assert found is not None, name
        command = found
    return command.make_context(command.name, arguments)


@pytest.mark.parametrize("arguments", shell_lines(EVERYTHING), ids=" ".join)
def test_every_command_line_of_the_docs_parses(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (argument for argument in arguments if argument.endswith(".json")):
        Path(file).touch()
    # An option such as --list prints and exits while it is parsed.
    with suppress(click.exceptions.Exit), parsed(arguments) as context:
        assert context.command.callback is not None


def test_every_command_and_option_is_in_the_docs() -> None:
    shown = [" ".join(arguments[1:]) for arguments in shell_lines(PAGE)]
    assert len(shown) > len(COMMANDS)
    for name, command in COMMANDS.items():
        assert any(line.startswith(name) for line in shown) or f"`{name}" in PAGE, name
        options = [option for parameter in command.params for option in parameter.opts]
        for option in options:
            assert not option.startswith("--") or re.search(rf"{option}\b", EVERYTHING), (name, option)


def test_the_exit_codes_of_the_page_are_those_of_the_help() -> None:
    stated = set(re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE))
    assert len(stated) > 4
    for name, program in PROGRAMS.items():
        said = " ".join((program.help or "").split())
        # The laboratory pays nothing of its own.
        expected = stated - {"3", "4", "5", "6", "7"} if name == "agentpay-lab" else stated
        assert set(re.findall(r"\b(\d+) [a-z]", said)) == expected, name
