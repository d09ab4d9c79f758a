"""Makes `docs/llms.txt`, the index for language models, of the navigation of the site.

Every page is listed under its section, with its first sentence, which says what a reader will be able to do.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ABOUT = """\
Two Python packages: `agentpay`, the client, and `agentpay_server`, the payment service, in process or on a
port, with real SPL Token transactions on a Solana virtual machine. Amounts are `Decimal`, `int` or `str`,
never `float`. Every payment has an idempotency key. After `TransferOutcomeUnknownError`, call again with the
key that the error carries, never with another key. The Python blocks of these pages run unchanged in
the test suite.
"""


def llms_text() -> str:
    """Return the text."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}", "", ABOUT]
    for entry in project["nav"]:
        ((title, pages),) = entry.items()
        if isinstance(pages, str):
            lines += [_item(title, pages), ""]
            continue
        lines += [f"## {title}", ""]
        lines += [_item(name, path) for page in pages for name, path in page.items()]
        lines.append("")
    lines += ["## Documents", ""]
    lines.append("- [openapi.json](openapi.json): OpenAPI 3.1 of `/v1`, and of the webhooks that it sends.")
    lines.append(
        "- [openapi-extensions.json](openapi-extensions.json): OpenAPI 3.1 of the extensions, outside `/v1`."
    )
    return "\n".join(lines) + "\n"


def opening_of(page: str) -> str:
    """Return the first paragraph of a page, which follows its title, on one line."""
    _, opening, *_ = page.split("\n\n", 2)
    return " ".join(opening.split())


def _item(title: str, path: str) -> str:
    opening = opening_of((ROOT / "docs" / path).read_text("utf-8"))
    sentence = re.split(r'(?<=[.:]) (?=[A-Z`"\[])', opening, maxsplit=1)[0].rstrip(":.")
    return f"- [{title}]({path}): {sentence}."


def files() -> dict[Path, str]:
    """Return the index."""
    return {ROOT / "docs" / "llms.txt": llms_text()}
