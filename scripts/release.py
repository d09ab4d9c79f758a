"""Say what keeps a tag from being released, which the workflow `release` asks before it publishes.

    python scripts/release.py v0.1.0

The tag names the version in agentpay/_version.py, the changelog has an entry for it, and the project has an
address. A version is never uploaded twice: to fix a mistake, release the next one and yank the bad one.
"""

import re
import sys
from pathlib import Path

from home import check_home

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    """Return the version, which is stated in one place."""
    found = re.search(r'__version__[^"]*"([^"]+)"', (ROOT / "agentpay" / "_version.py").read_text("utf-8"))
    if found is None:
        raise SystemExit("agentpay/_version.py states no version")
    return found[1]


def obstacles(tag: str, *, changelog: str) -> list[str]:
    """Return what keeps a tag from being released; empty if nothing does."""
    new = version()
    found = []
    if tag != f"v{new}":
        found.append(f"the tag {tag} is not v{new}: tag v{new}, or set the version in agentpay/_version.py")
    heading = re.search(
        rf"^## {re.escape(new)} · \d{{4}}-\d\d-\d\d$(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if heading is None:
        found.append(
            f"CHANGELOG.md has no heading `## {new} · YYYY-MM-DD`: write it above what is in "
            "this version, with the day of the release"
        )
    elif not heading[1].strip():
        found.append(f"CHANGELOG.md says nothing about {new}: list below its heading what is in this version")
    return found


if __name__ == "__main__":
    if obstacles_found := obstacles(sys.argv[1], changelog=(ROOT / "CHANGELOG.md").read_text("utf-8")):
        raise SystemExit("\n".join(obstacles_found))
    check_home()
    print(f"{sys.argv[1]} can be released")
