"""A type checker's first look at a program of one line that pays: cold, in a fresh process without a cache.

The floor is the same check of a program that imports httpx, attrs and cattrs, which no client does without.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from harness import Result, compare

BOUND_SECONDS = 4.0
PROGRAM = 'from agentpay import AgentPay; AgentPay().transfers.create(from_="a", to="b", amount="1")\n'
FLOOR = "import attrs, cattrs, httpx\n"


def run() -> list[Result]:
    """Return how long `mypy --strict` takes."""
    with tempfile.TemporaryDirectory() as scratch:
        result = compare(
            "mypy --strict of one line, cold",
            subject=lambda: _check(Path(scratch), PROGRAM),
            floor=lambda: _check(Path(scratch), FLOOR),
            bound=None,
            calls=1,
            rounds=5,
        )
    verdict = "ok" if result.subject_us <= BOUND_SECONDS * 1e6 else "MISSED"
    name = f"{result.name} (at most {BOUND_SECONDS:.0f} s: {verdict})"
    return [Result(name, result.subject_us, result.floor_us, result.ratio, None)]


def _check(scratch: Path, program: str) -> None:
    source = scratch / "program.py"
    source.write_text(program)
    cold = ("--no-incremental", "--cache-dir", str(scratch / "cache"), "--config-file", "")
    subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *cold, source],
        check=True,
        cwd=scratch,
        capture_output=True,
    )
