"""The exact request of every endpoint, and arguments that are refused before sending."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st
from sdk_world import (
    ACCOUNT,
    ACCOUNT_POLICY,
    BALANCE,
    KEY,
    PENDING,
    TRANSACTION,
    TRANSFER,
    URL,
    WEBHOOK,
    answer,
    page,
)

from agentpay import (
    Account,
    AccountPolicy,
    AgentPay,
    Balance,
    NewWebhook,
    Transaction,
    Transfer,
    __version__,
    errors,
)
from agentpay.contract import endpoints

DEFAULT_POLICY = {
    "max_single_transfer": None,
    "max_daily_spend": None,
    "allowed_counterparties": None,
    "categories": None,
    "require_memo": False,
    "escalation_threshold": None,
    "paused": False,
}

CALLS = {
    "accounts.create": (
        lambda c: c.accounts.create(name="Agent", metadata={"team": "x", "rate": Decimal("0.1")}),
        ("POST", "/v1/accounts", {"name": "Agent", "metadata": {"team": "x", "rate": 0.1}}),
        (201, ACCOUNT, Account),
    ),
    "accounts.create without metadata": (
        lambda c: c.accounts.create(name="Agent"),
        ("POST", "/v1/accounts", {"name": "Agent"}),
        (201, ACCOUNT, Account),
    ),
    "accounts.get": (
        lambda c: c.accounts.get("acct_a"),
        ("GET", "/v1/accounts/acct_a", None),
        (200, ACCOUNT, Account),
    ),
    "accounts.balance": (
        lambda c: c.accounts.balance("acct_a"),
        ("GET", "/v1/accounts/acct_a/balance", None),
        (200, BALANCE, Balance),
    ),
    "policies.get": (
        lambda c: c.policies.get("acct_a"),
        ("GET", "/v1/accounts/acct_a/policy", None),
        (200, ACCOUNT_POLICY, AccountPolicy),
    ),
    "policies.replace with defaults": (
        lambda c: c.policies.replace("acct_a"),
        ("PUT", "/v1/accounts/acct_a/policy", DEFAULT_POLICY),
        (200, ACCOUNT_POLICY, AccountPolicy),
    ),
    "policies.replace": (
        lambda c: c.policies.replace(
            "acct_a",
            max_single_transfer="25.50",
            max_daily_spend=100,
            allowed_counterparties=["acct_b"],
            categories=(),
            require_memo=True,
            escalation_threshold=Decimal("0.000001"),
            paused=True,
        ),
        (
            "PUT",
            "/v1/accounts/acct_a/policy",
            {
                "max_single_transfer": 25.5,
                "max_daily_spend": 100,
                "allowed_counterparties": ["acct_b"],
                "categories": [],
                "require_memo": True,
                "escalation_threshold": 0.000001,
                "paused": True,
            },
        ),
        (200, ACCOUNT_POLICY, AccountPolicy),
    ),
    "transfers.create": (
        lambda c: c.transfers.create(
            from_="acct_a", to="acct_b", amount="1.5", memo="für", category="data", idempotency_key="key-1"
        ),
        (
            "POST",
            "/v1/transfers",
            {
                "from": "acct_a",
                "to": "acct_b",
                "amount": "1.500000",
                "memo": "für",
                "category": "data",
                "idempotency_key": "key-1",
            },
        ),
        (200, TRANSFER, Transfer),
    ),
    "transfers.create, escalated": (
        lambda c: c.transfers.create(
            from_="acct_a", to="acct_b", amount=Decimal("1.5"), idempotency_key="key-1"
        ),
        (
            "POST",
            "/v1/transfers",
            {"from": "acct_a", "to": "acct_b", "amount": "1.500000", "idempotency_key": "key-1"},
        ),
        (202, PENDING, Transfer),
    ),
    "transfers.get": (
        lambda c: c.transfers.get("txn_a"),
        ("GET", "/v1/transfers/txn_a", None),
        (200, TRANSFER, Transfer),
    ),
    "webhooks.create": (
        lambda c: c.webhooks.create(
            url="https://example.com/hook",
            events=["transfer.settled"],
            account_ids=["acct_a"],
            low_balance_threshold_usdc="2.50",
        ),
        (
            "POST",
            "/v1/webhooks",
            {
                "url": "https://example.com/hook",
                "events": ["transfer.settled"],
                "account_ids": ["acct_a"],
                "low_balance_threshold_usdc": 2.5,
            },
        ),
        (201, WEBHOOK, NewWebhook),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_sends_one_exact_request(caller, name):
    call, (method, target, body), (status, answered, model) = CALLS[name]
    caller.client = caller.kind(api_key=KEY, base_url=URL)
    with respx.mock:
        route = respx.route(method=method, url=URL + target).mock(return_value=answer(status, answered))
        result = caller(call)
    (sent,) = [exchange.request for exchange in route.calls]
    assert isinstance(result, model)
    assert sent.headers["Authorization"] == f"Bearer {KEY}"
    assert sent.headers["Host"] == "api.example.com"
    assert sent.headers["Accept"] == "application/json"
    assert sent.headers["User-Agent"] == f"agentpay-python/{__version__}"
    if body is None:
        assert sent.content == b""
        assert "Content-Type" not in sent.headers
    else:
        assert json.loads(sent.content) == body
        assert sent.headers["Content-Type"] == "application/json"
        assert sent.headers["Content-Length"] == str(len(sent.content))


@pytest.mark.parametrize(
    ("call", "target", "item", "model"),
    [
        (lambda c: c.accounts.list(), "/v1/accounts", ACCOUNT, Account),
        (
            lambda c: c.accounts.list(limit=5, cursor="a b&c", status="paused"),
            "/v1/accounts?limit=5&cursor=a+b%26c&status=paused",
            ACCOUNT,
            Account,
        ),
        (
            lambda c: c.accounts.transactions("acct_a"),
            "/v1/accounts/acct_a/transactions",
            TRANSACTION,
            Transaction,
        ),
        (
            lambda c: c.accounts.transactions(
                "acct_a",
                limit=5,
                status="rejected",
                since=datetime(2026, 1, 31, 13, 0, 0, 5000, tzinfo=timezone(timedelta(hours=1))),
            ),
            "/v1/accounts/acct_a/transactions?limit=5&status=rejected&since=2026-01-31T12%3A00%3A00.005Z",
            TRANSACTION,
            Transaction,
        ),
    ],
)
def test_a_list_sends_exactly_the_given_filters(caller, call, target, item, model):
    script = caller.script(answer(200, page([item])))
    first = caller(call)
    assert isinstance(first.data[0], model)
    assert script.requests[0].url.raw_path.decode() == target


def test_every_query_parameter_is_declared_by_the_contract(caller):
    script = caller.script(answer(200, page([])), answer(200, page([])))
    caller(lambda c: c.accounts.list(limit=1, cursor="x", status="active"))
    caller(
        lambda c: c.accounts.transactions(
            "acct_a", limit=1, cursor="x", status="all", since=datetime.now(UTC)
        )
    )
    for request, endpoint in zip(
        script.requests, (endpoints.LIST_ACCOUNTS, endpoints.LIST_TRANSACTIONS), strict=True
    ):
        names = {field.name for field in endpoint.query.__attrs_attrs__}
        assert set(request.url.params) == names


def test_a_base_url_may_have_a_path_and_a_port(caller):
    script = caller.script(answer(200, TRANSFER), base_url="http://localhost:8402/pay/")
    caller(lambda c: c.transfers.get("txn_a"))
    assert str(script.requests[0].url) == "http://localhost:8402/pay/v1/transfers/txn_a"
    assert script.requests[0].headers["Host"] == "localhost:8402"


@pytest.mark.parametrize("identifier", ["", ".", "..", "a/b", "../accounts", "a\\b", "a\nb", "\0"])
def test_an_identifier_that_would_reach_another_path_is_refused(caller, identifier):
    script = caller.script()
    with pytest.raises(ValueError, match="account_id must be an identifier"):
        caller(lambda c: c.accounts.get(identifier))
    with pytest.raises(ValueError, match="transfer_id must be an identifier"):
        caller(lambda c: c.transfers.get(identifier))
    assert not script.requests


def test_an_identifier_that_is_not_a_string_is_refused(caller):
    caller.script()
    with pytest.raises(TypeError, match="account_id must be a string, not NoneType"):
        caller(lambda c: c.policies.get(None))


@given(st.text(min_size=1))
def test_no_identifier_changes_the_path_segments(identifier):
    asked = []

    def answered(request):
        asked.append(request.url)
        return httpx.Response(404)

    client = AgentPay(api_key=KEY, base_url=URL, transport=httpx.MockTransport(answered))
    try:
        client.accounts.balance(identifier)
    except ValueError:
        return
    except errors.APIError:
        (url,) = asked
    segments = url.raw_path.decode().split("/")
    assert segments[:3] == ["", "v1", "accounts"]
    assert segments[4:] == ["balance"]
    assert url.path.split("/")[3] == identifier


@pytest.mark.parametrize("amount", [1.5, 0.1, True, None, b"1"])
def test_an_amount_that_cannot_hold_usdc_exactly_is_refused(caller, amount):
    script = caller.script()
    with pytest.raises(TypeError, match="must be a Decimal, an int or a string"):
        caller(lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount=amount))
    if amount is not None:
        with pytest.raises(TypeError, match="must be a Decimal, an int or a string"):
            caller(lambda c: c.policies.replace("acct_a", max_daily_spend=amount))
        with pytest.raises(TypeError, match="must be a Decimal, an int or a string"):
            caller(lambda c: c.policies.update("acct_a", escalation_threshold=amount))
    assert not script.requests


@pytest.mark.parametrize("amount", ["1.2345678", "-1", "NaN", "Infinity", "one", Decimal("1e-7")])
def test_an_amount_that_is_not_micro_usdc_is_refused(caller, amount):
    script = caller.script()
    with pytest.raises(ValueError, match="amount must"):
        caller(lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount=amount))
    assert not script.requests


def test_a_moment_without_an_offset_is_refused(caller):
    script = caller.script()
    with pytest.raises(ValueError, match="since must have a UTC offset"):
        caller(lambda c: c.accounts.transactions("acct_a", since=datetime(2026, 1, 1)))  # noqa: DTZ001
    assert not script.requests


def test_a_string_is_refused_where_a_list_is_expected(caller):
    caller.script()
    with pytest.raises(TypeError, match=r"allowed_counterparties is a list .* \['acct_b'\]"):
        caller(lambda c: c.policies.replace("acct_a", allowed_counterparties="acct_b"))
    with pytest.raises(TypeError, match="categories is a list"):
        caller(lambda c: c.policies.update("acct_a", categories="data"))
    with pytest.raises(TypeError, match="events is a list"):
        caller(lambda c: c.webhooks.create(url="https://example.com", events="transfer.settled"))
