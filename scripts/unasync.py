"""Makes each `_sync` package of its `_async` sibling, for `generate.py`."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [ROOT / "agentpay", ROOT / "agentpay" / "_pay402", ROOT / "agentpay_server" / "clients"]

HEADER = "# Generated from _async by scripts/unasync.py. Edit that one.\n"

SUBSTITUTIONS = [
    # Blocks that exist only in the async client.
    (r" *# unasync: async only\n(?s:.*?)# unasync: end of async only\n", ""),
    # A sync caller cannot be cancelled.
    (r"( *)with anyio\.CancelScope\(shield=True\):\n +(.*\n)", r"\1\2"),
    # The awaitable and iterable of pages becomes the first page itself.
    (r"\bAsyncPages\(", "Page.first("),
    (r"\bAsyncPages\b", "Page"),
    # A stream connects when it is asked for.
    (r"\bAsyncEventStream\(", "EventStream.open("),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\ba(close|iter|next|read)\b", r"\1"),
    (r"\bAwaitable\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", r"\1"),
    (r"\b(collections\.abc import) (.*)\bAwaitable, ", r"\1 \2"),
    (r"\b(collections\.abc import .*), Generator\b", r"\1"),
    (r"\b_async\b", "_sync"),
    (r"\bA((?:sync) client)", r"S\1"),
    (r"\basync client\b", "sync client"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
]


def unasync(source: str) -> str:
    """Return the sync twin of an async module."""
    for pattern, replacement in SUBSTITUTIONS:
        source = re.sub(pattern, replacement, source)
    return HEADER + source


def files() -> dict[Path, str | None]:
    """Return each generated module, and None for each that has no source."""
    found: dict[Path, str | None] = {}
    for package in PACKAGES:
        found |= dict.fromkeys((package / "_sync").glob("*.py"))
        for path in sorted((package / "_async").glob("*.py")):
            found[package / "_sync" / path.name] = unasync(path.read_text(encoding="utf-8"))
    return found
