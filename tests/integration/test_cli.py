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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "0.0.0.0"], "--allow-remote"),
        (["--host", "0.0.0.0", "--allow-remote"], "--operator-key"),
        (["--host", "0.0.0.0", "--allow-remote"], "agentpay-server keys generate"),
        (["--port", "0", "--operator-key", "hunter2"], "ap_operator_"),
        (["--clock", "broken"], "manual"),
        (["--rate-limit", "0"], "--rate-limit"),
        (["--port", "65536"], "--port"),
        (["--session-idle", "0"], "--session-idle"),
        (["--settlement-wait", "nan"], "--settlement-wait"),
        (["--shutdown-wait", "inf"], "--shutdown-wait"),
        (["--session-lifetime", "-1"], "--session-lifetime"),
        (["--data-dir", ""], "'--data-dir': the path must not be empty."),
        (["--in-memory", "--data-dir", "data"], "one of --in-memory, --data-dir and --database-url"),
        (["--data-dir", "data", "--database-url", "postgresql://localhost/x"], "one of"),
        (["--program", "other=program.so"], "other=program.so is not channels=FILE"),
        (["--program", "channels=/nowhere"], "cannot read /nowhere"),
        (["--program", f"channels={__file__}", "--rpc-url", "http://127.0.0.1:1"], "--program is for"),
    ],
)
def test_invalid_options_are_refused_with_the_remedy(options: list[str], says: str) -> None:
    result = CliRunner().invoke(main, ["serve", *options])
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


def test_a_file_that_is_no_program_is_reported_in_a_sentence() -> None:
    result = CliRunner().invoke(main, [*SERVE, "--program", f"channels={__file__}"])
    assert result.exit_code == 1
    assert "the program of payment channels cannot run" in result.output
    assert "Traceback" not in result.output


def test_session_limits_are_options_and_the_console_can_be_left_out() -> None:
    limits = ("--session-idle", "60", "--session-lifetime", "90")
    with serving("--clock", "manual", *limits, "--no-dashboard", "--json") as (announcement, _):
        assert set(announcement) == {"base_url", "operator_key"}
        where = {"base_url": announcement["base_url"], "api_key": announcement["operator_key"]}
        with AgentPay(**where) as server:
            payer, payee = (server.accounts.create(name=name).account_id for name in "ab")
            sandbox = Sandbox(server)
            sandbox.fund(payer, 3)
            idle, used = (
                server.sessions.open(account_id=payer, to=payee, cap_usdc=1).session_id for _ in range(2)
            )

            def statuses() -> list[str]:
                return [server.sessions.get(session).status for session in (idle, used)]

            sandbox.clock.advance(59)
            server.sessions.charge(used, amount="0.1")
            assert statuses() == ["open", "open"]
            sandbox.clock.advance(1)
            assert statuses() == ["settled", "open"]
            sandbox.clock.advance(29)
            assert statuses() == ["settled", "open"]
            sandbox.clock.advance(1)
            assert statuses() == ["settled", "settled"]


@pytest.mark.parametrize("host", ["é" * 64, "256.256.256.256"])
def test_an_invalid_address_is_named(host: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--host", host, "--allow-remote", "--operator-key", "k"])
    assert result.exit_code == 1
    assert f"cannot listen on {host} port 8402" in result.output
    assert "pass another --host" in result.output
    assert "Traceback" not in result.output


def test_a_port_that_is_taken_is_named() -> None:
    with AgentPayServer() as server:
        port = server.listen().rpartition(":")[2]
        result = CliRunner().invoke(main, ["serve", "--port", port])
        assert result.exit_code == 1
        assert f"port {port}" in result.output


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


@pytest.mark.parametrize(
    ("url", "key", "exit_code", "says"),
    [
        ("mysql://localhost/x", "00" * 32, 2, "postgresql://"),
        ("postgresql://localhost:port/x", "00" * 32, 2, "postgresql://"),
        ("postgresql://localhost/x?connect_timeout=9", "00" * 32, 2, "connect_timeout"),
        ("postgresql://postgres@/x?host=/nowhere", "00" * 32, 1, "did not respond"),
        ("postgresql://postgres@/x?host=/nowhere", "", 1, "AGENTPAY_SERVER_ENCRYPTION_KEY"),
    ],
)
def test_an_unusable_database_is_reported_in_a_sentence(
    url: str, key: str, exit_code: int, says: str
) -> None:
    environment = {"AGENTPAY_SERVER_ENCRYPTION_KEY": key}
    result = CliRunner(env=environment).invoke(
        main, ["serve", "--port", "0", "--start-wait", "1", "--database-url", url]
    )
    assert result.exit_code == exit_code
    assert says in result.output
    assert "Traceback" not in result.output


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


def test_a_database_that_restarts_before_the_announcement_is_waited_for() -> None:
    with LoadedPython("-c", AWAY_BEFORE_THE_ANNOUNCEMENT, "60") as process:
        try:
            assert "#code=" in next_json(process)["console_url"]
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, err.count("server.waiting")) == (0, 2)


def test_a_database_that_stays_away_before_the_announcement_costs_only_the_link() -> None:
    with LoadedPython("-c", AWAY_BEFORE_THE_ANNOUNCEMENT, "0") as process:
        try:
            assert "console_url" not in next_json(process)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, err.count("database.unavailable")) == (0, 1)
    assert "Traceback" not in err
