"""Run a session of the noxfile with only Python installed: put nox and uv into .venv, and run it.

    python3 scripts/run.py quickstart
    python3 scripts/run.py quick

Without arguments it runs all sessions that a change must pass.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
TAKES = {
    "": "The gate, which every change must pass: about 15 minutes on two idle cores, and 1.5 GB.",
    "all": "All checks and tests: about 30 minutes on two idle cores, and 3 GB.",
    "sdk": "The tests of the client and of the contract: about 2 minutes and 200 MB.",
    "quick": "Most tests, with servers in memory: about 3 minutes and 600 MB.",
    "quickstart": "A tour of the package: about 20 seconds at the first time, and 100 MB.",
}
"""The cost of a run, printed before it begins."""


def main() -> int:
    """Run nox and return its exit code."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the one file that another Python may run
        print("agentpay needs Python 3.11 or newer", file=sys.stderr)
        return 2
    takes = TAKES.get(" ".join(sys.argv[1:]))
    if takes:
        print(f"{takes} Everything is kept below .nox and .venv; remove both to undo it.", flush=True)
    if not PYTHON.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    if subprocess.run([PYTHON, "-c", "import nox, uv"], capture_output=True, check=False).returncode:
        pinned = ("--constraint", ROOT / "constraints.txt", "nox[uv]>=2025.11,<2027")
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *pinned], check=True)
    # One option with every name: of several options, nox takes the last.
    sessions = ["--session", *sys.argv[1:]] if sys.argv[1:] else []
    # At the end: sessions and tests find uv, and no other program is hidden.
    environment = {**os.environ, "PATH": os.pathsep.join((os.environ["PATH"], str(PYTHON.parent)))}
    command = [str(PYTHON), "-m", "nox", "--noxfile", str(ROOT / "noxfile.py"), *sessions]
    if sys.platform != "win32":
        # Replaces this process, so that only nox handles Ctrl-C.
        os.execve(command[0], command, environment)
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
