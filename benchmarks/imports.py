"""Importing, in fresh processes, against importing the dependencies; the start of Python counts in both."""

import subprocess
import sys

from harness import Result, compare

CLIENT = "from agentpay import AgentPay"


def run() -> list[Result]:
    """Return the ratios of the import of the package and of its client."""
    floor = "import httpx, attrs, cattrs"
    return [
        compare(
            name,
            subject=lambda code=code: _run(code),
            floor=lambda: _run(floor),
            bound=1.4,
            calls=1,
            rounds=15,
        )
        for name, code in (("import agentpay", "import agentpay"), (CLIENT, CLIENT))
    ]


def _run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)
