"""Where `agentpay` is installed without `[server]`: what needs the server says what to install."""

import subprocess
import sys

WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['click', 'httpx2', 'solders', 'sqlalchemy']))"
ADVICE = "which is not installed: pip install 'agentpay[server]'"


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", f"{WITHOUT}; {code}"], capture_output=True, text=True, check=False
    )


def test_the_embedded_server_says_what_to_install():
    ended = run("from agentpay_server import AgentPayServer")
    assert ended.returncode == 1
    assert f"the server needs httpx2, {ADVICE}" in ended.stderr


def test_the_command_says_what_to_install_in_one_line():
    ended = run("from agentpay_server.__main__ import main; main()")
    assert ended.returncode == 1
    assert ended.stderr == f"agentpay-server: the server needs click, {ADVICE}\n"


def test_a_part_of_the_server_that_is_not_there_is_not_taken_for_a_missing_dependency():
    ended = run("from agentpay_server._loading import load; load('agentpay_server.nothing')")
    assert "No module named 'agentpay_server.nothing'" in ended.stderr
    assert ADVICE not in ended.stderr


def test_the_client_and_the_fixtures_of_pytest_load_without_it():
    assert run("import agentpay_server.pytest_plugin; from agentpay import AgentPay").returncode == 0


def test_the_command_runs_as_a_module():
    ended = subprocess.run(
        [sys.executable, "-m", "agentpay_server", "--version"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith("agentpay-server, version ")
