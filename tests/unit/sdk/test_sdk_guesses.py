"""What a stranger types first: it is right, or the error names what is."""

import inspect

import pytest
from sdk_world import ACCOUNT, KEY, URL

import agentpay
from agentpay import AgentPay, AsyncAgentPay, testing

ATTRIBUTES = [
    ("client.account", "did you mean accounts?"),
    ("client.keys", "did you mean agent_keys or operator_keys?"),
    ("client.search", "did you mean console.search?"),
    ("client.spend", "did you mean console.spend_report?"),
    ("client.audit_log", "did you mean console.audit_log?"),
    ("client.summary", "did you mean console.summary?"),
    ("client.me", "whoami"),
    ("client.accounts.retrieve", "it has balance, budget, create, get, history, list, transactions"),
    ("client.accounts.details", "it has balance"),
    ("client.transfers.send", "it has check, create, get, list, wait"),
    ("client.policies.set", "it has get, pause, replace, resume, update"),
    ("client.sessions.create", "it has charge, close, get, list, open"),
    ("client.webhooks.construct_event", "unwrap"),
    ("client.sellers.pin", "it has delete, get, list, put"),
    ("client.console.spend", "did you mean spend_report?"),
    ("transfer.amount", "did you mean amount_usdc?"),
    ("transfer.id", "did you mean transfer_id?"),
    ("transfer.state", "did you mean status?"),
]
CALLS = [
    ("client.accounts.list(limt=3)", "did you mean limit?"),
    ("client.accounts.list(page_size=3)", "the arguments of the method (limit, cursor, status)"),
    ("client.transfers.list(account='x')", "did you mean account_id?"),
    ("client.policies.update('x', daily_limit=5)", "max_daily_spend"),
    ("client.transfers.create(source='x', to='y', amount=1)", "'from_'"),
    (
        "client.transfers.create(from_='x', to='y', amount=1, idempotencykey='k')",
        "did you mean idempotency_key?",
    ),
    ("client.transfers.create(from_=account, to='y', amount=1)", "pass account.account_id"),
    ("client.transfers.create(from_='x', to='y', amount=1.5)", "write Decimal('1.5') or '1.5'"),
    ("client.transfers.get(transfer)", "pass transfer.transfer_id"),
    ("client.sessions.open('x', to='y', cap=5)", "'cap_usdc'"),
    (
        "client.webhooks.create('https://shop.example/hook', events='transfer.settled')",
        "['transfer.settled']",
    ),
    ("agentpay.PaymentAuth(client, account='x')", "'account'"),
    ("client.deliveries.replay(status='delivered', since='2026-01-01')", "since must be a datetime"),
]


@pytest.fixture(params=[AgentPay, AsyncAgentPay])
def names(request: pytest.FixtureRequest) -> dict[str, object]:
    client = request.param(api_key=KEY, base_url=URL)
    account = agentpay.Account.from_dict(ACCOUNT)
    return {
        "client": client,
        "transfer": testing.make(agentpay.Transfer),
        "account": account,
        "agentpay": agentpay,
    }


@pytest.mark.parametrize(("guess", "hint"), ATTRIBUTES)
def test_an_attribute_that_does_not_exist_is_explained(
    names: dict[str, object], guess: str, hint: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        eval(guess, names)
    assert hint in str(caught.value)


@pytest.mark.parametrize(("guess", "hint"), CALLS)
def test_a_wrong_argument_is_explained_before_anything_is_sent(
    names: dict[str, object], guess: str, hint: str
) -> None:
    def call() -> None:
        answer = eval(guess, names)
        if inspect.isawaitable(answer):  # a call, or a page, of the async client
            answer.__await__().send(None)

    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert hint in str(caught.value)


def test_an_error_within_a_property_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise AttributeError("the cause")

    monkeypatch.setattr(AgentPay, "sessions", property(broken))
    with pytest.raises(AttributeError, match=r"^the cause$"):
        _ = AgentPay(api_key=KEY, base_url=URL).sessions


def test_attributes_that_libraries_look_for_are_missing_without_a_hint(names: dict[str, object]) -> None:
    for owner in (names["client"], names["transfer"]):
        assert not hasattr(owner, "_repr_html_")
        assert not hasattr(owner, "__deepcopy__")
