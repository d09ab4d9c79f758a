"""The identity of a key and the budget of an account, read before spending (interface K10, B1, B2)."""

from datetime import timedelta
from decimal import Decimal

import attrs
import chain_facts
import httpx
import pytest
from server_world import START, Funded

from agentpay import (
    AgentPay,
    Budget,
    ChainUnavailableError,
    PolicyViolationError,
    TransferOutcomeUnknownError,
)
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer, Settings

DAY = timedelta(hours=24)
UNIT = Decimal("0.000001")


@pytest.fixture
def payee(client: AgentPay) -> str:
    return client.accounts.create(name="Payee").account_id


def pay(client: AgentPay, payer: Account, payee: str, amount: Decimal | int) -> None:
    client.transfers.create(from_=payer.account_id, to=payee, amount=amount)


# --- Who am I


def test_whoami_describes_an_operator_key(server: AgentPayServer, client: AgentPay) -> None:
    (key,) = server.operator_keys.list()
    me = client.whoami()
    assert (me.key_id, me.kind, me.account_id) == (key.key_id, "operator", None)
    assert me.operator_id.startswith("op_")
    assert (me.cluster, me.is_test_money) == ("embedded", True)


def test_whoami_describes_an_agent_key_and_its_account(server: AgentPayServer, funded: Funded) -> None:
    account = funded("1")
    made = server.agent_keys.create(account.account_id)
    me = server.client(api_key=made.key).whoami()
    assert (me.key_id, me.kind, me.account_id) == (made.key_id, "agent", account.account_id)
    assert me.operator_id == server.client().whoami().operator_id


@pytest.mark.parametrize(
    ("cluster", "is_test_money"), [("mainnet-beta", False), ("devnet", True), ("localnet", True)]
)
def test_whoami_reports_test_money_except_on_mainnet(
    client: AgentPay, monkeypatch: pytest.MonkeyPatch, cluster: str, is_test_money: bool
) -> None:
    chain_facts.state(monkeypatch, cluster_name=cluster)
    me = client.whoami()
    assert (me.cluster, me.is_test_money) == (cluster, is_test_money)


# --- Budgets


def test_a_budget_has_the_policy_amounts_as_strings_and_limits_as_numbers(
    http: httpx.Client, client: AgentPay, funded: Funded, payee: str
) -> None:
    payer = funded("100")
    path = f"/ext/v1/accounts/{payer.account_id}/budget"
    without_limits = {
        "account_id": payer.account_id,
        "balance_usdc": "100.000000",
        "available_usdc": "100.000000",
        "max_single_transfer": None,
        "max_daily_spend": None,
        "spent_usdc": "0.000000",
        "reserved_usdc": "0.000000",
        "remaining_usdc": None,
        "next_release_at": None,
        "next_release_usdc": None,
        "escalation_threshold": None,
        "paused": False,
        "requires_memo": False,
        "categories": None,
        "allowed_counterparties": None,
        "max_total_usdc": None,
        "spent_total_usdc": None,
        "remaining_total_usdc": None,
        "expires_at": None,
    }
    assert http.get(path).json() == without_limits
    client.policies.update(payer.account_id, max_daily_spend="20.5")
    pay(client, payer, payee, 5)
    policy = {
        "max_single_transfer": 5,
        "escalation_threshold": 4,
        "paused": True,
        "categories": ["data"],
        "allowed_counterparties": [payee],
    }
    client.policies.update(payer.account_id, require_memo=True, **policy)  # type: ignore[arg-type]
    assert http.get(path).json() == {
        **without_limits,
        **policy,
        "requires_memo": True,
        "balance_usdc": "95.000000",
        "available_usdc": "95.000000",
        "max_daily_spend": 20.5,
        "spent_usdc": "5.000000",
        "remaining_usdc": "15.500000",
        "next_release_at": "2026-01-02T00:00:00.000Z",
        "next_release_usdc": "5.000000",
    }


def test_exactly_the_remaining_amount_can_be_spent(
    server: AgentPayServer, client: AgentPay, funded: Funded, payee: str
) -> None:
    payer = funded("100")
    client.policies.update(payer.account_id, max_daily_spend=10)
    for amount in (3, 4):
        pay(client, payer, payee, amount)
        server.sandbox.clock.advance(hours=1)
    budget = client.accounts.budget(payer.account_id)
    assert (budget.spent_usdc, budget.remaining_usdc) == (7, 3)
    assert (budget.next_release_at, budget.next_release_usdc) == (START + DAY, 3)
    assert budget.remaining_usdc is not None
    with pytest.raises(PolicyViolationError, match="max_daily_spend"):
        pay(client, payer, payee, budget.remaining_usdc + UNIT)
    pay(client, payer, payee, budget.remaining_usdc)
    assert client.accounts.budget(payer.account_id).remaining_usdc == 0

    server.sandbox.clock.travel_to(START + DAY)
    budget = client.accounts.budget(payer.account_id)
    assert (budget.remaining_usdc, budget.next_release_usdc) == (3, 4)
    assert budget.next_release_at == START + DAY + timedelta(hours=1)


def test_amounts_in_flight_are_reserved_and_not_available() -> None:
    with AgentPayServer(clock=START, settings=Settings(settlement_wait_seconds=0)) as server:
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
        server.sandbox.fund(payer, 10)
        client.policies.update(payer, max_daily_spend=10)
        with server.sandbox.fault("chain_never_lands"):
            with pytest.raises((TransferOutcomeUnknownError, ChainUnavailableError)):
                client.transfers.create(from_=payer, to=payee, amount=4)
            budget = client.accounts.budget(payer)
        assert (budget.balance_usdc, budget.available_usdc) == (10, 6)
        assert (budget.spent_usdc, budget.reserved_usdc, budget.remaining_usdc) == (4, 4, 6)


def test_an_open_session_reserves_its_cap(client: AgentPay, funded: Funded, payee: str) -> None:
    payer = funded("10")
    client.policies.update(payer.account_id, max_daily_spend=8)
    session = client.sessions.open(account_id=payer.account_id, to=payee, cap_usdc=5)
    client.sessions.charge(session.session_id, amount=1)
    budget = client.accounts.budget(payer.account_id)
    assert (budget.available_usdc, budget.spent_usdc, budget.reserved_usdc) == (5, 5, 5)
    assert budget.remaining_usdc == 3
    client.sessions.close(session.session_id)
    budget = client.accounts.budget(payer.account_id)
    assert (budget.available_usdc, budget.spent_usdc, budget.reserved_usdc) == (9, 1, 0)
    assert budget.remaining_usdc == 7


def test_a_budget_agrees_with_the_account_detail_of_the_console(
    server: AgentPayServer, client: AgentPay, funded: Funded, payee: str
) -> None:
    payer = funded("100")
    client.policies.update(payer.account_id, max_daily_spend=50)
    pay(client, payer, payee, 7)
    client.sessions.open(account_id=payer.account_id, to=payee, cap_usdc=5)
    detail = server.console.details(payer.account_id)
    budget = client.accounts.budget(payer.account_id)
    shared = {each.name for each in attrs.fields(type(detail))} & {each.name for each in attrs.fields(Budget)}
    assert len(shared) == 7
    assert {name: getattr(budget, name) for name in shared} == {
        name: getattr(detail, name) for name in shared
    }


def test_without_the_chain_there_is_no_budget(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    account = funded("1")
    with server.sandbox.fault("chain_down"), pytest.raises(ChainUnavailableError):
        client.with_options(max_retries=0).accounts.budget(account.account_id)
