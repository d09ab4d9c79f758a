"""Ready worlds: each is what its type says, made by real operations, as often as one likes."""

from typing import Any

import pytest
from server_world import START

from agentpay import AccountPausedError, AgentPay, PolicyViolationError, SessionCapExceededError
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.plugin("scenes")

NAMES = [
    "low_balance",
    "near_daily_limit",
    "near_session_cap",
    "paused_account",
    "pending_approval",
    "undelivered_webhook",
]


def pay(scenario: Any, amount: object, agent: AgentPay | None = None) -> str:
    """Pay as the scenario's agent."""
    return (
        (agent or scenario.agent)
        .transfers.create(from_=scenario.account.account_id, to=scenario.payee.account_id, amount=amount)
        .status
    )


def test_the_near_daily_limit_scenario(server: AgentPayServer) -> None:
    scenario = server.scenario("near_daily_limit")
    assert (scenario.limit_usdc, scenario.remaining_usdc) == (100, 5)
    assert scenario.account.balance_usdc == 105
    with pytest.raises(PolicyViolationError, match="max_daily_spend"):
        pay(scenario, "5.000001")
    assert pay(scenario, 5) == "settled"
    server.sandbox.clock.advance(hours=24)
    assert pay(scenario, 95) == "settled"


def test_the_paused_account_scenario(server: AgentPayServer) -> None:
    scenario = server.scenario("paused_account")
    assert (scenario.account.status, scenario.account.balance_usdc) == ("paused", 100)
    with pytest.raises(AccountPausedError):
        pay(scenario, 1)


def test_the_low_balance_scenario(server: AgentPayServer) -> None:
    scenario = server.scenario("low_balance")
    assert scenario.account.balance_usdc == 2
    event = scenario.inbox.wait_for("balance.low_threshold")
    assert event.data.balance_usdc == 2 < scenario.threshold_usdc


def test_the_pending_approval_scenario(server: AgentPayServer) -> None:
    scenario = server.scenario("pending_approval")
    assert scenario.transfer.status == "pending_approval"
    assert server.approvals.approve(scenario.transfer.transfer_id).status == "settled"


def test_the_near_session_cap_scenario(server: AgentPayServer) -> None:
    scenario = server.scenario("near_session_cap")
    assert (scenario.session.status, scenario.remaining_usdc) == ("open", 1)
    session_id = scenario.session.session_id
    with pytest.raises(SessionCapExceededError):
        scenario.agent.sessions.charge(session_id, amount="1.000001")
    scenario.agent.sessions.charge(session_id, amount=1)
    settled = scenario.agent.sessions.close(session_id)
    assert (settled.settled_usdc, settled.returned_usdc) == (10, 0)


def test_the_undelivered_webhook_scenario(server: AgentPayServer) -> None:
    scenario = server.scenario("undelivered_webhook")
    assert scenario.delivery.status == "undelivered"
    assert len(scenario.delivery.attempts) == 5
    assert scenario.inbox.events == []
    assert (server.sandbox.clock.now() - START).total_seconds() == 30 + 300 + 1_800 + 7_200
    server.events.replay(scenario.delivery.event_id)
    event = scenario.inbox.wait_for("transfer.settled")
    assert event.data.transfer_id == scenario.transfer.transfer_id


@pytest.mark.parametrize("name", NAMES)
def test_scenarios_repeat_with_the_seed_and_can_be_combined(name: str) -> None:
    def told() -> list[Account]:
        with AgentPayServer(seed=7, clock=START) as server:
            first, second = server.scenario(name), server.scenario(name)
            assert first.account.account_id != second.account.account_id
            assert first.agent_key not in repr(first)
            assert pay(first, 1, server.client()) if name == "low_balance" else True
            return [first.account, first.payee, second.account, second.payee]

    assert told() == told()
