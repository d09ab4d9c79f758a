"""`agentpay status`: one screen, and an exit code by which a monitor knows whether all is well."""

import json
import re

import bounds
import money
import pytest
from command_line import CommandLine, pending
from outages import database_away

from agentpay_server import Sandbox


@pytest.fixture(autouse=True)
def probed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request ask the parts of the server, not the first one of a second for all."""
    bounds.shorten(monkeypatch, probed_every_seconds=0)


def test_all_is_well_while_accounts_are_paused_and_transfers_wait(commands: CommandLine) -> None:
    payer = commands.funded(name="Payer").account_id
    pending(commands.client, payer)
    commands.client.policies.pause(payer)
    shown = commands.shown("status").splitlines()
    assert shown[0] == "operator: all is well"
    assert [line.split(maxsplit=1) for line in shown[1:]] == [
        ["chain", "responds"],
        ["treasury", shown[2].split(maxsplit=1)[1]],
        ["accounts", "2, 0 suspended, 1 paused"],
        ["approvals", "1 waiting"],
        ["deliveries", "0 undelivered, 0 being retried"],
        ["sessions", "0 open"],
        ["stuck", "0 settlements"],
    ]
    assert shown[2].endswith(" SOL, its use is not measured yet")
    assert commands.shown("status", "--quiet") == ""
    found = commands.json("status")
    assert (found["needs_attention"], found["paused_accounts"], found["pending_approvals"]) == ([], 1, 1)
    exit_code, said = commands.unwritten("status")
    assert (exit_code, said.count("\n")) == (1, 1)


def test_the_treasurys_use_a_day_and_days_left_are_shown(commands: CommandLine) -> None:
    for lamports, hours in ((20_020_000_000, 12), (19_020_000_000, 0)):
        money.give_treasury(commands.server, lamports)
        commands.run("status")
        commands.server.sandbox.clock.advance(hours=hours)
    assert "treasury   19.02 SOL, uses 2.00 SOL a day, 9 days left" in commands.shown("status")


def test_what_needs_attention_is_named_with_what_to_do_and_exits_with_7(commands: CommandLine) -> None:
    payer, payee = commands.funded("10", name="Buyer"), commands.funded("10", name="Shop")
    money.suspend(commands.server, payer, payee, 2_000_000)
    commands.server.scenario("undelivered_webhook")
    result = commands.run("status")
    assert (result.exit_code, result.stdout.splitlines()[0].rpartition(": ")[2]) == (7, "needs attention")
    assert re.search(r"\d, 1 suspended, 0 paused: agentpay accounts list\n", result.stdout)
    assert "1 undelivered, 0 being retried: agentpay deliveries list --status undelivered\n" in result.stdout
    wrong = ["suspended_accounts", "undelivered_deliveries"]
    assert commands.run("status", "--quiet").stdout.splitlines() == wrong
    result = commands.run("status", "--json")
    assert (result.exit_code, json.loads(result.stdout)["needs_attention"], result.stderr) == (7, wrong, "")
    commands.server.sandbox.set_fault("chain_down")
    assert commands.run("status", "--quiet").stdout.splitlines() == ["chain", *wrong]


def test_an_account_of_another_operator_that_is_suspended_is_no_matter(commands: CommandLine) -> None:
    other = commands.server.client(api_key=commands.server.sandbox.create_operator("Other").key)
    payer, payee = (other.accounts.create(name=name) for name in ("Payer", "Payee"))
    for account in (payer, payee):
        Sandbox(other).fund(account.account_id, "5")
    money.suspend(commands.server, payer, payee, 2_000_000)
    assert commands.shown("status").startswith("operator: all is well\n")
    assert other.console.summary().needs_attention == ("suspended_accounts",)
    assert other.request("GET", "/readyz").status_code == 200


def test_a_server_that_is_not_ready_for_another_reason_is_reported(commands: CommandLine) -> None:
    # As on a full disk.
    with database_away(commands.server, is_read=True):
        result = commands.run("status")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (7, "server     not ready: GET /readyz")


def test_status_needs_a_server_and_an_operator_key(commands: CommandLine) -> None:
    account_id = commands.funded().account_id
    commands.environment["AGENTPAY_API_KEY"] = commands.server.agent_keys.create(account_id).key
    assert "operator" in commands.refused("status")
    commands.environment["AGENTPAY_BASE_URL"] = "http://127.0.0.1:9"
    assert "no server responds" in commands.refused("status")
