"""Accounts by name: an operator's key may send a name or handle where an account is named (A11)."""

import pytest
from server_world import Funded

from agentpay import (
    AgentPay,
    InvalidRecipientError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
)
from agentpay_server import AgentPayServer

NAME, HANDLE = "Travel / desk 7%", "@travel-desk-7"


@pytest.fixture
def payer(funded: Funded) -> str:
    return funded("100", name=NAME).account_id


@pytest.fixture
def shop(client: AgentPay) -> str:
    return client.accounts.create("Shop").account_id


@pytest.mark.parametrize("given", [NAME, HANDLE])
def test_a_name_or_handle_is_accepted_in_bodies_and_filters(
    client: AgentPay, payer: str, shop: str, given: str
) -> None:
    paid = client.transfers.create(from_=given, to=shop, amount=1)
    session = client.sessions.open(given, to=shop, cap_usdc=2)
    assert paid.from_ == session.account_id == payer
    assert client.transfers.check(from_=given, to=shop, amount=1).decision == "settle"
    assert client.agent_keys.create(given).account_id == payer
    assert client.webhooks.create(
        "http://127.0.0.1:9/", events=["transfer.settled"], account_ids=[shop, given]
    ).account_ids == (shop, payer)
    assert [each.transfer_id for each in client.transfers.list(account_id=given)] == [paid.transfer_id]
    assert client.console.spend_report(account_id=given).data[-1].settled_usdc == 1
    assert {each.account_id for each in client.accounts.history(account_id=given)} == {payer}
    assert [each.session_id for each in client.sessions.list(account_id=given)] == [session.session_id]


@pytest.mark.parametrize("given", ["Shop", "@shop"])
def test_a_name_or_handle_is_accepted_in_paths(client: AgentPay, shop: str, given: str) -> None:
    assert client.accounts.get(given) == client.accounts.get(shop)
    assert client.accounts.balance(given).account_id == shop
    assert client.console.details(given).account_id == shop
    assert client.policies.update(given, max_daily_spend=5).account_id == shop
    assert client.policies.get(shop).max_daily_spend == 5
    assert list(client.accounts.transactions(given)) == []


def test_a_name_of_several_accounts_is_refused_and_never_guessed(
    client: AgentPay, payer: str, shop: str
) -> None:
    # A name that is the other's handle counts too.
    twin = client.accounts.create(HANDLE).account_id
    for call in (
        lambda: client.accounts.get(HANDLE),
        lambda: client.policies.pause(HANDLE),
        lambda: client.transfers.create(from_=HANDLE, to=shop, amount=1),
        lambda: client.agent_keys.create(HANDLE),
    ):
        with pytest.raises(NotFoundError, match="Several accounts have the name or handle") as refused:
            call()
        assert payer in str(refused.value)
        assert twin in str(refused.value)
    with pytest.raises(InvalidRequestError, match="Several accounts have the name or handle") as invalid:
        client.transfers.list(account_id=HANDLE)
    assert [fault.field for fault in invalid.value.details] == ["account_id"]
    assert list(client.transfers.list()) == []
    assert client.accounts.balance(payer).balance_usdc == 100


def test_an_unknown_name_gets_the_response_of_an_unknown_identifier(
    client: AgentPay, payer: str, shop: str
) -> None:
    for given in ("Nobody", "travel / desk 7%", "desk"):
        with pytest.raises(NotFoundError, match="is visible to this key"):
            client.transfers.create(from_=given, to=shop, amount=1)
        assert list(client.transfers.list(account_id=given)) == []


def test_a_name_and_its_identifier_are_one_parameter_of_a_key(
    server: AgentPayServer, client: AgentPay, payer: str, shop: str
) -> None:
    paid = client.transfers.create(from_=NAME, to=shop, amount=1, idempotency_key="key")
    assert client.transfers.create(from_=payer, to=shop, amount=1, idempotency_key="key") == paid
    # Another account takes the name: a retry resumes, and a new purchase is refused.
    client.accounts.create(NAME)
    for given in (NAME, HANDLE, payer):
        assert client.transfers.create(from_=given, to=shop, amount=1, idempotency_key="key") == paid
    with pytest.raises(NotFoundError):
        client.transfers.create(from_=NAME, to=shop, amount=1, idempotency_key="other")
    server.sandbox.clock.advance(24 * 3600)
    with pytest.raises(NotFoundError):
        client.transfers.create(from_=NAME, to=shop, amount=1, idempotency_key="key")
    assert client.accounts.balance(payer).balance_usdc == 99


def test_an_identifier_is_never_looked_up_as_a_name(client: AgentPay, payer: str, shop: str) -> None:
    client.accounts.create(shop)
    client.accounts.create("acct_of_travel")
    assert client.accounts.get(shop).name == "Shop"
    with pytest.raises(NotFoundError):
        client.accounts.get("acct_of_travel")


def test_names_of_other_operators_and_of_recipients_and_with_agent_keys_are_refused(
    server: AgentPayServer, client: AgentPay, payer: str, shop: str
) -> None:
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    with pytest.raises(NotFoundError):
        other.accounts.get("Shop")
    with pytest.raises(InvalidRecipientError):
        client.transfers.create(from_=payer, to="Shop", amount=1)
    agent = server.agent_client(shop)
    with pytest.raises(PermissionDeniedError):
        agent.accounts.get("Shop")
    with pytest.raises(PermissionDeniedError):
        agent.transfers.create(from_="Shop", to=payer, amount=1)
