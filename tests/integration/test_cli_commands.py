"""Commands that ask a running server: keys, approvals, deliveries, and what there is."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from command_line import CommandLine, pending
from server_world import UNKNOWN, Funded

from agentpay import AgentPay, AuthenticationError
from agentpay_server import AgentPayServer
from agentpay_server.cli import main
from agentpay_server.paywall import Paywall

# --- What there is


@pytest.mark.parametrize("options", [[], ["--extensions"]])
def test_the_documents_are_printed_as_they_are_served(commands: CommandLine, options: list[str]) -> None:
    path = "/openapi-extensions.json" if options else "/openapi.json"
    served = httpx.get(commands.environment["AGENTPAY_BASE_URL"] + path)
    assert commands.shown("openapi", *options) == served.text
    assert commands.shown("openapi", *options, "--json") == served.text


# --- Keys


@pytest.mark.parametrize("kind", ["agent", "operator"])
def test_a_key_is_created_shown_once_and_revoked(commands: CommandLine, kind: str) -> None:
    account_id = commands.funded(name="Payer").account_id
    group = "keys" if kind == "agent" else "operator-keys"
    create = ("keys", "create", "--account", "Payer", "--name") if kind == "agent" else (group, "create")
    made = commands.json(*create, "laptop")
    # Whatever else a list says of a key, it says all that was said when it was created, but the key.
    listed = commands.items(group, "list")[0]
    assert listed.items() >= {name: made[name] for name in made if name != "key"}.items()
    assert "key" not in listed
    with commands.server.client(api_key=made["key"]) as second:
        assert second.whoami().kind == kind
        assert [each.account_id for each in commands.server.client().accounts.list()] == [account_id]
        revoked = commands.json(group, "revoke", "laptop")
        assert revoked == {"key_id": made["key_id"], "status": "revoked"}
        with pytest.raises(AuthenticationError):
            second.whoami()
    assert f"there is no {kind} key named 'laptop'" in commands.refused(group, "revoke", "laptop")

    result = commands.run(*create, "deploy")
    assert result.exit_code == 0
    assert f"ap_{kind}_" in result.stdout
    assert "it is shown only once" in result.stderr
    shown = commands.shown(group, "list")
    assert "deploy" in shown
    assert f"ap_{kind}_" not in shown
    key_id = commands.items(group, "list")[0]["key_id"]
    assert commands.shown(group, "revoke", key_id) == f"{key_id} is revoked\n"


def test_an_operator_key_is_generated_without_a_server() -> None:
    """No address, no key, no network: what is printed is what serve takes."""
    alone = CliRunner(env={"AGENTPAY_BASE_URL": "http://127.0.0.1:1", "AGENTPAY_API_KEY": None})
    results = [alone.invoke(main, ["keys", "generate", *more]) for more in ([], ["--json"])]
    assert [(result.exit_code, result.stderr) for result in results] == [(0, "")] * 2
    keys = [results[0].stdout.removesuffix("\n"), json.loads(results[1].stdout)["key"]]
    assert len(set(keys)) == 2
    for key in keys:
        with AgentPayServer(operator_key=key) as server:
            assert server.operator_key == key
            assert server.client(api_key=key).whoami().kind == "operator"


def test_a_link_signs_in_to_the_console_once(commands: CommandLine) -> None:
    shown = commands.run("console-link").stdout.strip()
    page, _, code = shown.partition("#code=")
    assert page == f"{commands.environment['AGENTPAY_BASE_URL']}/dashboard"
    assert (
        commands.server.client(api_key=commands.server.console.sign_in(code).key).whoami().kind == "operator"
    )
    assert "#code=" in commands.json("console-link")["console_url"]
    assert "console" in commands.shown("operator-keys", "list")


def test_a_truncated_list_says_that_more_exist(commands: CommandLine) -> None:
    account_id = commands.funded().account_id
    for name in "abc":
        commands.json("keys", "create", "--account", account_id, "--name", name)
    result = commands.run("keys", "list", "--limit", "2")
    assert "more than 2" in result.stderr
    assert result.stdout.count("key_") == 3  # the heading, and two keys
    result = commands.run("keys", "list", "--limit", "2", "--json")
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["c", "b"]
    assert "more than 2" in json.loads(result.stderr)["note"]
    assert [key["name"] for key in commands.items("keys", "list", "--limit", "3")] == ["c", "b", "a"]


# --- Results that cannot be written


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [("--json",), ()])
def test_a_payment_whose_result_cannot_be_written_has_not_failed(
    commands: CommandLine, options: tuple[str, ...]
) -> None:
    payer, payee = commands.funded().account_id, commands.client.accounts.create(name="Payee").account_id
    ends = ("--from", payer, "--to", payee, "--amount", "1")
    exit_code, said = commands.unwritten("transfers", "create", *ends, *options)
    (paid,) = commands.client.transfers.list(account_id=payer)
    assert exit_code == 3
    assert "Traceback" not in said
    assert f"look up transfer_id {paid.transfer_id}, idempotency_key {paid.idempotency_key}" in said
    # A list is read again.
    exit_code, said = commands.unwritten("accounts", "list")
    assert (exit_code, said.count("\n")) == (1, 1)
    assert "could not be written" in said


# --- Approvals


def test_a_payment_that_waits_for_approval_names_the_number_of_its_recipients(commands: CommandLine) -> None:
    payer = commands.funded().account_id
    commands.client.policies.update(payer, escalation_threshold=1)
    paywall = Paywall(commands.server)
    paywall.sell("/report", 2, protocols=["mpp"], splits={paywall.address("platform"): "1.9"})
    challenge = httpx.Client(transport=paywall.transport(), base_url=paywall.base_url).get("/report")
    commands.client.payments.authorize(
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


def test_what_waits_and_what_was_done_is_shown_with_names(commands: CommandLine) -> None:
    account_id = commands.funded(name="Payer").account_id
    transfer_id = pending(commands.client, account_id)
    assert transfer_id in commands.shown("approvals", "list")
    assert "rejected" in commands.shown("approvals", "reject", transfer_id, "--reason", "Ask legal first")
    assert "Ask legal first" in str(commands.client.transfers.get(transfer_id).message)
    assert commands.shown("approvals", "list") == "No transfer waits for approval.\n"
    assert commands.refused("approvals", "approve", transfer_id).startswith("Error: not_pending: ")
    commands.client.policies.pause(account_id)
    line = commands.shown("audit", "list").splitlines()[1]
    assert "Payer" in line
    assert account_id not in line
    assert account_id not in commands.shown("requests", "list")


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


def test_a_list_of_deliveries_says_how_many_are_retried_and_wait_for_the_clock(
    commands: CommandLine, given_up: tuple[str, str]
) -> None:
    payer, payee = (commands.client.accounts.create(name=name).account_id for name in "ab")
    commands.server.sandbox.fund(payer, "5")
    commands.server.webhook_inbox(events=["transfer.settled"]).fail_next()
    commands.client.transfers.create(from_=payer, to=payee, amount=1)
    commands.server.sandbox.clock.advance(0)
    undelivered = commands.run("deliveries", "list", "--status", "undelivered")
    assert (given_up[1] in undelivered.stdout, undelivered.stdout.count("dlv_")) == (True, 1)
    said = "Not yet undelivered: 1 being retried. List them with --status retrying."
    assert said in undelivered.stderr
    retrying = commands.run("deliveries", "list", "--status", "retrying")
    assert "Of these, 1 wait for the server's clock" in retrying.stderr


def test_deliveries_are_replayed_by_their_identifier_by_their_event_or_once_if_undelivered(
    commands: CommandLine, given_up: tuple[str, str]
) -> None:
    event_id, delivery_id = given_up
    nothing = {"replayed": 0, "earliest_at": None, "has_more": False}
    at = "2026-01-01T00:00:00.000Z"
    undelivered = ("deliveries", "replay", "--undelivered")
    assert commands.items(*undelivered, "--since", at) == [nothing]
    assert commands.items(*undelivered, "--since", "2025-12-31") == [
        nothing | {"replayed": 1, "earliest_at": at}
    ]
    # On its way, and then received: neither is sent a second time.
    assert commands.items(*undelivered) == [nothing]
    commands.server.sandbox.clock.advance(0)
    (replayed, _) = commands.server.deliveries.list(event_id=event_id)
    assert replayed.status == "delivered"
    assert commands.shown(*undelivered).splitlines()[:2] == ["Replayed", "replayed     0"]

    (made,) = commands.items("deliveries", "replay", delivery_id)
    assert (made["event_id"], made["status"]) == (event_id, "pending")
    second = commands.server.webhook_inbox(events=["transfer.settled"])
    made = commands.items("deliveries", "replay", event_id)
    assert len({delivery["webhook_id"] for delivery in made}) == 2
    (made_one,) = commands.items("deliveries", "replay", event_id, "--webhook", second.webhook_id)
    assert made_one["webhook_id"] == second.webhook_id


def test_a_replay_that_cannot_be_made_is_explained(commands: CommandLine, given_up: tuple[str, str]) -> None:
    unknown, webhook_id = given_up[1][:-4] + "0000", UNKNOWN["webhook_id"]
    said = f"no delivery {unknown}. List deliveries with agentpay deliveries list"
    rows: list[tuple[tuple[str, ...], int, str]] = [
        ((), 2, "IDs of deliveries or events, or --undelivered"),
        (("--undelivered", "evt_1"), 2, "IDs of deliveries or events, or --undelivered"),
        ((given_up[1], "--since", "today"), 2, "--since needs --undelivered"),
        ((given_up[1], unknown), 1, said),
        ((unknown, "--webhook", webhook_id), 1, f"to {webhook_id}"),
    ]
    for arguments, exit_code, words in rows:
        result = commands.run("deliveries", "replay", *arguments)
        assert (result.exit_code, result.stdout) == (exit_code, "")
        assert words in result.stderr


def test_a_failed_replay_neither_prevents_others_nor_hides_those_before(
    commands: CommandLine, given_up: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    event_id, _ = given_up
    result = commands.run("deliveries", "replay", UNKNOWN["event_id"], event_id)
    assert result.exit_code == 1
    assert event_id in result.stdout
    assert f"1 not sent: {UNKNOWN['event_id']}" in result.stderr
    events_type = type(commands.server.client().events)
    replay = events_type.replay

    def replay_once(events: Any, event_id: str, **where: str | None) -> Any:
        made = replay(events, event_id, **where)
        route = "http:POST /ext/v1/console/events/{event_id}/replay"
        commands.server.sandbox.set_fault(route, effect="internal_error")
        return made

    monkeypatch.setattr(events_type, "replay", replay_once)
    result = commands.run("deliveries", "replay", *given_up)
    assert result.exit_code == 6
    assert event_id in result.stdout
    assert "request req_" in result.stderr


# --- What a script reads from the exit code


def test_the_exit_code_says_that_a_transfer_waits_or_is_refused(commands: CommandLine) -> None:
    payer, payee = commands.funded("20").account_id, commands.client.accounts.create(name="Payee").account_id
    commands.client.policies.update(payer, escalation_threshold=5, max_single_transfer=9)
    ends = ["--from", payer, "--to", payee, "--amount"]
    for amount, exit_code in (("1", 0), ("5", 4), ("10", 5)):
        assert commands.run("transfers", "check", *ends, amount, "--json").exit_code == exit_code
        assert commands.run("transfers", "create", *ends, amount, "--json").exit_code == exit_code
    commands.client.policies.pause(payer)
    assert commands.run("transfers", "create", *ends, "1").exit_code == 5
