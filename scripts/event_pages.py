"""Makes the lists of event types in the documentation of the registry `agentpay.contract.events.EVENTS`.

A list stands between two comments. What follows it on its page is written by hand.
"""

import re
from pathlib import Path

import attrs

from agentpay.contract.events import EVENTS
from agentpay.contract.schemas import wire_name

DOCS = Path(__file__).resolve().parent.parent / "docs"

_LIST = re.compile(r"(<!-- event types: [^\n]* -->\n\n).*?(\n<!-- end -->)", re.DOTALL)


def table() -> str:
    """Return a row for each type: its name, when it fires, and its fields."""
    lines = ["| type | fires when | `data` |", "| -- | -- | -- |"]
    for kind in EVENTS.values():
        fields = ", ".join(f"`{wire_name(field)}`" for field in attrs.fields(kind.data))  # type: ignore[arg-type]
        lines.append(f"| `{kind.name}` | {kind.sentence} | {fields} |")
    return "".join(f"{line}\n" for line in lines)


def references() -> str:
    """Return a reference to both classes of each type."""
    classes = (model.__name__ for kind in EVENTS.values() for model in (kind.model, kind.data))
    return "\n".join(
        f"::: agentpay.webhooks.{name}\n    options:\n      heading_level: 3\n" for name in classes
    )


PAGES = {"reference/events.md": table, "reference/python/webhooks.md": references}


def page(name: str) -> str:
    """Return a page with its list renewed."""
    text, count = _LIST.subn(
        lambda found: found[1] + PAGES[name]() + found[2], (DOCS / name).read_text("utf-8")
    )
    assert count == 1, name  # noqa: S101 - a page without a place for the list
    return text


def files() -> dict[Path, str]:
    """Return each page."""
    return {DOCS / name: page(name) for name in PAGES}
