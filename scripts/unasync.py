"""Generate each `_sync` package from its `_async` sibling; with `--check`, check that all are up to date."""

import re
import sys
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


def main() -> int:
    """Write the generated modules; with `--check`, write nothing and return 1 if one is out of date."""
    check = "--check" in sys.argv[1:]
    wanted = {
        package / "_sync" / path.name: unasync(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((package / "_async").glob("*.py"))
    }
    stale = [path for package in PACKAGES for path in (package / "_sync").glob("*.py") if path not in wanted]
    stale += [
        path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        print(f"{'stale' if check else 'wrote'}: {path.relative_to(ROOT)}")
        if not check and path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        elif not check:
            path.unlink()
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
