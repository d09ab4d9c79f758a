"""The output of commands for people and programs, and the messages of failing ones."""

import contextlib
import json
import os
import pty
import subprocess
import sys

import pytest
from click.testing import CliRunner
from command_line import NO_CONFIG, WAIT_SECONDS, CommandLine, pending
from receivers import Receiver, closed_port
from server_world import UNKNOWN

from agentpay.cli import main
from agentpay.cli.output import CommandRefusedError, Output
from agentpay_server import AgentPayServer, Settings

ACCOUNT = UNKNOWN["account_id"]
NOWHERE = {"AGENTPAY_API_KEY": None, "AGENTPAY_BASE_URL": None, "AGENTPAY_CONFIG": NO_CONFIG}


def on_a_terminal(
    commands: CommandLine, *arguments: str, typed: bytes = b"", exit_code: int = 0, **environment: str
) -> str:
    """Run a command on a terminal, and return all that it has written there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "agentpay.cli", *arguments],
        stdin=theirs if typed else None,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **commands.environment, **environment},
    ) as process:
        os.close(theirs)
        os.write(ours, typed)
        written = b""
        # Linux returns an error where other systems report the end of input.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                written += part
        os.close(ours)
        assert process.wait(WAIT_SECONDS) == exit_code
    return written.decode()


# --- What people see


def test_server_text_cannot_control_the_terminal(commands: CommandLine) -> None:
    memo = "\x1b]0;owned\x07 [bold]not markup[/bold] :smile: \u202e Straße\n"
    pending(commands.client, commands.funded().account_id, memo=memo)
    shown = commands.shown("approvals", "list")
    assert "\\x1b]0;owned\\x07 [bold]not markup[/bold] :smile: \\u202e Straße\\n" in shown
    assert "\x1b" not in shown  # nor colour, where there is no terminal
    (waiting,) = commands.items("approvals", "list")
    assert waiting["memo"] == memo
    # What an encoding lacks is escaped too.
    result = CliRunner(env=commands.environment, charset="ascii").invoke(main, ["approvals", "list"])
    assert result.exit_code == 0
    assert "Stra\\xdfe" in result.stdout
    # A name as a title.
    account = commands.client.accounts.create(name="Bot\u202etcartxe")
    shown = commands.shown("accounts", "get", account.account_id)
    assert shown.startswith("Bot\\u202etcartxe\n")
    assert "\u202e" not in shown


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["search"], "TEXT"),
        (["payments", "list", "--seller"], "--seller"),
        (["sellers", "pin"], "SELLER"),
        (["sellers", "get"], "SELLER"),
        (["sellers", "pin", "https://a.example", "--category"], "--category"),
        (["accounts", "create"], "NAME"),
        (["webhooks", "create"], "url"),
        (["operator-keys", "create"], "NAME"),
        (["transfers", "create", "--from", ACCOUNT, "--to", ACCOUNT, "--amount", "1", "--memo"], "--memo"),
    ],
)
def test_an_argument_that_is_no_text_is_a_usage_error(
    commands: CommandLine, arguments: list[str], name: str
) -> None:
    """Python reads a byte that is not UTF-8 as a lone surrogate."""
    result = commands.run(*arguments, "Caf\udce9", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    error = json.loads(result.stderr)
    assert error["error"] == "usage"
    assert error["message"].startswith(f"{name} must be text that UTF-8 can encode")


def test_no_proxy_of_the_environment_gets_a_command_for_this_machine(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port()}")
    assert commands.json("whoami")["kind"] == "operator"


def test_a_terminal_shows_colour_and_progress(commands: CommandLine) -> None:
    transfer_id = pending(commands.client, commands.funded().account_id)
    shown = on_a_terminal(commands, "approvals", "approve", transfer_id)
    assert f"Paying {transfer_id}" in shown
    assert "\x1b[32msettled" in shown
    assert "\x1b[3" not in on_a_terminal(commands, "keys", "list", NO_COLOR="1")


def test_a_command_runs_with_closed_standard_streams(commands: CommandLine) -> None:
    create = ["keys", "create", "--account", commands.funded().account_id]
    ended = subprocess.run(
        ["sh", "-c", '"$@" >&- 2>&-', "sh", sys.executable, "-m", "agentpay.cli", *create],
        env={**os.environ, **commands.environment},
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0
    assert len(list(commands.server.agent_keys.list())) == 1


def test_amounts_of_a_list_are_aligned_with_the_same_decimals(commands: CommandLine) -> None:
    payer, payee = commands.funded("200").account_id, commands.client.accounts.create(name="Payee").account_id
    for amount in ("100", "0.5", "2.000001"):
        commands.client.transfers.create(from_=payer, to=payee, amount=amount)
    heading, *rows = commands.shown("transfers", "list").splitlines()
    end = heading.index("amount") + len("amount")
    assert [line[:end].split()[-1] for line in rows] == ["2.000001", "0.500000", "100.000000"]
    assert all(line[end] == " " != line[end - 1] for line in rows)


def test_a_reader_that_closes_the_pipe_is_no_failure_of_what_reads(commands: CommandLine) -> None:
    payer, payee = commands.funded().account_id, commands.client.accounts.create(name="Payee").account_id
    pay = ["transfers", "create", "--from", payer, "--to", payee, "--amount", "1"]
    for arguments, exit_code in ((["accounts", "list"], 0), (["accounts", "get", payer], 0), (pay, 3)):
        ours, theirs = os.pipe()
        os.close(ours)
        ended = subprocess.run(
            [sys.executable, "-m", "agentpay", *arguments],
            env={**os.environ, **commands.environment},
            stdout=theirs,
            stderr=subprocess.PIPE,
            timeout=WAIT_SECONDS,
            check=False,
        )
        os.close(theirs)
        assert ended.returncode == exit_code, arguments
        assert b"Traceback" not in ended.stderr
    (paid,) = commands.client.transfers.list(account_id=payer)
    assert paid.transfer_id.encode() in ended.stderr


@pytest.mark.parametrize(("answer", "is_revoked"), [(b"n\n", False), (b"y\n", True)])
def test_a_terminal_asks_with_names_before_a_key_is_revoked(
    commands: CommandLine, answer: bytes, is_revoked: bool
) -> None:
    key = commands.json(
        "keys", "create", "--account", commands.funded(name="Payer").account_id, "--name", "laptop"
    )
    revoke = ("keys", "revoke", key["key_id"])
    exit_code = 0 if is_revoked else 1
    shown = on_a_terminal(commands, *revoke, typed=answer, exit_code=exit_code, TERM="dumb")
    assert "Revoke agent key 'laptop' of Payer (acct_" in shown
    assert (commands.items("keys", "list") == []) is is_revoked


# --- How they fail


def test_without_a_server_it_says_how_to_start_one() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    arguments = ["keys", "list", "--url", url, "--key", "ap_operator_x"]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: no server responds at {url}. Start one with agentpay-server serve, or set --url or "
        "AGENTPAY_BASE_URL.\n"
    )
    failure = CliRunner().invoke(main, [*arguments, "--json"])
    assert (failure.exit_code, failure.stdout) == (1, "")
    assert json.loads(failure.stderr)["error"] == "no_answer"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["keys", "list"], "AGENTPAY_API_KEY"),
        (["keys", "list", "--key", "a b"], "the API key contains blanks"),
        (["keys", "list", "--key", "k", "--url", "localhost"], "--url must be an address"),
        (["keys", "list", "--key", "k", "--limit", "0"], "--limit"),
        (["keys", "create", "--key", "k"], "--account"),
        (["transfers", "get", "--key", "k", "txn_../x"], "not an identifier such as txn_…"),
        (
            ["accounts", "policy", "--key", "k", "a", "--max-daily-spend", "x"],
            "a number such as 25.50, or none",
        ),
        (["profiles", "add", "a b", "--url", "http://x", "--key", "k"], "letters, digits"),
        (["approvals", "approve", "--key", "k", ""], "txn_…"),
        (["approvals", "reject", "--key", "k", "txn_\udc80"], "txn_…"),
        (["deliveries", "list", "--key", "k", "--event", "evt_\x00"], "evt_…"),
        (["deliveries", "replay", "--key", "k", "evt_1", "txn_1"], "dlv_… or evt_…"),
        (["transfers", "check", "--key", "k", "--to", "a", "--amount", "1e0"], "not an amount of USDC"),
        (["accounts", "policy", "--key", "k", "a", "--max-daily-spend", "1e1"], "25.50, or none"),
        (["accounts", "policy", "--key", "k", "a", "--pause", "--resume"], "either --pause or --resume"),
        (["accounts", "list", "--key", "k", "--all", "--limit", "3"], "either --all or --limit"),
        (["sellers", "pin", "--key", "k", "http://a.example/x"], "SELLER must be an origin without a path"),
        (
            ["sellers", "pin", "--key", "k", "a", "--max-amount", "abc"],
            "'--max-amount': 'abc' is not an amount",
        ),
    ],
)
def test_usage_errors_have_exit_code_2(arguments: list[str], says: str) -> None:
    result = CliRunner(env=NOWHERE).invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_a_refusal_names_its_code_and_what_is_wrong(commands: CommandLine) -> None:
    account_id = commands.funded().account_id
    agent_key = commands.server.agent_keys.create(account_id).key
    create = ("keys", "create", "--account", account_id)
    pay = ("transfers", "create", "--to", account_id, "--amount", "1")
    elsewhere = commands.environment["AGENTPAY_BASE_URL"] + "/v2"
    rows: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        (("keys", "list", "--key", "ap_operator_wrong"), ("Error: unauthorized: ", "--key")),
        (("keys", "list", "--key", agent_key), ("Error: forbidden: ",)),
        ((*create, "--name", "x" * 101), ("--name must have at most 100 characters",)),
        (("keys", "revoke", UNKNOWN["key_id"]), ("not_found",)),
        (("keys", "list", "--url", elsewhere), ("not_found",)),
        ((*pay, "--from", account_id, "--category", ""), ("is invalid: --category must not be empty.\n",)),
        (("budget",), ("an operator key has many accounts: pass ACCOUNT.",)),
        (pay, ("pass --from.",)),
    ]
    for arguments, words in rows:
        said = commands.refused(*arguments)
        assert not [word for word in words if word not in said], said


def test_a_url_of_something_else_is_said_to_be_no_service(commands: CommandLine) -> None:
    with Receiver() as another:
        another.default = 404
        for command in (("keys", "list"), ("accounts", "fund", ACCOUNT, "1")):
            said = commands.refused(*command, "--url", another.url)
            assert f"no agentpay service responds at {another.url}. Start one" in said


def test_a_fault_of_the_server_is_named_and_an_unknown_outcome_asks_to_check(commands: CommandLine) -> None:
    create = ("keys", "create", "--account", commands.funded().account_id)
    with commands.server.sandbox.fault("http:GET /ext/v1/console/agent-keys", effect="internal_error"):
        assert "Request req_" in commands.refused("keys", "list")
    with commands.server.sandbox.fault("http:POST /ext/v1/console/agent-keys", effect="reply_lost"):
        said = commands.refused(*create, exit_code=6)
    assert "it is unknown whether agent_keys.create was done" in said
    assert "Check whether it was done before you try again." in said
    assert len(commands.items("keys", "list")) == 1


def test_an_unknown_outcome_asks_to_check_first(commands: CommandLine) -> None:
    with AgentPayServer(settings=Settings(settlement_wait_seconds=1)) as server:
        client, commands = server.client(), CommandLine(server)
        account_id = client.accounts.create(name="Payer").account_id
        server.sandbox.fund(account_id, 10)
        transfer_id = pending(client, account_id)
        server.sandbox.set_fault("chain_never_lands")
        said = commands.refused("approvals", "approve", transfer_id, exit_code=6)
        assert f"Check transfer {transfer_id} before you try again" in said
        server.sandbox.clear_faults()


def test_control_characters_in_error_messages_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    CommandRefusedError("\x1b[31mred", Output(is_json=False)).show()
    assert capsys.readouterr().err == "Error: \\x1b[31mred\n"
