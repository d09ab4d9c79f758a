"""`agentpay-server` as a process: its one line, its port, its refusals, its end."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from command_line import Process, next_json, processing
from loaded_python import LoadedPython

from agentpay import AgentPay
from agentpay.cli import main as client_main
from agentpay_server import AgentPayServer, Sandbox
from agentpay_server.cli import main

SERVE = ("serve", "--port", "0")


@contextmanager
def serving(*options: str, is_fresh: bool = False) -> Iterator[tuple[dict[str, str], Process]]:
    with processing(*SERVE, *options, is_fresh=is_fresh) as process:
        yield next_json(process), process


@contextmanager
def serving_on_a_terminal(*options: str) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Serve with a terminal for standard error; gives the line of JSON and what people see."""
    ours, theirs = pty.openpty()
    with LoadedPython("-m", "agentpay_server", *SERVE, *options, stderr=theirs) as process:
        os.close(theirs)
        try:
            announcement = next_json(process)
            shown = ""
            while "server.started" not in shown:
                shown += os.read(ours, 4096).decode()
            yield announcement, shown.splitlines()
        finally:
            process.kill()
            os.close(ours)


def generated_key() -> str:
    result = CliRunner().invoke(main, ["keys", "generate"])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.removesuffix("\n")


def test_serve_prints_its_url_and_key_as_one_json_line_and_never_its_metrics_key() -> None:
    options = ("--clock", "manual", "--metrics-key", "of-the-scraper", "--treasury-low", "2000000000")
    with serving(*options, is_fresh=True) as (announcement, process):
        assert set(announcement) == {"base_url", "operator_key", "console_url"}
        page, _, code = announcement["console_url"].partition("#code=")
        assert page == f"{announcement['base_url']}/dashboard"
        with AgentPay(base_url=announcement["base_url"], api_key=announcement["operator_key"]) as client:
            account = client.accounts.create(name="over a port")
            assert [found.account_id for found in client.accounts.list()] == [account.account_id]
        # Without the option, chain and facilitator are not served.
        rpc, supported = (
            f"{announcement['base_url']}/ext/v1/sandbox/{path}" for path in ("rpc", "x402/supported")
        )
        call = {"jsonrpc": "2.0", "id": 1, "method": "getEpochInfo"}
        assert (httpx.post(rpc, json=call).status_code, httpx.get(supported).status_code) == (401, 401)
        url = f"{announcement['base_url']}/metrics"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": "Bearer of-the-scraper"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0
        assert out == ""
        events = {line["event"]: line for line in map(json.loads, err.splitlines())}
        assert "server.started" in events
        low = events["treasury.low"]
        assert (low["level"], low["threshold_sol"]) == ("warning", "2000000000")
        assert 999_999_999 < float(low["sol"]) <= 1_000_000_000
        for secret in (announcement["operator_key"], code[-20:], "of-the-scraper"):
            assert secret not in err


def test_a_given_key_is_used_by_the_console_link_and_not_shown_on_the_terminal() -> None:
    key = generated_key()
    with (
        serving_on_a_terminal("--operator-key", key) as (announcement, shown),
        AgentPay(base_url=announcement["base_url"], api_key=key) as client,
    ):
        assert announcement["operator_key"] is None
        made = client.console.sign_in(announcement["console_url"].partition("#code=")[2])
        console = client.with_options(api_key=made.key)
        assert console.whoami().operator_id == client.whoami().operator_id
        assert f"export AGENTPAY_BASE_URL={announcement['base_url']}" in shown
        assert "Set AGENTPAY_API_KEY to the operator key that you passed." in shown
        assert key not in "\n".join(shown)


def test_a_key_given_to_a_data_directory_is_never_printed(tmp_path: Path) -> None:
    first_key, second_key = generated_key(), generated_key()
    where = ["--data-dir", str(tmp_path / "data")]
    for given in (first_key, second_key):
        with serving(*where, "--operator-key", given) as (announcement, process):
            assert announcement["operator_key"] is None
            for key in {first_key, given}:
                with AgentPay(base_url=announcement["base_url"], api_key=key) as client:
                    assert list(client.accounts.list()) == []
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=120)
            assert not [key for key in (first_key, second_key) if key in out + err]


def test_the_terminal_shows_exports_that_the_sdk_and_the_commands_accept() -> None:
    with serving_on_a_terminal() as (announcement, shown):
        exported = dict(re.findall(r"^export (\w+)=(\S+)$", "\n".join(shown), re.MULTILINE))
        assert exported == {
            "AGENTPAY_BASE_URL": announcement["base_url"],
            "AGENTPAY_API_KEY": announcement["operator_key"],
        }
        listed = CliRunner(env=exported).invoke(client_main, ["keys", "list", "--json"])
        assert (listed.exit_code, listed.stdout) == (0, "")
        code = "from agentpay import AgentPay; print(list(AgentPay().accounts.list()))"
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **exported}, capture_output=True, check=True
        )
        assert done.stdout.strip() == b"[]"


POSTGRES_NOWHERE = "postgresql://postgres@/x?host=/nowhere"
REMOTE = ("--host", "0.0.0.0", "--allow-remote")
UNUSABLE: list[tuple[tuple[str, ...], int, str]] = [
    (("--host", "0.0.0.0"), 2, "--allow-remote"),
    (REMOTE, 2, "--operator-key"),
    (REMOTE, 2, "agentpay-server keys generate"),
    (("--operator-key", "hunter2"), 2, "ap_operator_"),
    (("--clock", "broken"), 2, "manual"),
    (("--rate-limit", "0"), 2, "--rate-limit"),
    (("--port", "65536"), 2, "--port"),
    (("--session-idle", "0"), 2, "--session-idle"),
    (("--settlement-wait", "nan"), 2, "--settlement-wait"),
    (("--shutdown-wait", "inf"), 2, "--shutdown-wait"),
    (("--session-lifetime", "-1"), 2, "--session-lifetime"),
    (("--data-dir", ""), 2, "'--data-dir': the path must not be empty."),
    (("--in-memory", "--data-dir", "data"), 2, "one of --in-memory, --data-dir and --database-url"),
    (("--data-dir", "data", "--database-url", "postgresql://localhost/x"), 2, "one of"),
    (("--program", "other=program.so"), 2, "other=program.so is not channels=FILE"),
    (("--program", "channels=/nowhere"), 2, "cannot read /nowhere"),
    (("--program", f"channels={__file__}", "--rpc-url", "http://127.0.0.1:1"), 2, "--program is for"),
    (("--program", f"channels={__file__}"), 1, "the program of payment channels cannot run"),
    ((*REMOTE, "--operator-key", "k", "--host", "é" * 64), 1, f"cannot listen on {'é' * 64} port "),
    ((*REMOTE, "--operator-key", "k", "--host", "256.256.256.256"), 1, "pass another --host"),
    (("--database-url", "mysql://localhost/x"), 2, "postgresql://"),
    (("--database-url", "postgresql://localhost:port/x"), 2, "postgresql://"),
    (("--database-url", "postgresql://localhost/x?connect_timeout=9"), 2, "connect_timeout"),
    (("--database-url", POSTGRES_NOWHERE, "--start-wait", "1"), 1, "did not respond"),
]


@pytest.mark.parametrize(("options", "exit_code", "says"), UNUSABLE)
def test_options_that_cannot_be_used_are_refused_in_a_sentence(
    options: tuple[str, ...], exit_code: int, says: str
) -> None:
    environment = {"AGENTPAY_SERVER_ENCRYPTION_KEY": "00" * 32}
    result = CliRunner(env=environment).invoke(main, [*SERVE, *options])
    assert result.exit_code == exit_code
    assert says in result.output
    assert "Traceback" not in result.output


def test_a_database_needs_an_encryption_key() -> None:
    result = CliRunner().invoke(main, [*SERVE, "--database-url", POSTGRES_NOWHERE])
    assert result.exit_code == 1
    assert "AGENTPAY_SERVER_ENCRYPTION_KEY" in result.output


def test_session_limits_are_options_and_the_console_can_be_left_out() -> None:
    limits = ("--session-idle", "60", "--session-lifetime", "90")
    with serving("--clock", "manual", *limits, "--no-dashboard", "--json") as (announcement, _):
        assert set(announcement) == {"base_url", "operator_key"}
        where = {"base_url": announcement["base_url"], "api_key": announcement["operator_key"]}
        with AgentPay(**where) as server:
            payer, payee = (server.accounts.create(name=name).account_id for name in "ab")
            sandbox, open_ = Sandbox(server), server.sessions.open
            sandbox.fund(payer, 3)
            idle, used = (open_(account_id=payer, to=payee, cap_usdc=1).session_id for _ in range(2))
            for seconds, statuses in (
                (59, ["open", "open"]),
                (1, ["settled", "open"]),
                (30, ["settled"] * 2),
            ):
                sandbox.clock.advance(seconds)
                assert [server.sessions.get(each).status for each in (idle, used)] == statuses
                if seconds == 59:
                    server.sessions.charge(used, amount="0.1")


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_port_that_is_taken_is_named(command: str) -> None:
    with AgentPayServer() as server:
        port = server.listen().rpartition(":")[2]
        result = CliRunner().invoke(main, [command, "--port", port])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"cannot listen on 127.0.0.1 port {port}" in result.stderr
    assert "pass another --port" in result.stderr


def test_a_data_directory_must_be_private_survives_a_kill_and_its_key_is_shown_once(tmp_path: Path) -> None:
    data = tmp_path / "their data"
    where = ["--data-dir", str(data), "--clock", "manual"]
    # Writable by others, it is refused with the command that changes this.
    data.mkdir()
    data.chmod(0o775)
    refused = CliRunner().invoke(main, ["serve", "--port", "0", *where])
    assert (refused.exit_code, refused.stdout) == (1, "")
    command = f"chmod go-w '{data}'"
    assert refused.stderr.strip().endswith(f": {command}")
    assert list(data.iterdir()) == []
    subprocess.run(command, shell=True, check=True)
    with serving(*where) as (first, process):
        key = first["operator_key"]
        with AgentPay(base_url=first["base_url"], api_key=key) as client:
            account = client.accounts.create(name="to be found again")
        result = CliRunner().invoke(main, ["serve", "--port", "0", *where])
        assert result.exit_code == 1
        assert "in use by another server" in result.output
        assert "Traceback" not in result.output
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=120)
    with serving(*where) as (second, _):
        assert set(second) == {"base_url", "console_url"}
        with AgentPay(base_url=second["base_url"], api_key=key) as client:
            assert [found.account_id for found in client.accounts.list()] == [account.account_id]


AWAY_BEFORE_THE_ANNOUNCEMENT = """
import sys
from agentpay_server.cli import main
from agentpay_server.database.runner import DatabaseAwayError
from agentpay_server.plugins import console as dashboard

console_url, left = dashboard.console_url, [DatabaseAwayError("PostgreSQL did not respond")] * 2

async def console_url_later(*given):
    if left:
        raise left.pop()
    return await console_url(*given)

dashboard.console_url = console_url_later
main(["serve", "--port", "0", "--start-wait", *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    ("start_wait", "has_link", "event", "times"),
    [("60", True, "server.waiting", 2), ("0", False, "database.unavailable", 1)],
)
def test_a_database_away_before_the_announcement_is_waited_for_or_costs_only_the_link(
    start_wait: str, has_link: bool, event: str, times: int
) -> None:
    with LoadedPython("-c", AWAY_BEFORE_THE_ANNOUNCEMENT, start_wait) as process:
        try:
            assert ("console_url" in next_json(process)) is has_link
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, err.count(event)) == (0, times)
    assert "Traceback" not in err
