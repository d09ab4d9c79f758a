"""Tests of a fictional agent, with the fixtures of the extra `test`.

    pytest examples/agent_test_suite

Every test has its own payment service. When a test fails, its report shows what happened there.
"""

import pytest
from data_agent import DataAgent, Outcome

from agentpay import Account
from agentpay.errors import ChainUnavailableError
from agentpay_server import AgentPayServer, WebhookInbox


@pytest.fixture
def notices() -> list[str]:
    """The messages from the agent to its owner."""
    return []


@pytest.fixture
def agent(agentpay_server: AgentPayServer, agentpay_account: Account, notices: list[str]) -> DataAgent:
    """The agent, with a key that can pay from its own account and do little else."""
    client = agentpay_server.agent_client(agentpay_account.account_id)
    return DataAgent(client, agentpay_account.account_id, notices.append)


@pytest.fixture
def shop(agentpay_server: AgentPayServer) -> str:
    """The token account of a seller outside the service."""
    return agentpay_server.sandbox.create_token_account().usdc_token_account


def test_it_buys(agent: DataAgent, shop: str, agentpay_inbox: WebhookInbox) -> None:
    bought = agent.buy("weather", shop, "12.50")
    assert bought.what == "bought"
    settled = agentpay_inbox.wait_for("transfer.settled")
    assert settled.data.transfer_id == bought.transfer_id


def test_it_pays_for_an_order_once(agent: DataAgent, shop: str, agentpay_server: AgentPayServer) -> None:
    assert agent.buy("weather", shop, 5) == agent.buy("weather", shop, 5)
    assert len(agentpay_server.events.where(type="transfer.settled")) == 1


def test_an_order_whose_reply_was_lost_is_not_paid_twice(
    agent: DataAgent, shop: str, agentpay_server: AgentPayServer
) -> None:
    with agentpay_server.sandbox.fault("chain_reply_lost", times=1):
        assert agent.buy("weather", shop, 5).what == "bought"
    agentpay_server.events.one(type="transfer.settled")


def test_it_reports_that_the_chain_is_down(
    agent: DataAgent, shop: str, agentpay_server: AgentPayServer, agentpay_account: Account
) -> None:
    agent.client = agent.client.with_options(max_retries=0)
    with agentpay_server.sandbox.fault("chain_down"), pytest.raises(ChainUnavailableError):
        agent.buy("weather", shop, 5)
    assert agentpay_server.client().accounts.get(agentpay_account.account_id).balance_usdc == 100


@pytest.mark.agentpay(policy={"max_single_transfer": "10"})
def test_it_reports_which_limit_stopped_it(agent: DataAgent, shop: str, notices: list[str]) -> None:
    assert agent.buy("weather", shop, 11).what == "over the limit"
    assert "max_single_transfer" in notices[0]


@pytest.mark.agentpay(policy={"escalation_threshold": "50"})
def test_it_waits_for_approval(agent: DataAgent, shop: str, agentpay_server: AgentPayServer) -> None:
    waiting = agent.buy("atlas", shop, 60)
    assert waiting.what == "waiting"
    agentpay_server.approvals.approve(waiting.transfer_id or "")
    assert agent.buy("atlas", shop, 60) == Outcome("bought", waiting.transfer_id)


@pytest.mark.agentpay(fund="3")
def test_it_asks_for_money(agent: DataAgent, shop: str, notices: list[str]) -> None:
    assert agent.buy("weather", shop, 5).what == "out of money"
    assert notices == ["no money left for order weather"]


def test_it_continues_the_next_day(agentpay_server: AgentPayServer, notices: list[str]) -> None:
    near = agentpay_server.scenario("near_daily_limit")
    agent = DataAgent(near.agent, near.account.account_id, notices.append)
    assert agent.buy("weather", near.payee.account_id, 6).what == "over the limit"
    agentpay_server.sandbox.clock.advance(hours=24)
    assert agent.buy("weather, again", near.payee.account_id, 6).what == "bought"


def test_it_stops_when_its_account_is_paused(agentpay_server: AgentPayServer) -> None:
    paused = agentpay_server.scenario("paused_account")
    agent = DataAgent(paused.agent, paused.account.account_id)
    assert agent.buy("weather", paused.payee.account_id, 1).what == "stopped"
    agentpay_server.requests.one(status=402)
