"""A client-only installation: parts that need the server say what to install."""

import re
import subprocess
import sys

import pytest

import agentpay
from agentpay.__main__ import main as client_main
from agentpay._installation import install_command
from agentpay._loading import load
from agentpay_server.__main__ import main

WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['click', 'httpx2', 'solders', 'sqlalchemy']))"
ADVICE = f"which is not installed: {install_command('server')}"


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", f"{WITHOUT}; {code}"], capture_output=True, text=True, check=False
    )


def test_the_embedded_server_names_the_missing_extra():
    ended = run("from agentpay_server import AgentPayServer")
    assert ended.returncode == 1
    advice = f"which is not installed: {install_command('test')}"
    assert f"the server needs solders, {advice}" in ended.stderr


def test_the_server_command_names_the_missing_extra_in_one_line():
    ended = run("from agentpay_server.__main__ import main; main()")
    assert ended.returncode == 1
    assert ended.stderr == f"agentpay-server: the server needs click, {ADVICE}\n"


def test_the_client_command_names_the_missing_extra_in_one_line():
    ended = run("from agentpay.__main__ import main; main()")
    assert ended.returncode == 1
    advice = f"which is not installed: {install_command('cli')}"
    assert ended.stderr == f"agentpay: the command line needs click, {advice}\n"


def test_a_missing_dependency_is_reported_with_its_extra():
    with pytest.raises(
        ModuleNotFoundError, match=f"the server needs no_such_module, {re.escape(ADVICE)}"
    ) as missing:
        load("no_such_module.part", part="the server", extra="server")
    assert missing.value.name == "no_such_module"


def test_a_missing_server_module_is_not_reported_as_a_missing_dependency():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'agentpay_server\.nothing'$"):
        load("agentpay_server.nothing", part="the server", extra="server")


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
