"""The size of an install, with each extra that the README names: packages, and bytes without bytecode.

Each is measured in a new environment, into which this checkout is installed. These are the README's figures.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import Result

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"": (8, 12), "[test]": (85, 22), "[server]": (95, 33)}
"""The most megabytes and packages of each."""


def run() -> list[Result]:
    """Return the size and the number of packages of each, against the most that they may be."""
    return [result for extras, most in EXTRAS.items() for result in _measured(extras, *most)]


def _measured(extras: str, megabytes_max: int, packages_max: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch, "site")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-compile",
                "--target",
                str(site),
                f"{ROOT}{extras}",
            ],
            check=True,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "list", "--path", str(site), "--format", "json"],
            check=True,
            stdout=subprocess.PIPE,
        )
        megabytes = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6
        packages = len(json.loads(listed.stdout))
    return [
        Result(
            f"install .{extras}: {megabytes:.1f} MB of at most {megabytes_max}",
            megabytes,
            megabytes_max,
            megabytes / megabytes_max,
            1.0,
        ),
        Result(
            f"install .{extras}: {packages} packages of at most {packages_max}",
            packages,
            packages_max,
            packages / packages_max,
            1.0,
        ),
    ]
