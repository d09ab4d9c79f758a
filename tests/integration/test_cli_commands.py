"""Commands that ask a running server: keys, approvals, deliveries, and what there is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner
from command_line import CommandLine, pending
from server_world import UNKNOWN, Funded

from agentpay import AgentPay, AuthenticationError
from agentpay.contract.fields import format_timestamp
from agentpay_server import AgentPayServer
from agentpay_server.cli import COMMANDS, main
from agentpay_server.paywall import Paywall

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


def test_the_list_of_commands_has_the_summary_of_each() -> None:
    context = click.Context(main)
    for name, (_, short) in COMMANDS.items():
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
    for name in COMMANDS:
        assert f"\n  {name} " in result.output
    assert "Exit codes: 0 done" in result.output
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2


@pytest.mark.parametrize("options", [[], ["--extensions"]])
def test_the_documents_are_printed_as_they_are_served(commands: CommandLine, options: list[str]) -> None:
    path = "/openapi-extensions.json" if options else "/openapi.json"
    served = httpx.get(commands.environment["AGENTPAY_BASE_URL"] + path)
    assert commands.shown("openapi", *options) == served.text
    assert commands.shown("openapi", *options, "--json") == served.text


# --- Keys


def test_a_key_is_created_shown_once_and_revoked(
    server: AgentPayServer, client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    account_id = funded().account_id
    made = commands.json("keys", "create", "--account", account_id, "--name", "laptop")
    with server.client(api_key=made["key"]) as agent:
        assert agent.accounts.get(account_id).account_id == account_id
        (listed,) = commands.items("keys", "list")
        shown = ("key_id", "account_id", "name", "created_at", "expires_at", "max_total_usdc")
        assert listed == {"spent_total_usdc": None} | {name: made[name] for name in shown}
        assert commands.json("keys", "revoke", made["key_id"]) == {
            "key_id": made["key_id"],
            "status": "revoked",
        }
        with pytest.raises(AuthenticationError):
            agent.accounts.get(account_id)
    assert commands.items("keys", "list") == []


def test_the_terminal_says_that_a_key_is_shown_once(commands: CommandLine, funded: Funded) -> None:
    result = commands.run("keys", "create", "--account", funded().account_id)
    assert result.exit_code == 0
    assert "ap_agent_" in result.stdout
    assert "it is shown only once" in result.stderr
    shown = commands.shown("keys", "list")
    assert "key_" in shown
    assert "ap_agent_" not in shown
    (listed,) = commands.items("keys", "list")
    assert commands.shown("keys", "revoke", listed["key_id"]) == f"{listed['key_id']} is revoked\n"
    assert "keys create --account" in commands.shown("keys", "list")


def test_an_operator_key_is_generated_without_a_server() -> None:
    """No address, no key, no network: what is printed is what serve takes."""
    alone = CliRunner(env={"AGENTPAY_BASE_URL": "http://127.0.0.1:1", "AGENTPAY_API_KEY": None})
    results = [alone.invoke(main, ["keys", "generate"]) for _ in range(2)]
    assert [(result.exit_code, result.stderr) for result in results] == [(0, "")] * 2
    keys = [result.stdout.removesuffix("\n") for result in results]
    assert len(set(keys)) == 2
    for key in keys:
        with AgentPayServer(operator_key=key) as server:
            assert server.operator_key == key
            assert list(server.client(api_key=key).accounts.list()) == []


def test_an_operator_key_is_generated_as_json(commands: CommandLine) -> None:
    key = commands.json("keys", "generate")["key"]
    with AgentPayServer(operator_key=key) as server:
        assert server.client().whoami().kind == "operator"


def test_an_operator_key_is_created_listed_and_revoked(server: AgentPayServer, commands: CommandLine) -> None:
    made = commands.json("operator-keys", "create", "deploy")
    assert set(made) == {"key_id", "name", "key", "created_at"}
    with server.client(api_key=made["key"]) as second:
        assert list(second.accounts.list()) == []
        newest, _ = commands.items("operator-keys", "list")
        known = {name: made[name] for name in ("key_id", "name", "created_at")}
        assert newest == {**known, "kind": "operator", "expires_at": None}
        revoked = commands.json("operator-keys", "revoke", made["key_id"])
        assert revoked == {"key_id": made["key_id"], "status": "revoked"}
        with pytest.raises(AuthenticationError):
            second.accounts.list()


def test_a_link_signs_in_to_the_console_once(server: AgentPayServer, commands: CommandLine) -> None:
    shown = commands.run("console-link").stdout.strip()
    page, _, code = shown.partition("#code=")
    assert page == f"{commands.environment['AGENTPAY_BASE_URL']}/dashboard"
    assert server.client(api_key=server.console.sign_in(code).key).whoami().kind == "operator"
    assert "#code=" in commands.json("console-link")["console_url"]
    assert "console" in commands.shown("operator-keys", "list")


def test_the_terminal_lists_operator_keys_and_says_that_one_is_shown_once(commands: CommandLine) -> None:
    result = commands.run("operator-keys", "create", "deploy")
    assert result.exit_code == 0
    assert "ap_operator_" in result.stdout
    assert "it is shown only once" in result.stderr
    shown = commands.shown("operator-keys", "list")
    assert "deploy" in shown
    assert "ap_operator_" not in shown


def test_the_last_operator_key_is_not_revoked(commands: CommandLine) -> None:
    (last,) = commands.items("operator-keys", "list")
    told = commands.refused("operator-keys", "revoke", last["key_id"])
    assert told.startswith("Error: last_operator_key: ")
    assert "Create another one" in told


def test_a_truncated_list_says_that_more_exist(commands: CommandLine, funded: Funded) -> None:
    account_id = funded().account_id
    for name in "abc":
        commands.json("keys", "create", "--account", account_id, "--name", name)
    result = commands.run("keys", "list", "--limit", "2")
    assert "more than 2" in result.stderr
    assert result.stdout.count("key_") == 3  # the heading, and two keys
    result = commands.run("keys", "list", "--limit", "2", "--json")
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["c", "b"]
    assert "more than 2" in json.loads(result.stderr)["note"]
    assert [key["name"] for key in commands.items("keys", "list", "--limit", "3")] == ["c", "b", "a"]


# --- Sellers and spending


def test_a_seller_is_pinned_listed_and_unpinned(client: AgentPay, commands: CommandLine) -> None:
    seller = "https://api.example.com"
    pin = commands.json("sellers", "pin", seller, "--max-amount", "0.05", "--category", "data", "--blocked")
    assert (pin["origin"], pin["max_amount"], pin["blocked"]) == (seller, "0.050000", True)
    assert commands.json("sellers", "get", seller) == pin
    assert commands.items("sellers", "list") == [pin]
    replaced = commands.json("sellers", "pin", seller)
    assert (replaced["max_amount"], replaced["category"], replaced["blocked"]) == (None, None, False)
    assert commands.json("sellers", "unpin", seller) == {"origin": seller, "status": "unpinned"}
    assert list(client.sellers.list()) == []
    assert "not_found" in commands.refused("sellers", "get", seller)


def test_spend_sums_what_was_settled(client: AgentPay, commands: CommandLine, funded: Funded) -> None:
    payer, payee = funded().account_id, client.accounts.create(name="Payee").account_id
    client.transfers.create(from_=payer, to=payee, amount="1.25")
    (*_, today) = commands.items("spend", "--account", payer)
    (*_, now) = commands.items("spend", "--by", "hour")
    assert today["settled_usdc"] == now["settled_usdc"] == "1.250000"
    assert "1.25" in commands.shown("spend")


# --- Results that cannot be written


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("option", ["--json", None])
def test_a_payment_whose_result_cannot_be_written_has_not_failed(
    client: AgentPay, commands: CommandLine, funded: Funded, option: str | None
) -> None:
    payer, payee = funded().account_id, client.accounts.create(name="Payee").account_id
    arguments = ["transfers", "create", "--from", payer, "--to", payee, "--amount", "1"]
    exit_code, said = commands.unwritten(*arguments, *filter(None, [option]))
    (paid,) = client.transfers.list(account_id=payer)
    assert exit_code == 3
    assert "Traceback" not in said
    assert f"look up transfer_id {paid.transfer_id}, idempotency_key {paid.idempotency_key}" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_list_that_cannot_be_written_says_so(commands: CommandLine) -> None:
    exit_code, said = commands.unwritten("accounts", "list")
    assert (exit_code, said.count("\n")) == (1, 1)
    assert "could not be written" in said


# --- Approvals


def test_a_payment_that_waits_for_approval_names_the_number_of_its_recipients(
    server: AgentPayServer, client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    payer = funded().account_id
    client.policies.update(payer, escalation_threshold=1)
    paywall = Paywall(server)
    paywall.sell("/report", 2, protocols=["mpp"], splits={paywall.address("platform"): "1.9"})
    challenge = httpx.Client(transport=paywall.transport(), base_url=paywall.base_url).get("/report")
    client.payments.authorize(
        account_id=payer,
        idempotency_key="report",
        url=str(challenge.url),
        headers=challenge.headers,
        body=challenge.content,
    )
    (waiting,) = commands.items("approvals", "list")
    (split,) = waiting["splits"]
    assert split == {"recipient": paywall.address("platform"), "amount_usdc": "1.900000"}
    assert " and 1 more" in commands.shown("approvals", "list", "--wide")


def test_a_transfer_is_approved(client: AgentPay, commands: CommandLine, funded: Funded) -> None:
    transfer_id = pending(client, funded().account_id)
    (waiting,) = commands.items("approvals", "list")
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


def test_an_unpayable_approval_says_what_to_do(
    client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    account_id = funded("5").account_id
    transfer_id = pending(client, account_id)
    outside = client.accounts.create(name="Other").account_id
    client.transfers.create(from_=account_id, to=outside, amount=4)
    said = commands.refused("approvals", "approve", transfer_id, exit_code=5)
    assert said.startswith("Error: insufficient_balance: ")
    assert "Fund the account, then repeat the call with --idempotency-key" in said
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
    (delivery,) = server.deliveries.list(status="undelivered")
    return delivery.event_id, delivery.delivery_id


def test_deliveries_are_listed_by_status(commands: CommandLine, given_up: tuple[str, str]) -> None:
    event_id, delivery_id = given_up
    (listed,) = commands.items("deliveries", "list", "--status", "undelivered", "--event", event_id)
    assert listed["delivery_id"] == delivery_id
    assert len(listed["attempts"]) == 5
    shown = commands.shown("deliveries", "list", "--webhook", listed["webhook_id"])
    assert all(word in shown for word in (delivery_id, event_id, "undelivered", "503"))
    assert commands.items("deliveries", "list", "--status", "delivered") == []


def test_a_list_of_deliveries_says_how_many_are_retried_and_wait_for_the_clock(
    server: AgentPayServer, client: AgentPay, commands: CommandLine, given_up: tuple[str, str]
) -> None:
    payer, payee = (client.accounts.create(name=name).account_id for name in "ab")
    server.sandbox.fund(payer, "5")
    server.webhook_inbox(events=["transfer.settled"]).fail_next()
    client.transfers.create(from_=payer, to=payee, amount=1)
    server.sandbox.clock.advance(0)
    undelivered = commands.run("deliveries", "list", "--status", "undelivered")
    assert (given_up[1] in undelivered.stdout, undelivered.stdout.count("dlv_")) == (True, 1)
    said = "Not yet undelivered: 1 being retried. List them with --status retrying."
    assert said in undelivered.stderr
    retrying = commands.run("deliveries", "list", "--status", "retrying")
    assert "Of these, 1 wait for the server's clock" in retrying.stderr


def test_a_delivery_is_sent_again_by_its_identifier(
    server: AgentPayServer, commands: CommandLine, given_up: tuple[str, str]
) -> None:
    event_id, delivery_id = given_up
    (made,) = commands.items("deliveries", "replay", delivery_id)
    assert (made["event_id"], made["status"]) == (event_id, "pending")
    server.sandbox.clock.advance(0)
    (replayed, _) = server.deliveries.list(event_id=event_id)
    assert (replayed.delivery_id, replayed.status) == (made["delivery_id"], "delivered")


def test_an_event_is_replayed_to_all_current_subscribers_or_to_one(
    server: AgentPayServer, commands: CommandLine, given_up: tuple[str, str]
) -> None:
    event_id, _ = given_up
    second = server.webhook_inbox(events=["transfer.settled"])
    made = commands.items("deliveries", "replay", event_id)
    assert len({delivery["webhook_id"] for delivery in made}) == 2
    (made_one,) = commands.items("deliveries", "replay", event_id, "--webhook", second.webhook_id)
    assert made_one["webhook_id"] == second.webhook_id


def test_an_undelivered_delivery_is_replayed_once(
    server: AgentPayServer, commands: CommandLine, given_up: tuple[str, str]
) -> None:
    event_id, _ = given_up
    (made,) = commands.items("deliveries", "replay", "--undelivered")
    assert made["event_id"] == event_id
    # On its way, and then received: neither is sent a second time.
    assert commands.items("deliveries", "replay", "--undelivered") == []
    server.sandbox.clock.advance(0)
    assert commands.shown("deliveries", "replay", "--undelivered") == "Nothing to send.\n"


def test_a_delivery_to_a_deleted_webhook_is_not_replayed(
    server: AgentPayServer, commands: CommandLine, given_up: tuple[str, str]
) -> None:
    (webhook,) = server.webhooks.list()
    server.webhooks.delete(webhook.webhook_id)
    assert commands.items("deliveries", "replay", "--undelivered") == []


def test_a_failed_replay_does_not_prevent_the_others(
    commands: CommandLine, given_up: tuple[str, str]
) -> None:
    event_id, _ = given_up
    result = commands.run("deliveries", "replay", UNKNOWN["event_id"], event_id)
    assert result.exit_code == 1
    assert event_id in result.stdout
    assert f"1 not sent: {UNKNOWN['event_id']}" in result.stderr


def test_replays_before_a_failure_are_reported(
    server: AgentPayServer, commands: CommandLine, given_up: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events_type = type(server.client().events)
    replay = events_type.replay

    def replay_once(events: Any, event_id: str, **where: str | None) -> Any:
        made = replay(events, event_id, **where)
        server.sandbox.set_fault(
            "http:POST /ext/v1/console/events/{event_id}/replay", effect="internal_error"
        )
        return made

    monkeypatch.setattr(events_type, "replay", replay_once)
    result = commands.run("deliveries", "replay", *given_up)
    assert result.exit_code == 6
    assert given_up[0] in result.stdout
    assert "request req_" in result.stderr


def test_an_unknown_delivery_is_named(commands: CommandLine, given_up: tuple[str, str]) -> None:
    unknown = given_up[1][:-4] + "0000"
    said = commands.refused("deliveries", "replay", given_up[1], unknown)
    assert f"no delivery {unknown}. List deliveries with agentpay deliveries list" in said
    webhook_id = UNKNOWN["webhook_id"]
    assert f"to {webhook_id}" in commands.refused("deliveries", "replay", unknown, "--webhook", webhook_id)


@pytest.mark.parametrize("arguments", [[], ["--undelivered", "evt_1"]])
def test_replay_explains_its_arguments(commands: CommandLine, arguments: list[str]) -> None:
    result = commands.run("deliveries", "replay", *arguments)
    assert result.exit_code == 2
    assert "IDs of deliveries or events, or --undelivered" in result.stderr


# --- What a script reads from the exit code


def test_the_exit_code_says_that_a_transfer_waits_or_is_refused(
    client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    payer, payee = funded("20").account_id, client.accounts.create(name="Payee").account_id
    client.policies.update(payer, escalation_threshold=5, max_single_transfer=9)
    ends = ["--from", payer, "--to", payee, "--amount"]
    for amount, exit_code in (("1", 0), ("5", 4), ("10", 5)):
        assert commands.run("transfers", "check", *ends, amount, "--json").exit_code == exit_code
        assert commands.run("transfers", "create", *ends, amount, "--json").exit_code == exit_code
    client.policies.pause(payer)
    assert commands.run("transfers", "create", *ends, "1").exit_code == 5


# --- Who did what


def test_the_audit_trail_names_keys_and_accounts(
    client: AgentPay, commands: CommandLine, funded: Funded
) -> None:
    account = funded(name="Payer")
    client.policies.pause(account.account_id)
    newest, *_ = commands.items("audit", "list")
    assert (newest["subject"], newest["after"]["paused"]) == (account.account_id, True)
    line = commands.shown("audit", "list").splitlines()[1]
    assert "Payer" in line
    assert account.account_id not in line


def test_requests_are_listed_newest_first(commands: CommandLine, funded: Funded) -> None:
    account_id = funded().account_id
    commands.shown("accounts", "get", account_id)
    newest, *_ = commands.items("requests", "list", "--limit", "5")
    assert (newest["method"], newest["status"]) == ("GET", 200)
    assert account_id not in commands.shown("requests", "list")


def test_a_list_begins_after_a_time_and_has_all_items(
    server: AgentPayServer, client: AgentPay, commands: CommandLine
) -> None:
    for _ in range(101):
        client.accounts.create(name="Early")
    since = format_timestamp(server.sandbox.clock.now())
    server.sandbox.clock.advance(1)
    late = client.accounts.create(name="Late").account_id
    (found,) = commands.items("accounts", "list", "--since", since)
    assert found["account_id"] == late
    assert [each["subject"] for each in commands.items("audit", "list", "--since", since)] == [late, "clock"]
    assert len(commands.items("accounts", "list", "--all")) == 102
