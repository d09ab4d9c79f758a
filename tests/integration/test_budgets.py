"""The identity of a key and the budget of an account, read before spending (interface K10, B1, B2)."""

from datetime import timedelta
from decimal import Decimal

import attrs
import chain_facts
import httpx
import pytest
from server_world import START, UNKNOWN_ACCOUNT, Funded, raw_client

from agentpay import (
    AgentPay,
    Budget,
    ChainUnavailableError,
    ConflictError,
    InsufficientBalanceError,
    NotFoundError,
    PermissionDeniedError,
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


def test_a_new_account_may_spend_nothing_and_has_no_limits(client: AgentPay) -> None:
    account = client.accounts.create(name="Payer")
    assert client.accounts.budget(account.account_id) == Budget(
        account_id=account.account_id,
        balance_usdc=Decimal(0),
        available_usdc=Decimal(0),
        max_single_transfer=None,
        max_daily_spend=None,
        spent_usdc=Decimal(0),
        reserved_usdc=Decimal(0),
        remaining_usdc=None,
        next_release_at=None,
        next_release_usdc=None,
        escalation_threshold=None,
        paused=False,
        requires_memo=False,
        categories=None,
        allowed_counterparties=None,
        max_total_usdc=None,
        spent_total_usdc=None,
        remaining_total_usdc=None,
        expires_at=None,
    )


def test_a_budget_includes_the_policy(client: AgentPay, funded: Funded, payee: str) -> None:
    payer = funded("100")
    client.policies.replace(
        payer.account_id,
        max_single_transfer=5,
        max_daily_spend="20.5",
        allowed_counterparties=[payee],
        categories=["data"],
        require_memo=True,
        escalation_threshold=4,
        paused=True,
    )
    budget = client.accounts.budget(payer.account_id)
    assert (budget.max_single_transfer, budget.max_daily_spend) == (5, Decimal("20.5"))
    assert (budget.escalation_threshold, budget.paused, budget.requires_memo) == (4, True, True)
    assert (budget.categories, budget.allowed_counterparties) == (("data",), (payee,))


def test_on_the_wire_amounts_are_strings_and_limits_are_numbers(
    http: httpx.Client, client: AgentPay, funded: Funded, payee: str
) -> None:
    payer = funded("100")
    client.policies.update(payer.account_id, max_daily_spend="20.5")
    pay(client, payer, payee, 5)
    assert http.get(f"/ext/v1/accounts/{payer.account_id}/budget").json() == {
        "account_id": payer.account_id,
        "balance_usdc": "95.000000",
        "available_usdc": "95.000000",
        "max_single_transfer": None,
        "max_daily_spend": 20.5,
        "spent_usdc": "5.000000",
        "reserved_usdc": "0.000000",
        "remaining_usdc": "15.500000",
        "next_release_at": "2026-01-02T00:00:00.000Z",
        "next_release_usdc": "5.000000",
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


def test_exactly_the_available_amount_can_be_spent(client: AgentPay, funded: Funded, payee: str) -> None:
    payer = funded("2.5")
    available = client.accounts.budget(payer.account_id).available_usdc
    with pytest.raises(InsufficientBalanceError):
        pay(client, payer, payee, available + UNIT)
    pay(client, payer, payee, available)
    assert client.accounts.budget(payer.account_id).available_usdc == 0


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
    shared = {field.name for field in attrs.fields(type(detail))} & {
        field.name for field in attrs.fields(Budget)
    }
    assert shared == {
        "account_id",
        "balance_usdc",
        "spent_usdc",
        "reserved_usdc",
        "remaining_usdc",
        "next_release_at",
        "next_release_usdc",
    }
    assert {name: getattr(budget, name) for name in shared} == {
        name: getattr(detail, name) for name in shared
    }


def test_an_agent_reads_only_its_own_budget(server: AgentPayServer, funded: Funded) -> None:
    own, other = funded("1"), funded("2")
    agent = server.agent_client(own.account_id)
    assert agent.accounts.budget(own.account_id).balance_usdc == 1
    messages = []
    for account_id in (other.account_id, UNKNOWN_ACCOUNT, "nonsense"):
        with pytest.raises(PermissionDeniedError) as caught:
            agent.accounts.budget(account_id)
        messages.append(caught.value.message)
    assert len(set(messages)) == 1


def test_another_operators_account_is_not_found(server: AgentPayServer, funded: Funded) -> None:
    account = funded("1")
    stranger = server.client(api_key=server.sandbox.create_operator("Other").key)
    for account_id in (account.account_id, UNKNOWN_ACCOUNT):
        with pytest.raises(NotFoundError):
            stranger.accounts.budget(account_id)


def test_without_the_chain_there_is_no_budget(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    account = funded("1")
    with server.sandbox.fault("chain_down"), pytest.raises(ChainUnavailableError):
        client.with_options(max_retries=0).accounts.budget(account.account_id)


def test_extensions_need_a_key(server: AgentPayServer, funded: Funded) -> None:
    account = funded("1")
    with raw_client(server, "") as nobody:
        for path in ("/ext/v1/whoami", f"/ext/v1/accounts/{account.account_id}/budget", "/ext/v1/transfers"):
            assert nobody.get(path).status_code == 401


def test_the_key_id_of_whoami_identifies_the_last_operator_key(
    server: AgentPayServer, client: AgentPay
) -> None:
    with pytest.raises(ConflictError):
        server.operator_keys.revoke(client.whoami().key_id)
