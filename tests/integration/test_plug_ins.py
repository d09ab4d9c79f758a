"""The core works without plug-ins: what is left of the package starts, and keeps its promises."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.unmeasured, pytest.mark.whole]

ROOT = Path(__file__).parents[2]
COPIED = ("agentpay", "agentpay_server", "docs", "pyproject.toml", "tests/contract", "tests/support")
OF_THE_SERVER = ("conftest.py", "test_embedded.py", "test_embedded_callers.py", "test_embedded_port.py")
CONFTEST = """
from hypothesis import settings

settings.register_profile("quick", deadline=None, max_examples=5)
settings.load_profile("quick")
"""


def copy_without_plug_ins(to: Path) -> None:
    """Copy the packages without plug-ins, the tests of the contract, and those of the embedded server."""
    skipped = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=skipped)
        else:
            shutil.copy(ROOT / name, to / name)
    shutil.rmtree(to / "agentpay_server" / "plugins")
    (to / "tests" / "integration").mkdir()
    for name in OF_THE_SERVER:
        shutil.copy(ROOT / "tests" / "integration" / name, to / "tests" / "integration" / name)
    # The one of all tests prepares stores and chains that are plug-ins.
    (to / "tests" / "conftest.py").write_text(CONFTEST)


def test_the_server_keeps_the_contract_without_plug_ins(tmp_path: Path) -> None:
    copy_without_plug_ins(tmp_path)
    options = ("-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not plugin")
    run = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options, "tests"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert run.returncode == 0, run.stdout[-5000:] + run.stderr
    passed = re.search(r"^(\d+) passed", run.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) > 1000
