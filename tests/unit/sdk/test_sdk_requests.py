"""The exact request of every endpoint, and arguments that are refused before sending."""

import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import httpx
import pytest
import respx
from calls import ENDPOINTS, is_page, response_of
from hypothesis import given
from hypothesis import strategies as st
from sdk_world import KEY, URL, answer, page

from agentpay import AgentPay, __version__, errors

DEFAULT_POLICY = {
    "max_single_transfer": None,
    "max_daily_spend": None,
    "allowed_counterparties": None,
    "categories": None,
    "require_memo": False,
    "escalation_threshold": None,
    "paused": False,
}

MOMENT = datetime(2026, 1, 31, 13, 0, 0, 5000, tzinfo=timezone(timedelta(hours=1)))
ENDS = {"from_": "acct_a", "to": "acct_b"}
PAYMENT = {"from": "acct_a", "to": "acct_b", "amount": "1.500000", "idempotency_key": "k"}
WEBHOOK = {"url": "https://example.com/hook", "events": ["transfer.settled"], "account_ids": ["acct_a"]}


CALLS: dict[str, tuple[Any, str, Any]] = {
    "accounts.create": (
        lambda c: c.accounts.create(name="Agent", metadata={"team": "x", "rate": Decimal("0.1")}),
        "/v1/accounts",
        {"name": "Agent", "metadata": {"team": "x", "rate": 0.1}},
    ),
    "accounts.create without metadata": (
        lambda c: c.accounts.create(name="Agent"),
        "/v1/accounts",
        {"name": "Agent"},
    ),
    "accounts.get": (lambda c: c.accounts.get("acct_a"), "/v1/accounts/acct_a", None),
    "accounts.balance": (lambda c: c.accounts.balance("acct_a"), "/v1/accounts/acct_a/balance", None),
    "accounts.list": (lambda c: c.accounts.list(), "/v1/accounts", None),
    "accounts.list with filters": (
        lambda c: c.accounts.list(limit=5, cursor="a b&c", status="paused"),
        "/v1/accounts?limit=5&cursor=a+b%26c&status=paused",
        None,
    ),
    "accounts.transactions": (
        lambda c: c.accounts.transactions("acct_a"),
        "/v1/accounts/acct_a/transactions",
        None,
    ),
    "accounts.transactions with filters": (
        lambda c: c.accounts.transactions("acct_a", limit=5, status="rejected", since=MOMENT),
        "/v1/accounts/acct_a/transactions?limit=5&status=rejected&since=2026-01-31T12%3A00%3A00.005Z",
        None,
    ),
    "policies.get": (lambda c: c.policies.get("acct_a"), "/v1/accounts/acct_a/policy", None),
    "policies.put with defaults": (
        lambda c: c.policies.replace("acct_a"),
        "/v1/accounts/acct_a/policy",
        DEFAULT_POLICY,
    ),
    "policies.put": (
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
    "transfers.create": (
        lambda c: c.transfers.create(**ENDS, amount="1.5", memo="für", category="data", idempotency_key="k"),
        "/v1/transfers",
        {**PAYMENT, "memo": "für", "category": "data"},
    ),
    "transfers.create with a Decimal": (
        lambda c: c.transfers.create(**ENDS, amount=Decimal("1.5"), idempotency_key="k"),
        "/v1/transfers",
        PAYMENT,
    ),
    "transfers.get": (lambda c: c.transfers.get("txn_a"), "/v1/transfers/txn_a", None),
    "sessions.open": (
        lambda c: c.sessions.open("acct_a", to="acct_b", cap_usdc=5, category="data", idempotency_key="k"),
        "/ext/v1/sessions",
        {
            "account_id": "acct_a",
            "to": "acct_b",
            "cap_usdc": "5.000000",
            "idempotency_key": "k",
            "category": "data",
        },
    ),
    "sessions.charge": (
        lambda c: c.sessions.charge("sess_a", amount="0.01", idempotency_key="k"),
        "/ext/v1/sessions/sess_a/charges",
        {"amount": "0.010000", "idempotency_key": "k"},
    ),
    "sessions.get": (lambda c: c.sessions.get("sess_a"), "/ext/v1/sessions/sess_a", None),
    "webhooks.create": (
        lambda c: c.webhooks.create(**WEBHOOK, low_balance_threshold_usdc="2.50"),
        "/v1/webhooks",
        {**WEBHOOK, "low_balance_threshold_usdc": 2.5},
    ),
}
"""The call, the path with the query, and the body; the response is the example of the documents."""


@pytest.mark.parametrize("name", CALLS)
def test_every_call_sends_one_exact_request(caller, name):
    call, target, body = CALLS[name]
    endpoint = ENDPOINTS[name.partition(" ")[0]]
    status, answered = response_of(endpoint)
    if "idempotency_key" in answered:
        answered["idempotency_key"] = "k"
    answered = page([answered]) if is_page(endpoint) else answered
    caller.client = caller.kind(api_key=KEY, base_url=f"{URL}:8402/pay/")
    with respx.mock:
        route = respx.route(method=endpoint.method, host="api.example.com")
        route.mock(return_value=answer(status, answered))
        result = caller(call)
    (sent,) = [exchange.request for exchange in route.calls]
    found = result.data[0] if is_page(endpoint) else result
    assert found.to_dict() == (answered["data"][0] if is_page(endpoint) else answered)
    assert str(sent.url) == f"{URL}:8402/pay{target}"
    assert sent.headers["Authorization"] == f"Bearer {KEY}"
    assert sent.headers["Host"] == "api.example.com:8402"
    assert sent.headers["Accept"] == "application/json"
    assert sent.headers["User-Agent"] == f"agentpay-python/{__version__}"
    if body is None:
        assert sent.content == b""
        assert "Content-Type" not in sent.headers
    else:
        assert json.loads(sent.content) == body
        assert sent.headers["Content-Type"] == "application/json"
        assert sent.headers["Content-Length"] == str(len(sent.content))


@pytest.mark.parametrize("identifier", ["", ".", "..", "a/b", "../accounts", "a\\b", "a\nb", "\0"])
def test_an_identifier_that_would_reach_another_path_is_refused(caller, identifier):
    script = caller.script()
    for call, name in (
        (lambda c: c.accounts.get(identifier), "account_id"),
        (lambda c: c.transfers.get(identifier), "transfer_id"),
        (lambda c: c.sessions.charge(identifier, amount=1), "session_id"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be an identifier"):
            caller(call)
    assert not script.requests


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
