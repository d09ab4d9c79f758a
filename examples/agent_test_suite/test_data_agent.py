"""The tests of a fictional agent, with the fixtures that the extra `server` brings.

    pytest examples/agent_test_suite

Every test has a payment service of its own. When one fails, its report shows what happened on it.
"""

import pytest
from data_agent import DataAgent, Outcome

from agentpay import Account
from agentpay.errors import ChainUnavailableError
from agentpay_server import AgentPayServer, WebhookInbox


@pytest.fixture
def told() -> list[str]:
    """What the agent has told its owner."""
    return []


@pytest.fixture
def agent(agentpay_server: AgentPayServer, agentpay_account: Account, told: list[str]) -> DataAgent:
    """The agent, with a key that can pay from its account, and little else."""
    client = agentpay_server.agent_client(agentpay_account.account_id)
    return DataAgent(client, agentpay_account.account_id, told.append)


@pytest.fixture
def shop(agentpay_server: AgentPayServer) -> str:
    """Somebody outside who sells data."""
    return agentpay_server.sandbox.create_token_account().usdc_token_account


def test_it_buys(agent: DataAgent, shop: str, agentpay_inbox: WebhookInbox) -> None:
    bought = agent.buy("weather", shop, "12.50")
    assert bought.what == "bought"
    settled = agentpay_inbox.wait_for("transfer.settled")
    assert settled.data.transfer_id == bought.transfer_id


def test_it_pays_for_an_order_once(agent: DataAgent, shop: str, agentpay_server: AgentPayServer) -> None:
    assert agent.buy("weather", shop, 5) == agent.buy("weather", shop, 5)
    assert len(agentpay_server.events.where(type="transfer.settled")) == 1


def test_an_order_whose_answer_was_lost_is_not_paid_twice(
    agent: DataAgent, shop: str, agentpay_server: AgentPayServer
) -> None:
    with agentpay_server.sandbox.fault("chain_reply_lost", times=1):
        assert agent.buy("weather", shop, 5).what == "bought"
    agentpay_server.events.one(type="transfer.settled")


def test_it_does_not_hide_that_the_chain_is_down(
    agent: DataAgent, shop: str, agentpay_server: AgentPayServer, agentpay_account: Account
) -> None:
    agent.client = agent.client.with_options(max_retries=0)
    with agentpay_server.sandbox.fault("chain_down"), pytest.raises(ChainUnavailableError):
        agent.buy("weather", shop, 5)
    assert agentpay_server.client().accounts.get(agentpay_account.account_id).balance_usdc == 100


@pytest.mark.agentpay(policy={"max_single_transfer": "10"})
def test_it_says_which_limit_stopped_it(agent: DataAgent, shop: str, told: list[str]) -> None:
    assert agent.buy("weather", shop, 11).what == "over the limit"
    assert "max_single_transfer" in told[0]


@pytest.mark.agentpay(policy={"escalation_threshold": "50"})
def test_it_waits_for_a_human(agent: DataAgent, shop: str, agentpay_server: AgentPayServer) -> None:
    waiting = agent.buy("atlas", shop, 60)
    assert waiting.what == "waiting"
    agentpay_server.console.approvals.approve(waiting.transfer_id or "")
    assert agent.buy("atlas", shop, 60) == Outcome("bought", waiting.transfer_id)


@pytest.mark.agentpay(fund="3")
def test_it_asks_for_money(agent: DataAgent, shop: str, told: list[str]) -> None:
    assert agent.buy("weather", shop, 5).what == "out of money"
    assert told == ["no money left for order weather"]


def test_it_goes_on_tomorrow(agentpay_server: AgentPayServer, told: list[str]) -> None:
    near = agentpay_server.scenario("near_daily_limit")
    agent = DataAgent(near.agent, near.account.account_id, told.append)
    assert agent.buy("weather", near.payee.account_id, 6).what == "over the limit"
    agentpay_server.sandbox.clock.advance(hours=24)
    assert agent.buy("weather, again", near.payee.account_id, 6).what == "bought"


def test_it_stops_when_it_is_stopped(agentpay_server: AgentPayServer) -> None:
    paused = agentpay_server.scenario("paused_account")
    agent = DataAgent(paused.agent, paused.account.account_id)
    assert agent.buy("weather", paused.payee.account_id, 1).what == "stopped"
    agentpay_server.requests.one(status=402)
