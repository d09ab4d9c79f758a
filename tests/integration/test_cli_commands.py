"""Commands that ask a running server: keys, approvals, deliveries; what they print, and how they fail."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner
from command_line import WAIT_SECONDS, CommandLine
from receivers import closed_port
from server_world import UNKNOWN, Funded

from agentpay import AgentPay, AuthenticationError
from agentpay_server import AgentPayServer, Settings
from agentpay_server.cli import _COMMANDS, main
from agentpay_server.cli.connection import RefusedError
from agentpay_server.cli.output import Output
from agentpay_server.clients._sync.console import Console


@pytest.fixture
def commands(server: AgentPayServer) -> CommandLine:
    return CommandLine(server)


def pending(client: AgentPay, account_id: str, *, memo: str | None = None) -> str:
    """Ask for a transfer that waits for approval, and return its identifier."""
    payee = client.accounts.create(name="Payee").account_id
    client.policies.update(account_id, escalation_threshold=5)
    transfer = client.transfers.create(from_=account_id, to=payee, amount=5, memo=memo)
    assert transfer.status == "pending_approval"
    return transfer.transfer_id


def on_a_terminal(commands: CommandLine, *arguments: str, **environment: str) -> str:
    """Run a command on a terminal, and return all that it has written there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "agentpay_server.cli", *arguments],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **commands.environment, **environment},
    ) as process:
        os.close(theirs)
        written = b""
        # Linux answers with an error where other systems say that it is the end.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                written += part
        os.close(ours)
        assert process.wait(WAIT_SECONDS) == 0
    return written.decode()


# --- What there is


def every_command() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", command.commands[inner]) for inner in command.commands)
        else:
            yield name, command


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    context = click.Context(main)
    for name, (_, short) in _COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert (command.help or "").split("\n\n")[0].replace("\n", " ") == short
    assert main.get_command(context, "nonsense") is None


def test_every_command_prints_json_if_asked_for() -> None:
    for name, command in every_command():
        options = [option for parameter in command.params for option in parameter.opts]
        assert "--json" in options, name


def test_the_help_names_every_command_and_the_exit_codes() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name in _COMMANDS:
        assert f"\n  {name} " in result.output
    assert "Exit codes: 0 done" in result.output
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2


@pytest.mark.parametrize("beside", [[], ["--beside"]])
def test_the_documents_are_printed_as_they_are_served(commands: CommandLine, beside: list[str]) -> None:
    path = "/openapi-beside.json" if beside else "/openapi.json"
    served = httpx.get(commands.environment["AGENTPAY_BASE_URL"] + path)
    assert commands.shown("openapi", *beside) == served.text
    assert commands.shown("openapi", *beside, "--json") == served.text


# --- Keys


def test_a_key_is_made_shown_once_and_revoked(
    server: AgentPayServer, client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    account_id = funded().account_id
    made = commands.json("keys", "create", "--account", account_id, "--name", "laptop")
    with server.client(api_key=made["key"]) as agent:
        assert agent.accounts.get(account_id).account_id == account_id
        (listed,) = commands.json("keys", "list")
        assert listed == {name: made[name] for name in ("key_id", "account_id", "name", "created_at")}
        assert commands.json("keys", "revoke", made["key_id"]) == {
            "key_id": made["key_id"],
            "status": "revoked",
        }
        with pytest.raises(AuthenticationError):
            agent.accounts.get(account_id)
    assert commands.json("keys", "list") == []


def test_people_are_told_that_a_key_is_shown_once(commands: CommandLine, funded: Funded) -> None:
    result = commands.run("keys", "create", "--account", funded().account_id)
    assert result.exit_code == 0
    assert "ap_agent_" in result.stdout
    assert "shown now and never again" in result.stderr
    shown = commands.shown("keys", "list")
    assert "key_" in shown
    assert "ap_agent_" not in shown
    (listed,) = commands.json("keys", "list")
    assert commands.shown("keys", "revoke", listed["key_id"]) == f"{listed['key_id']} is revoked\n"
    assert "keys create --account" in commands.shown("keys", "list")


def test_an_operator_has_accounts_of_its_own(
    server: AgentPayServer, commands: CommandLine, funded: Funded
) -> None:
    funded()
    made = commands.json("keys", "create-operator", "Second")
    with server.client(api_key=made["key"]) as second:
        assert list(second.accounts.list()) == []


def test_a_list_says_when_there_is_more_of_it(commands: CommandLine, funded: Funded) -> None:
    account_id = funded().account_id
    for name in "abc":
        commands.json("keys", "create", "--account", account_id, "--name", name)
    result = commands.run("keys", "list", "--limit", "2")
    assert "more than 2" in result.stderr
    assert result.stdout.count("key_") == 3  # the heading, and two keys
    result = commands.run("keys", "list", "--limit", "2", "--json")
    assert [key["name"] for key in json.loads(result.stdout)] == ["c", "b"]
    assert "more than 2" in json.loads(result.stderr)["note"]
    assert [key["name"] for key in commands.json("keys", "list", "--limit", "3")] == ["c", "b", "a"]


# --- Approvals


def test_a_transfer_is_approved(client: AgentPay, commands: CommandLine, funded: Funded) -> None:
    transfer_id = pending(client, funded().account_id)
    (waiting,) = commands.json("approvals", "list")
    assert (waiting["transfer_id"], waiting["amount_usdc"]) == (transfer_id, "5.000000")
    assert transfer_id in commands.shown("approvals", "list")
    assert commands.json("approvals", "approve", transfer_id)["status"] == "settled"
    assert client.transfers.get(transfer_id).status == "settled"
    assert commands.shown("approvals", "list") == "No transfer waits for approval.\n"
    assert commands.refused("approvals", "approve", transfer_id).startswith("Error: not_pending: ")


def test_a_transfer_is_rejected_with_a_reason(
    client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    transfer_id = pending(client, funded().account_id)
    assert "rejected" in commands.shown("approvals", "reject", transfer_id, "--reason", "Ask legal first")
    message = client.transfers.get(transfer_id).message
    assert message is not None
    assert "Ask legal first" in message


def test_what_cannot_be_paid_yet_says_what_to_do(
    client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    account_id = funded("5").account_id
    transfer_id = pending(client, account_id)
    outside = client.accounts.create(name="Other").account_id
    client.transfers.create(from_=account_id, to=outside, amount=4)
    said = commands.refused("approvals", "approve", transfer_id)
    assert said.startswith("Error: insufficient_balance: ")
    assert "fund the account, and do it again" in said
    failure = json.loads(commands.run("approvals", "approve", transfer_id, "--json").stderr)
    assert (failure["error"], failure["transfer_id"]) == ("insufficient_balance", transfer_id)


# --- Deliveries


@pytest.fixture
def given_up(server: AgentPayServer, client: AgentPay, funded: Funded) -> tuple[str, str]:
    """An event that was given up, and the delivery that was."""
    payer, payee = funded().account_id, client.accounts.create(name="Payee").account_id
    inbox = server.webhook_inbox(events=["transfer.settled"])
    inbox.fail_next(503, times=5)
    client.transfers.create(from_=payer, to=payee, amount=1)
    server.sandbox.clock.advance(hours=3)
    (delivery,) = server.console.deliveries(status="undelivered")
    return delivery.event_id, delivery.delivery_id


def test_deliveries_are_listed_by_what_became_of_them(
    commands: CommandLine, given_up: tuple[str, str]
) -> None:
    event_id, delivery_id = given_up
    (listed,) = commands.json("deliveries", "list", "--status", "undelivered", "--event", event_id)
    assert listed["delivery_id"] == delivery_id
    assert len(listed["attempts"]) == 5
    shown = commands.shown("deliveries", "list", "--webhook", listed["webhook_id"])
    assert all(word in shown for word in (delivery_id, event_id, "undelivered", "503"))
    assert commands.json("deliveries", "list", "--status", "delivered") == []


def test_a_delivery_is_sent_again_by_its_identifier(
    server: AgentPayServer, commands: CommandLine, given_up: tuple[str, str]
) -> None:
    event_id, delivery_id = given_up
    (made,) = commands.json("deliveries", "replay", delivery_id)
    assert (made["event_id"], made["status"]) == (event_id, "pending")
    server.sandbox.clock.advance(0)
    (replayed, _) = server.console.deliveries(event_id=event_id)
    assert (replayed.delivery_id, replayed.status) == (made["delivery_id"], "delivered")


def test_an_event_is_sent_to_all_that_ask_for_it_now_or_to_one(
    server: AgentPayServer, commands: CommandLine, given_up: tuple[str, str]
) -> None:
    event_id, _ = given_up
    second = server.webhook_inbox(events=["transfer.settled"])
    made = commands.json("deliveries", "replay", event_id)
    assert len({delivery["webhook_id"] for delivery in made}) == 2
    (made_one,) = commands.json("deliveries", "replay", event_id, "--webhook", second.webhook_id)
    assert made_one["webhook_id"] == second.webhook_id


def test_what_was_given_up_is_sent_again_once(
    server: AgentPayServer, commands: CommandLine, given_up: tuple[str, str]
) -> None:
    event_id, _ = given_up
    (made,) = commands.json("deliveries", "replay", "--undelivered")
    assert made["event_id"] == event_id
    # On its way, and then received: neither is sent a second time.
    assert commands.json("deliveries", "replay", "--undelivered") == []
    server.sandbox.clock.advance(0)
    assert commands.shown("deliveries", "replay", "--undelivered") == "There was nothing to send.\n"


def test_what_was_given_up_to_a_webhook_that_is_gone_is_left(
    server: AgentPayServer, commands: CommandLine, given_up: tuple[str, str]
) -> None:
    (webhook,) = server.console.webhooks()
    server.console.delete_webhook(webhook.webhook_id)
    assert commands.json("deliveries", "replay", "--undelivered") == []


def test_one_that_cannot_be_sent_does_not_hold_back_the_others(
    commands: CommandLine, given_up: tuple[str, str]
) -> None:
    event_id, _ = given_up
    result = commands.run("deliveries", "replay", UNKNOWN["event_id"], event_id)
    assert result.exit_code == 1
    assert event_id in result.stdout
    assert f"1 not sent: {UNKNOWN['event_id']}" in result.stderr


def test_what_was_sent_before_the_server_failed_is_told(
    server: AgentPayServer, commands: CommandLine, given_up: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = Console.replay_event

    def replay_once(console: Console, event_id: str, **where: str | None) -> Any:
        made = replay(console, event_id, **where)
        server.sandbox.set_fault("http:POST /console/events/{event_id}/replay", effect="internal_error")
        return made

    monkeypatch.setattr(Console, "replay_event", replay_once)
    result = commands.run("deliveries", "replay", *given_up)
    assert result.exit_code == 1
    assert given_up[0] in result.stdout
    assert "Request req_" in result.stderr


def test_a_delivery_that_there_is_not_is_named(commands: CommandLine, given_up: tuple[str, str]) -> None:
    unknown = given_up[1][:-4] + "0000"
    said = commands.refused("deliveries", "replay", given_up[1], unknown)
    assert f"no delivery {unknown}; agentpay-server deliveries list" in said
    webhook_id = UNKNOWN["webhook_id"]
    assert f"to {webhook_id}" in commands.refused("deliveries", "replay", unknown, "--webhook", webhook_id)


@pytest.mark.parametrize("arguments", [[], ["txn_1"], ["--undelivered", "evt_1"]])
def test_a_replay_says_what_it_takes(commands: CommandLine, arguments: list[str]) -> None:
    result = commands.run("deliveries", "replay", *arguments)
    assert result.exit_code == 2
    assert "evt_" in result.stderr or "--undelivered" in result.stderr


# --- What people see


def test_nothing_that_a_server_tells_does_anything_to_a_terminal(
    client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    memo = "\x1b]0;owned\x07 [bold]not markup[/bold] :smile: \u202e\n"
    pending(client, funded().account_id, memo=memo)
    shown = commands.shown("approvals", "list")
    assert "\\x1b]0;owned\\x07 [bold]not markup[/bold] :smile: \\u202e\\n" in shown
    assert "\x1b" not in shown  # nor colour, where there is no terminal
    (waiting,) = commands.json("approvals", "list")
    assert waiting["memo"] == memo


def test_a_memo_that_the_encoding_has_no_letters_for_is_shown_all_the_same(
    client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    pending(client, funded().account_id, memo="Straße")
    result = CliRunner(env=commands.environment, charset="ascii").invoke(main, ["approvals", "list"])
    assert result.exit_code == 0
    assert "Stra\\xdfe" in result.stdout


def test_a_terminal_sees_colour_and_what_is_under_way(
    client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    account_id = funded().account_id
    assert "Waiting for transfer.settled" in on_a_terminal(commands, "trigger", "transfer.settled")
    transfer_id = pending(client, account_id)
    shown = on_a_terminal(commands, "approvals", "approve", transfer_id)
    assert f"Paying {transfer_id}" in shown
    assert "\x1b[32msettled" in shown
    assert "\x1b[3" not in on_a_terminal(commands, "keys", "list", NO_COLOR="1")
    assert json.loads(on_a_terminal(commands, "approvals", "list", "--json")) == []


def test_identifiers_are_whole_however_narrow_it_is(
    commands: CommandLine, funded: Funded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    made = commands.json("keys", "create", "--account", funded().account_id)
    assert made["key_id"] in commands.shown("keys", "list")


# --- How they fail


def test_without_a_server_it_says_how_to_start_one() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    arguments = ["keys", "list", "--url", url, "--key", "ap_operator_x"]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: no server answers at {url}: start one with agentpay-server serve, or give --url or "
        "AGENTPAY_BASE_URL.\n"
    )
    failure = CliRunner().invoke(main, [*arguments, "--json"])
    assert (failure.exit_code, failure.stdout) == (1, "")
    assert json.loads(failure.stderr)["error"] == "no_answer"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["keys", "list"], "AGENTPAY_SERVER_OPERATOR_KEY"),
        (["keys", "list", "--key", "a b"], "the API key holds blanks"),
        (["keys", "list", "--key", "k", "--url", "localhost"], "--url must be an address"),
        (["keys", "list", "--key", "k", "--limit", "0"], "--limit"),
        (["keys", "create", "--key", "k"], "--account"),
    ],
)
def test_what_cannot_be_meant_is_said_with_exit_code_2(arguments: list[str], says: str) -> None:
    result = CliRunner(env={"AGENTPAY_SERVER_OPERATOR_KEY": None, "AGENTPAY_BASE_URL": None}).invoke(
        main, arguments
    )
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_a_key_that_is_none_is_answered_with_where_there_is_one(commands: CommandLine) -> None:
    said = commands.refused("keys", "list", "--key", "ap_operator_wrong")
    assert said.startswith("Error: unauthorized: ")
    assert "--key" in said


def test_a_key_of_an_agent_is_told_what_is_missing(
    server: AgentPayServer, commands: CommandLine, funded: Funded
) -> None:
    key = server.console.create_agent_key(funded().account_id).key
    assert "forbidden: " in commands.refused("keys", "list", "--key", key)


def test_faults_of_what_was_asked_are_named(commands: CommandLine, funded: Funded) -> None:
    account_id = funded().account_id
    said = commands.refused("keys", "create", "--account", account_id, "--name", "x" * 101)
    assert "name must have at most 100 characters" in said
    assert "not_found" in commands.refused("keys", "revoke", UNKNOWN["key_id"])


def test_an_answer_that_is_lost_is_not_taken_for_none(
    server: AgentPayServer, commands: CommandLine, funded: Funded
) -> None:
    server.sandbox.set_fault("http:POST /console/agent-keys", 1, effect="reply_lost")
    said = commands.refused("keys", "create", "--account", funded().account_id)
    assert "may have been processed" in said
    assert "Look at what became of it" in said
    assert len(commands.json("keys", "list")) == 1


def test_a_fault_of_the_server_is_told_with_the_request(
    server: AgentPayServer, commands: CommandLine
) -> None:
    server.sandbox.set_fault("http:GET /console/agent-keys", effect="internal_error")
    assert "Request req_" in commands.refused("keys", "list")


def test_money_that_may_be_under_way_is_looked_at_first(funded: Funded) -> None:
    with AgentPayServer(settings=Settings(settlement_wait_seconds=0)) as server:
        client, commands = server.client(), CommandLine(server)
        account_id = client.accounts.create(name="Payer").account_id
        server.sandbox.fund(account_id, 10)
        transfer_id = pending(client, account_id)
        server.sandbox.set_fault("chain_never_lands")
        said = commands.refused("approvals", "approve", transfer_id)
        assert f"look at transfer {transfer_id} before you do it again" in said
        server.sandbox.clear_faults()


def test_a_message_does_nothing_to_a_terminal_either(capsys: pytest.CaptureFixture[str]) -> None:
    RefusedError("\x1b[31mred", Output(is_json=False)).show()
    assert capsys.readouterr().err == "Error: \\x1b[31mred\n"


def test_what_is_no_server_of_ours_is_said_to_be_none(commands: CommandLine) -> None:
    url = commands.environment["AGENTPAY_BASE_URL"] + "/v2"
    assert "not_found" in commands.refused("keys", "list", "--url", url)
