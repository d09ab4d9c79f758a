"""Follow the pages of "Choose your path" literally, each in an empty environment, and time them.

    python scripts/follow.py [PAGE…]
    python scripts/follow.py --together

A page is named by its path below `docs`, such as `how-to/local-validator.md`; by default, all tutorials. With
`--together` all tutorials run one after the other in one shell, as a reader works through them. The
files that a page says to save are saved, and each command of its shell blocks runs in one shell, in a copy
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
_PACKAGES = ("agentpay", "agentpay_server", "agentpay_lab")
_COPIED = (*_PACKAGES, "pyproject.toml", "README.md", "LICENSE", "agentpay-kit.cdx.json")


def steps(page: str) -> list[str]:
    """Return what a page says to do, as shell commands in order: files to save, and commands to run."""
    done, end = [], 0
    for block in _BLOCK.finditer(page):
        before, end = page[end : block.start()], block.end()
        if block[1] == "sh":
            done += block[2].replace("\\\n", " ").splitlines()
        elif saved := _SAVE.findall(before):
            done.append(f"cat > {saved[-1]} <<'END OF FILE'\n{block[2]}END OF FILE")
            if run := _RUN.findall(before):
                done.append(run[-1].replace("\n", " "))
    return done


def follow(paths: Sequence[Path], scratch: Path) -> float:
    """Do what pages say in one shell, and return how many seconds it took.

    Raises:
        SystemExit: a command failed, or it took longer than promised.
    """
    name = ", ".join(path.name for path in paths)
    done_by_readers = [step for path in paths for step in steps(path.read_text("utf-8"))]
    checkout = scratch / "checkout"
    checkout.mkdir()
    for copied in _COPIED:
        copy = shutil.copytree if (ROOT / copied).is_dir() else shutil.copy2
        copy(ROOT / copied, checkout / copied)
    ending = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
    script = ["set -euo pipefail", "set -m", ending, *done_by_readers]
    inherited = {
        each: os.environ[each] for each in ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE") if each in os.environ
    }
    configured = {each: value for each, value in os.environ.items() if each.startswith(("PIP_", "UV_"))}
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
        timeout=2 * PROMISED_SECONDS * len(paths),
    )
    seconds = time.monotonic() - start
    if done.returncode:
        raise SystemExit(f"{name} failed after {seconds:.0f} s:\n{done.stdout}")
    if seconds > PROMISED_SECONDS * len(paths):
        raise SystemExit(f"{name} took {seconds:.0f} s; each promises ten minutes")
    return seconds


def main(names: Sequence[str]) -> None:
    """Follow the named pages, or all tutorials."""
    is_together = "--together" in names
    pages = [ROOT / "docs" / name for name in names if not is_together] or sorted(TUTORIALS.glob("*.md"))
    for group in [pages] if is_together else [[page] for page in pages]:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            seconds = follow(group, Path(scratch))
        print(f"{', '.join(page.stem for page in group)}: {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
