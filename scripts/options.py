"""Print `docs/reference/options.md`, the options of `agentpay-server serve`, from their declarations.

    python scripts/options.py > docs/reference/options.md

The settings declare their options (`agentpay_server/options.py`); the others are those of the process.
"""

import click

from agentpay.cli.variables import IS_VISIBLE
from agentpay_server.chain.rpc.settings import RpcSettings
from agentpay_server.cli.declared import SettingOption
from agentpay_server.cli.serve import serve
from agentpay_server.config import ServerConfig
from agentpay_server.settings import Settings

OPENING = """\
# Server options

Find each option of `agentpay-server serve`, its environment variable, its default, and the argument of the
same meaning in Python. The guides say how to use them: [Run a server](../how-to/run-a-server.md), [Run on
PostgreSQL](../how-to/postgresql.md), [Work on a Solana cluster](../how-to/validator.md).

For a secret, prefer the variable: other users of the machine may see command lines.
"""

SECTIONS: dict[type | None, tuple[str, str]] = {
    ServerConfig: ("Data and key", "The arguments are those of `AgentPayServer`."),
    Settings: ("Settings", "The arguments are those of `Settings`, which has some more."),
    RpcSettings: ("Cluster", "The arguments are those of `RpcSettings`, which has some more."),
    None: ("Process", "Only the command has these options."),
}


def options_text() -> str:
    """Return the text."""
    options = [option for option in serve.params if isinstance(option, click.Option)]
    parts = [OPENING]
    for kind, (title, opening) in SECTIONS.items():
        rows = [_row(option, kind) for option in options if _kind_of(option) is kind]
        columns = (
            ["option", "default", "meaning"] if kind is None else ["option", "argument", "default", "meaning"]
        )
        head = [_line(columns), _line(["--"] * len(columns))]
        parts.append("\n".join([f"## {title}", "", opening, "", *head, *rows, ""]))
    return "\n".join(parts)


def _kind_of(option: click.Option) -> type | None:
    return option.declared.kind if isinstance(option, SettingOption) else None


def _row(option: click.Option, kind: type | None) -> str:
    text, _, words = (option.help or "").replace(f" {IS_VISIBLE}", "").partition("  [default: ")
    default = words.rstrip("]") or (f"`{option.default}`" if option.show_default else "")
    names = ", ".join(f"`{name}`" for name in option.opts)
    metavar = "" if option.is_flag else option.make_metavar(click.Context(serve))
    shown = names if not metavar else names.removesuffix("`") + f" {metavar}`"
    if isinstance(option, SettingOption) and option.declared.option.variable is not None:
        shown += f", `{option.declared.option.variable}`"
    cells = [shown, default, text]
    if kind is not None and isinstance(option, SettingOption):
        cells.insert(1, f"`{option.declared.field.name}`")
    return _line(cells)


def _line(cells: list[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(escaped) + " |"


if __name__ == "__main__":
    print(options_text(), end="")
