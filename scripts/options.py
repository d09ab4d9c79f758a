"""Makes `docs/reference/options.md`, the settings of the client and of the server, of their declarations.

The client's are the arguments of `AgentPay`, whose docstring explains them. The server's settings declare their
options (`agentpay_server/platform/settings.py`); the others are those of the process.
"""

# ruff: noqa: E501 - lines of a page

import inspect
import re
from pathlib import Path

import click

from agentpay import AsyncAgentPay
from agentpay.cli.options import IS_VISIBLE
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.cli.options import SettingOption
from agentpay_server.cli.serve import serve
from agentpay_server.platform.settings import Settings
from agentpay_server.plugins.cluster.settings import RpcSettings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "options.md"

OPENING = """\
# Configuration

Find each setting of the client and of the server: its unit, its default, and where it is set.

## Client

The arguments of `AgentPay` and `AsyncAgentPay`. Most calls take `timeout`, `max_retries` and `total_timeout` too, for
that call alone ([Options, responses, new paths](../how-to/make-calls.md)).

| argument | default | meaning |
| -- | -- | -- |
{client}
The environment:

| variable | read by | meaning |
| -- | -- | -- |
| `AGENTPAY_BASE_URL`, `AGENTPAY_API_KEY` | client, `agentpay`, `agentpay-mcp` | The service, and the key. |
| `AGENTPAY_LOG` | client, `agentpay` | `info` logs each request to standard error, `debug` its headers too, without secrets. Unset: nothing is logged, unless your program configures the logger `agentpay`. |
| `AGENTPAY_PROFILE`, `AGENTPAY_CONFIG` | `agentpay` | The profile to use, and the file of profiles ([The command line](../how-to/command-line.md)). |
| `AGENTPAY_MCP_TOKEN`, `AGENTPAY_MCP_PRIVATE_ORIGINS` | `agentpay-mcp` | The token that clients of its HTTP port present, and private origins that `fetch_paid` may reach ([Give an agent tools](../how-to/give-tools.md)). |
| `HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` and others of httpx | client | Proxies and certificates. Requests to `localhost`, `*.localhost`, 127.0.0.0/8 and `::1` use no proxy of the environment. |

## Server

The sections below have the options of `agentpay-server serve`, their environment variables, and the arguments of the
same meaning in Python. The guides say how to use them: [Run a server](../how-to/run-a-server.md), [Run on
PostgreSQL](../how-to/postgresql.md), [Work on a Solana cluster](../how-to/validator.md).

For a secret, prefer the variable: other users of the machine may see command lines. `AGENTPAY_SERVER_ENCRYPTION_KEY` has
no option: 64 hexadecimal digits, from which the key that seals stored secrets is read where there is no data directory.
"""


def client_rows() -> str:
    """Return the rows of the client's arguments, as its signature and docstring say them."""
    _, _, listed = (inspect.getdoc(AsyncAgentPay.__init__) or "").partition("Args:\n")
    listed, _, _ = listed.partition("\nRaises:")
    meanings = dict(re.findall(r"^    (\w+): ((?:.|\n(?!    \w))+)", listed, re.MULTILINE))
    rows = []
    for name, parameter in inspect.signature(AsyncAgentPay.__init__).parameters.items():
        if name == "self":
            continue
        default = "" if parameter.default is None else f"`{parameter.default}`"
        meaning = " ".join(meanings[name].split())
        rows.append(_line([f"`{name}`", default, meaning[0].upper() + meaning[1:]]))
    return "\n".join(rows) + "\n"


SECTIONS: dict[type | None, tuple[str, str]] = {
    ServerConfig: ("Data and key", "The arguments are those of `AgentPayServer`."),
    Settings: ("Settings", "The arguments are those of `Settings`, which has some more."),
    RpcSettings: ("Cluster", "The arguments are those of `RpcSettings`, which has some more."),
    None: ("Process", "Only the command has these options."),
}


def options_text() -> str:
    """Return the text."""
    options = [option for option in serve.params if isinstance(option, click.Option)]
    parts = [OPENING.format(client=client_rows())]
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


def files() -> dict[Path, str]:
    """Return the page."""
    return {PAGE: options_text()}
