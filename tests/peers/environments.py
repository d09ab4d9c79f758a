"""Environments of the peers: a virtual environment or a directory of Node for each, built at its first use.

They live in a cache directory, `AGENTPAY_PEERS_DIR` or a separate directory in the user's cache, so that a
peer is installed once for each set of versions. Where a peer cannot be installed, its tests are skipped with
the reason; with `AGENTPAY_PEERS_REQUIRED=1`, as in `nox -s peers`, they fail.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

_INSTALL_SECONDS = 600


def python(*packages: str) -> Path:
    """Return the interpreter of a virtual environment that holds packages of PyPI and nothing else."""

    def build(directory: Path) -> None:
        uv = shutil.which("uv")
        if uv is None:
            _run([sys.executable, "-m", "venv", str(directory / "venv")])
            _run([str(directory / "venv/bin/python"), "-m", "pip", "install", "--quiet", *packages])
            return
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(directory / "venv")])
        interpreter = str(directory / "venv/bin/python")
        _run([uv, "pip", "install", "--quiet", "--python", interpreter, *packages])

    return _built("python", packages, build) / "venv/bin/python"


def node(*packages: str) -> Path:
    """Return a directory whose `node_modules` holds packages of npm."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        _missing("Node and npm are not installed")

    def build(directory: Path) -> None:
        # The peers of some of these packages exclude each other, and are not needed.
        flags = ["--no-audit", "--no-fund", "--no-package-lock", "--legacy-peer-deps", "--silent"]
        _run(["npm", "install", *flags, "--prefix", str(directory), *packages])

    return _built("node", packages, build)


def placed(directory: Path, name: str, text: str) -> Path:
    """Put a program next to the packages that Node must find, and return its path."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = directory / f"{digest}-{name}"
    if not path.exists():
        # Whole or not at all: another test process may be about to run it.
        draft = path.with_name(f"{os.getpid()}-{path.name}")
        draft.write_text(text, "utf-8")
        draft.replace(path)
    return path


def _built(kind: str, packages: Sequence[str], build: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256("\n".join((*packages, sys.version)).encode()).hexdigest()[:12]
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    directory, mark = root / f"{kind}-{digest}", root / f"{kind}-{digest}" / "complete"
    # Test processes start together, and only one is to build.
    with (root / f"{kind}-{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            try:
                build(directory)
            except (OSError, subprocess.SubprocessError) as error:
                told = getattr(error, "stderr", None) or str(error)
                _missing(f"{', '.join(packages)} could not be installed: {told[-500:]}")
            mark.touch()
    return directory


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)


def _missing(reason: str) -> None:
    if os.environ.get("AGENTPAY_PEERS_REQUIRED") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _root() -> Path:
    chosen = os.environ.get("AGENTPAY_PEERS_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentpay" / "peers"


@contextmanager
def running(
    command: Sequence[str], *, environment: dict[str, str], directory: Path
) -> Iterator["subprocess.Popen[str]"]:
    """Run a program of a peer, which is killed in the end."""
    with subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    ) as process:
        try:
            yield process
        finally:
            process.kill()
