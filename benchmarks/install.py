"""The size of a client-only install: packages, and bytes with the bytecode that pip compiles.

It is measured in a new environment, into which this checkout is installed without extras.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import Result

ROOT = Path(__file__).resolve().parent.parent
MEGABYTES_MAX, PACKAGES_MAX = 12, 12


def run() -> list[Result]:
    """Return the size and the number of packages, each against the most that it may be."""
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch, "site")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site), str(ROOT)],
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
            f"client-only install: {megabytes:.1f} MB of at most {MEGABYTES_MAX}",
            megabytes,
            MEGABYTES_MAX,
            megabytes / MEGABYTES_MAX,
            1.0,
        ),
        Result(
            f"client-only install: {packages} packages of at most {PACKAGES_MAX}",
            packages,
            PACKAGES_MAX,
            packages / PACKAGES_MAX,
            1.0,
        ),
    ]
