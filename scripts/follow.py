"""Follow the pages of "Choose your path" literally, each in an empty environment, and time them.

    python scripts/follow.py [PAGE…]

A page is named by its path below `docs`, such as `how-to/local-validator.md`; by default, all tutorials. The
files that a page says to save are saved, and each command of its console blocks runs in one shell, in a copy
of the checkout, with a separate home directory. A command that fails ends the run with its output. So does
a page that takes longer than it promises.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "docs" / "tutorial"
PROMISED_SECONDS = 600
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SAVE = re.compile(r"Save this\s+as\s+`([\w.]+)`")
_RUN = re.compile(r"and\s+run\s+`([^`]+)`")
_COPIED = ("agentpay", "agentpay_server", "pyproject.toml", "README.md", "LICENSE")


def steps(page: str) -> list[str]:
    """Return what a page says to do, as shell commands in order: files to save, and commands to run."""
    done, end = [], 0
    for block in _BLOCK.finditer(page):
        before, end = page[end : block.start()], block.end()
        if block[1] == "console":
            lines = block[2].replace("\\\n", " ").splitlines()
            done += [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        elif saved := _SAVE.findall(before):
            done.append(f"cat > {saved[-1]} <<'END OF FILE'\n{block[2]}END OF FILE")
            if run := _RUN.findall(before):
                done.append(run[-1].replace("\n", " "))
    return done


def follow(path: Path, scratch: Path) -> float:
    """Do what a page says, and return how many seconds it took.

    Raises:
        SystemExit: a command failed, or it took longer than promised.
    """
    page = path.read_text("utf-8")
    checkout = scratch / "checkout"
    checkout.mkdir()
    for name in _COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, checkout / name)
    ending = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
    script = ["set -euo pipefail", "set -m", ending, *steps(page)]
    inherited = {
        name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE") if name in os.environ
    }
    configured = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))}
    start = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],  # noqa: S607 - the shell of the reader
        cwd=checkout,
        env={**inherited, **configured, "HOME": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=2 * PROMISED_SECONDS,
    )
    seconds = time.monotonic() - start
    if done.returncode:
        raise SystemExit(f"{path.name} failed after {seconds:.0f} s:\n{done.stdout}")
    if seconds > PROMISED_SECONDS:
        raise SystemExit(f"{path.name} took {seconds:.0f} s and promises ten minutes")
    return seconds


def main(names: Sequence[str]) -> None:
    """Follow the named pages, or all tutorials."""
    pages = [ROOT / "docs" / name for name in names] or sorted(TUTORIALS.glob("*.md"))
    for page in pages:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            print(f"{page.stem}: {follow(page, Path(scratch)):.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
