"""Which tests a change must pass: `pytest --ring gate`, and what that leaves out: `pytest --ring rest`.

The gate leaves out tests that take over ten seconds, and of the cells of the kill matrix beyond single kill
points nine of ten: those that run change with each commit, so that ten commits run all. After a change that
touches money it leaves out nothing.
"""

import subprocess
from pathlib import Path
from zlib import crc32

import pytest

ROOT = Path(__file__).parent.parent.parent
_TURNS = 10
_MONEY = (
    "agentpay/_pay402",
    "agentpay_server/chain",
    "agentpay_server/database",
    "agentpay_server/engine",
    "agentpay_server/ledger",
    "agentpay_server/plugins/channels",
    "agentpay_server/plugins/cluster",
    "agentpay_server/plugins/pay402",
    "agentpay_server/plugins/postgres",
    "agentpay_server/sessions",
    "agentpay_server/transfers",
)
"""The folders in which money, the chain, the store and sessions are."""


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the tests of the ring that the run was told."""
    if (ring := config.getoption("--ring")) is None:
        return
    turn = _turn()
    left = [item for item in items if _in_gate(item, turn) == (ring == "gate")]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(left)])
    items[:] = left


def _in_gate(item: pytest.Item, turn: int | None) -> bool:
    if turn is None:
        return True
    if item.get_closest_marker("matrix"):
        return crc32(item.nodeid.encode()) % _TURNS == turn
    return item.get_closest_marker("whole") is None


def _turn() -> int | None:
    """Return which cells have their turn; None means all, as after a change that touches money."""
    try:
        number = int(_git("rev-list", "--count", "HEAD"))
        changed = _git("diff", "--name-only", _base(), "--", *_MONEY)
    except (OSError, subprocess.CalledProcessError):
        return None  # Not a checkout, or one without history.
    return None if changed else number % _TURNS


def _base() -> str:
    """Return what the checkout is compared with: where it left the main branch, or the commit before it."""
    try:
        left = _git("merge-base", "HEAD", "origin/main")
    except subprocess.CalledProcessError:
        left = ""
    return left if left and left != _git("rev-parse", "HEAD") else "HEAD~1"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
