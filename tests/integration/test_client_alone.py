"""A client-only installation: parts that need the server say what to install."""

import re
import subprocess
import sys

import pytest

import agentpay
from agentpay.__main__ import main as client_main
from agentpay_server.__main__ import main

WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['click', 'httpx2', 'solders', 'sqlalchemy']))"
WITHOUT_RICH = (
    "del sys.modules['click']; sys.modules['rich'] = None; sys.argv[1:] = ['accounts', 'list']; "
    "from agentpay.__main__ import main"
)


def run(code: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", f"{WITHOUT}; {code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("code", "problem", "extra"),
    [
        ("from agentpay_server import AgentPayServer", "the server needs solders", "test"),
        (
            "from agentpay_server.__main__ import main; main()",
            "^agentpay-server: the server needs click",
            "server",
        ),
        ("from agentpay.__main__ import main; main()", "^agentpay: the command line needs click", "cli"),
        (f"{WITHOUT_RICH}; main()", "^Error: the command line needs rich", "cli"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(code: str, problem: str, extra: str):
    ended = run(code)
    assert ended.returncode == 1
    assert re.search(rf"{problem}, which is not installed: pip install .*\[{extra}\]'?\n$", ended.stderr)


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
