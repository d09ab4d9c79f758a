"""`agentpay-server trigger`: every event is caused by real operations, or the obstacle is reported."""

from decimal import Decimal
from typing import Any

import bounds
import chain_facts
import pytest
from click.testing import CliRunner
from command_line import CommandLine, see_no_events
from server_world import START, UNKNOWN_ACCOUNT

from agentpay.contract.choices import EventType
from agentpay.contract.events import EVENTS, Event
from agentpay_server import AgentPayServer
from agentpay_server.cli import main


def happened(server: AgentPayServer, event: dict[str, Any]) -> bool:
    """Tell whether the server has recorded an event as it was printed."""
    (recorded,) = (each for each in server.events.list() if each.id == event["id"])
    return recorded == Event.from_dict(event)


@pytest.mark.parametrize("event_type", EVENTS)
def test_every_event_is_triggered_on_a_new_account_and_on_a_given_one_whose_policy_it_keeps(
    commands: CommandLine, event_type: EventType
) -> None:
    event = commands.json("trigger", event_type)
    assert event["type"] == event_type
    assert happened(commands.server, event)

    account_id = commands.funded("7").account_id
    shop = commands.client.accounts.create(name="Shop")
    # Everything that a policy can ask for, and still let something through.
    commands.client.policies.update(
        account_id,
        max_single_transfer="0.9",
        max_daily_spend=3,
        allowed_counterparties=[account_id, shop.chain_address, shop.account_id],
        categories=["data"],
        require_memo=True,
        escalation_threshold="0.8",
    )
    policy = commands.client.policies.get(account_id)
    event = commands.json("trigger", event_type, "--account", account_id)
    assert happened(commands.server, event)
    assert event["data"].get("account_id", account_id) == account_id
    assert commands.client.policies.get(account_id) == policy
    # Nothing of it stays behind: no money in an escrow, no webhook.
    assert all(session.is_final for session in commands.server.sessions.list())
    assert list(commands.server.webhooks.list()) == []


def test_the_event_is_shown_to_people(commands: CommandLine) -> None:
    account_id = commands.funded("0.25").account_id
    shown = commands.shown("trigger", "transfer.settled", "--account", account_id, "--amount", "2.5")
    for words in ("transfer.settled", f"data.account_id    {account_id}", "2.500000"):
        assert words in shown
    listed = CliRunner(env={"AGENTPAY_API_KEY": None}).invoke(main, ["trigger", "--list"])
    assert (listed.exit_code, listed.stdout.split()) == (0, list(EVENTS)), "no server is needed for it"


def test_a_low_balance_is_triggered_at_the_threshold_of_an_existing_webhook(commands: CommandLine) -> None:
    account_id = commands.funded("100").account_id
    inbox = commands.server.webhook_inbox(events=["balance.low_threshold"], low_balance_threshold_usdc=40)
    first = commands.json("trigger", "balance.low_threshold", "--account", account_id)
    assert first["data"]["balance_usdc"] == "39.999999"
    # Below it already: brought back first, and dropped again.
    second = commands.json("trigger", "balance.low_threshold", "--account", account_id)
    assert second["id"] != first["id"]
    inbox.wait_for("balance.low_threshold", where=lambda event: event.id == second["id"])
    assert [webhook.webhook_id for webhook in commands.server.webhooks.list()] == [inbox.webhook_id]


def test_a_policy_under_which_an_event_cannot_occur_is_named(commands: CommandLine) -> None:
    account_id = commands.funded().account_id
    rows: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
        ({"escalation_threshold": None}, ("escalation.required",), "no escalation_threshold; set one, or"),
        ({"escalation_threshold": 2}, ("escalation.required", "--amount", "1.5"), "escalation_threshold"),
        ({"escalation_threshold": 2}, ("transfer.settled", "--amount", "3"), "pass a smaller --amount"),
        ({"allowed_counterparties": []}, ("session.opened",), "allowed_counterparties"),
    ]
    for change, arguments, said in rows:
        commands.client.policies.update(account_id, **change)
        assert said in commands.refused("trigger", *arguments, "--account", account_id)
    commands.client.policies.update(account_id, allowed_counterparties=None)
    arguments = ("trigger", "escalation.required", "--account", account_id, "--amount", "2.5")
    assert commands.json(*arguments)["data"]["amount_usdc"] == "2.500000"
    said = commands.refused("trigger", "transfer.settled", "--account", UNKNOWN_ACCOUNT)
    assert said.startswith("Error: not_found: ")


def test_a_trigger_refused_by_the_policy_leaves_no_open_session(commands: CommandLine) -> None:
    account_id = commands.funded("10").account_id
    commands.client.policies.update(account_id, max_single_transfer=1)
    said = commands.refused(
        "trigger", "session.cap_reached", "--account", account_id, "--amount", "3", exit_code=5
    )
    assert "policy_violation: max_single_transfer" in said
    assert [session.status for session in commands.server.sessions.list()] == ["settled"]
    assert commands.client.accounts.balance(account_id).balance_usdc == Decimal(10)
    commands.client.policies.pause(account_id)
    assert "account_paused" in commands.refused(
        "trigger", "transfer.settled", "--account", account_id, exit_code=5
    )


@pytest.mark.parametrize("amount", ["0", "-1", "1.0000001", "much"])
def test_an_invalid_amount_is_refused(commands: CommandLine, amount: str) -> None:
    result = commands.run("trigger", "transfer.settled", "--amount", amount)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--amount" in result.stderr


def test_without_a_sandbox_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    chain_facts.state(monkeypatch, is_test_chain=False)
    with AgentPayServer(clock=START) as server:
        said = CommandLine(server).refused("trigger", "transfer.settled")
        assert "Start a server without --rpc-url" in said
        assert list(server.client().accounts.list()) == []


def test_a_missing_event_is_reported_after_a_timeout(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds.shorten(monkeypatch, trigger_patience_seconds=0.0)
    see_no_events(monkeypatch)
    said = commands.refused("trigger", "transfer.settled")
    assert "did not occur within" in said
    assert "agentpay listen" in said
