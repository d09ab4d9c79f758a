"""Set the address of the repository, which stands in one place until its owner decides: pyproject.toml.

    python scripts/home.py https://HOST/OWNER/NAME
    python scripts/home.py --check    # fails while it is not decided

The other texts that name it are rewritten.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMED_IN = ("pyproject.toml", "agentpay_lab/pyproject.toml", "README.md", "SECURITY.md", "CONTRIBUTING.md")
UNDECIDED = "https://example.com/"


def home() -> str:
    """Return the address."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["urls"]["Repository"])


def check_home() -> None:
    """End the program while the address is not decided: an index shows what was published for ever."""
    if home().startswith(UNDECIDED):
        raise SystemExit(
            "the project has no home yet: run python scripts/home.py https://HOST/OWNER/NAME, and commit"
        )


def main(new: str) -> None:
    """Write a new address into every text that names the old one."""
    old = home()
    for name in NAMED_IN:
        path = ROOT / name
        path.write_text(path.read_text("utf-8").replace(old, new.rstrip("/")), "utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        check_home()
    else:
        main(sys.argv[1])
