"""A client-only installation: parts that need the server say what to install."""

import re
import subprocess
import sys

import pytest

import agentpay
from agentpay.__main__ import main as client_main
from agentpay_server.__main__ import main

WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['click', 'httpx2', 'solders', 'sqlalchemy']))"


def advised(problem: str, extra: str) -> str:
    """Return a pattern of the line that names an extra, and the command that installs it."""
    return rf"{problem}, which is not installed: pip install .*\[{extra}\]'?"


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", f"{WITHOUT}; {code}"], capture_output=True, text=True, check=False
    )


def test_the_embedded_server_names_the_missing_extra():
    ended = run("from agentpay_server import AgentPayServer")
    assert ended.returncode == 1
    assert re.search(advised("the server needs solders", "test"), ended.stderr)


def test_the_server_command_names_the_missing_extra_in_one_line():
    ended = run("from agentpay_server.__main__ import main; main()")
    assert ended.returncode == 1
    assert re.fullmatch(advised("agentpay-server: the server needs click", "server") + "\n", ended.stderr)


def test_the_client_command_names_the_missing_extra_in_one_line():
    ended = run("from agentpay.__main__ import main; main()")
    assert ended.returncode == 1
    assert re.fullmatch(advised("agentpay: the command line needs click", "cli") + "\n", ended.stderr)


def test_the_client_and_the_pytest_fixtures_import_without_the_server_extra():
    assert run("import agentpay_server.pytest_plugin; from agentpay import AgentPay").returncode == 0


@pytest.mark.parametrize(("name", "run_it"), [("agentpay-server", main), ("agentpay", client_main)])
def test_the_command_runs_where_everything_is_installed(monkeypatch, capsys, name, run_it):
    monkeypatch.setattr("sys.argv", [name, "--version"])
    with pytest.raises(SystemExit) as end:
        run_it()
    assert end.value.code == 0
    assert capsys.readouterr().out == f"{name}, version {agentpay.__version__}\n"


@pytest.mark.parametrize("module", ["agentpay_server", "agentpay"])
def test_the_command_runs_as_a_module(module):
    ended = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.endswith(f", version {agentpay.__version__}\n")
