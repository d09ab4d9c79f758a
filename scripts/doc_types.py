"""Check the Python blocks of the documentation as a user's own code: mypy --strict, and pyright.

    python scripts/doc_types.py [mypy] [pyright]

Each block becomes a module, with as many empty lines before it as the page has, so that an error refers to
the line of the page.
"""

import json
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def write_blocks(directory: Path) -> int:
    """Write each block of each page as a module; return how many there are."""
    count = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
        for block in _BLOCK.finditer(text):
            lines_before = text[: block.start(2)].count("\n")
            path = directory / f"{name}_{lines_before + 1}.py"
            path.write_text("\n" * lines_before + textwrap.dedent(block[2]), encoding="utf-8")
            count += 1
    return count


def main(checkers: list[str]) -> int:
    """Check all blocks and the examples with the named checkers; return 1 when one is not clean."""
    with tempfile.TemporaryDirectory() as scratch:
        # The examples find each other as they do when they are run.
        paths = [str(folder) for folder in (ROOT / "examples").iterdir() if folder.is_dir()]
        settings = Path(scratch, "pyrightconfig.json")
        settings.write_text(json.dumps({"extraPaths": paths}), encoding="utf-8")
        directory = Path(scratch, "blocks")
        directory.mkdir()
        print(f"{write_blocks(directory)} blocks")
        checked = [str(path) for path in sorted(directory.glob("*.py"))]
        checked += [str(path) for path in sorted((ROOT / "examples").rglob("*.py"))]
        commands = {
            # With the settings and in the directory of the packages' own check, whose cache it takes over.
            "mypy": [sys.executable, "-m", "mypy", *checked],
            "pyright": [
                *(sys.executable, "-m", "pyright", "--project", str(settings)),
                *("--pythonpath", sys.executable, *checked),
            ],
        }
        codes = [subprocess.run(commands[checker], check=False, cwd=ROOT).returncode for checker in checkers]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["mypy", "pyright"]))
