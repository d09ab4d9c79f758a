"""One table of endpoints: the contract, the server's routes and the SDK's methods agree with it."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs
import httpx
import pytest

from agentpay import AgentPay, AsyncAgentPay
from agentpay.contract.endpoints import ENDPOINTS, Repeat, Scope
from agentpay.contract.extensions import EXTENSION_ENDPOINTS
from agentpay.contract.requests import Request
from agentpay.contract.sessions import SESSION_ENDPOINTS
from agentpay.errors import AuthenticationError
from agentpay_server.clients import Sandbox
from agentpay_server.contract.endpoints import BOUND_ENDPOINTS
from agentpay_server.contract.sandbox import SANDBOX_ENDPOINTS

IN_THE_CONTRACT = {
    ("POST", "/v1/accounts"),
    ("GET", "/v1/accounts"),
    ("GET", "/v1/accounts/{account_id}"),
    ("GET", "/v1/accounts/{account_id}/balance"),
    ("GET", "/v1/accounts/{account_id}/transactions"),
    ("GET", "/v1/accounts/{account_id}/policy"),
    ("PUT", "/v1/accounts/{account_id}/policy"),
    ("POST", "/v1/transfers"),
    ("GET", "/v1/transfers/{transfer_id}"),
    ("POST", "/v1/webhooks"),
}
OF_AGENTS = {
    "accounts.get",
    "accounts.balance",
    "accounts.transactions",
    "transfers.create",
    "transfers.get",
    "whoami",
    "accounts.budget",
    "transfers.list",
    "transfers.check",
    "sessions.open",
    "sessions.charge",
    "sessions.close",
    "sessions.get",
    "sessions.list",
    "payments.authorize",
    "payments.get",
    "payments.list",
    "payments.report_outcome",
}
EXTENSIONS = (*EXTENSION_ENDPOINTS, *SANDBOX_ENDPOINTS)
EVERYWHERE = (*ENDPOINTS, *EXTENSIONS)
OF_SESSIONS = {
    ("POST", "/sessions"),
    ("GET", "/sessions"),
    ("GET", "/sessions/{session_id}"),
    ("POST", "/sessions/{session_id}/charges"),
    ("POST", "/sessions/{session_id}/close"),
}

V1_CALLS: dict[str, Callable[[AgentPay], Any]] = {
    "accounts.create": lambda c: c.accounts.create(name="a"),
    "accounts.list": lambda c: list(c.accounts.list()),
    "accounts.get": lambda c: c.accounts.get("acct_a"),
    "accounts.balance": lambda c: c.accounts.balance("acct_a"),
    "accounts.transactions": lambda c: list(c.accounts.transactions("acct_a")),
    "policies.get": lambda c: c.policies.get("acct_a"),
    "policies.put": lambda c: c.policies.replace("acct_a", paused=True),
    "transfers.create": lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount="1"),
    "transfers.get": lambda c: c.transfers.get("txn_a"),
    "webhooks.create": lambda c: c.webhooks.create(url="https://example.com", events=["transfer.settled"]),
}
EXTENSION_CALLS: dict[str, Callable[[AgentPay], Any]] = {
    "whoami": lambda c: c.whoami(),
    "accounts.budget": lambda c: c.accounts.budget("acct_a"),
    "transfers.check": lambda c: c.transfers.check(from_="acct_a", to="acct_b", amount="1"),
    "transfers.list": lambda c: list(c.transfers.list()),
    "sessions.open": lambda c: c.sessions.open(account_id="acct_a", to="acct_b", cap_usdc="5"),
    "sessions.charge": lambda c: c.sessions.charge("sess_a", amount="0.01"),
    "sessions.close": lambda c: c.sessions.close("sess_a"),
    "sessions.get": lambda c: c.sessions.get("sess_a"),
    "sessions.list": lambda c: list(c.sessions.list()),
    "payments.authorize": lambda c: c.payments.authorize(
        account_id="acct_a", idempotency_key="k", origin="https://a.example", headers=[]
    ),
    "payments.get": lambda c: c.payments.get("txn_a"),
    "payments.list": lambda c: list(c.payments.list()),
    "payments.report_outcome": lambda c: c.payments.report_outcome("txn_a", status_code=200),
    "console.origins.list": lambda c: list(c.console.origins.list()),
    "console.origins.put": lambda c: c.console.origins.put("https://a.example"),
    "console.origins.get": lambda c: c.console.origins.get("https://a.example"),
    "console.origins.delete": lambda c: c.console.origins.delete("https://a.example"),
    "console.agent_keys.create": lambda c: c.console.agent_keys.create("acct_a"),
    "console.agent_keys.list": lambda c: list(c.console.agent_keys.list()),
    "console.agent_keys.revoke": lambda c: c.console.agent_keys.revoke("key_a"),
    "console.operator_keys.create": lambda c: c.console.operator_keys.create(name="ops"),
    "console.operator_keys.list": lambda c: list(c.console.operator_keys.list()),
    "console.operator_keys.revoke": lambda c: c.console.operator_keys.revoke("key_a"),
    "console.accounts.list": lambda c: list(c.console.accounts.list()),
    "console.accounts.get": lambda c: c.console.accounts.get("acct_a"),
    "console.accounts.allow_signing": lambda c: c.console.accounts.allow_signing("acct_a"),
    "console.audit.list": lambda c: list(c.console.audit.list()),
    "console.sign_in": lambda c: c.console.sign_in("ap_code_a"),
    "console.sign_in_code": lambda c: c.console.sign_in_code(),
    "console.stream": lambda c: next(c.console.stream()),
    "console.summary": lambda c: c.console.summary(),
    "console.requests.list": lambda c: list(c.console.requests.list()),
    "console.approvals.list": lambda c: list(c.console.approvals.list()),
    "console.approvals.approve": lambda c: c.console.approvals.approve("txn_a"),
    "console.approvals.reject": lambda c: c.console.approvals.reject("txn_a"),
    "console.webhooks.list": lambda c: list(c.console.webhooks.list()),
    "console.webhooks.delete": lambda c: c.console.webhooks.delete("wh_a"),
    "console.webhooks.rotate_secret": lambda c: c.console.webhooks.rotate_secret("wh_a"),
    "console.events.list": lambda c: list(c.console.events.list()),
    "console.events.replay": lambda c: c.console.events.replay("evt_a"),
    "console.deliveries.replay": lambda c: c.console.deliveries.replay(
        since=datetime(2026, 1, 1, tzinfo=UTC)
    ),
    "console.deliveries.list": lambda c: list(c.console.deliveries.list()),
    "sandbox.accounts.fund": lambda c: Sandbox(c).fund("acct_a", "1"),
    "sandbox.operators.create": lambda c: Sandbox(c).create_operator("b"),
    "sandbox.token_accounts.create": lambda c: Sandbox(c).create_token_account(),
    "sandbox.clock.get": lambda c: Sandbox(c).clock.now(),
    "sandbox.clock.advance": lambda c: Sandbox(c).clock.advance(1),
    "sandbox.faults.set": lambda c: Sandbox(c).set_fault("chain_down"),
    "sandbox.faults.delete": lambda c: Sandbox(c).delete_fault("chain_down"),
    "sandbox.faults.list": lambda c: list(Sandbox(c).faults()),
    "sandbox.faults.clear": lambda c: Sandbox(c).clear_faults(),
    "sandbox.snapshots.create": lambda c: Sandbox(c).snapshot(),
    "sandbox.snapshots.list": lambda c: list(Sandbox(c).snapshots()),
    "sandbox.snapshots.restore": lambda c: Sandbox(c).restore("snap_a"),
    "sandbox.reset": lambda c: Sandbox(c).reset(),
}


def asked(call):
    """Method and path of the one request that a call of the SDK makes."""
    requests = []

    def refuse(request):
        requests.append((request.method, request.url.path))
        return httpx.Response(401, json={"error": "unauthorized", "message": "no"})

    with (
        AgentPay(
            api_key="k", base_url="http://x.invalid", transport=httpx.MockTransport(refuse), max_retries=0
        ) as client,
        pytest.raises(AuthenticationError),
    ):
        call(client)
    (request,) = requests
    return request


def fits(endpoint, request):
    method, path = request
    part = ".+" if endpoint.takes_rest_of_path else "[^/]+"
    return endpoint.method == method and re.fullmatch(re.sub(r"\{\w+\}", part, endpoint.path), path)


def test_the_table_lists_exactly_the_endpoints_of_the_contract():
    assert {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS} == IN_THE_CONTRACT
    assert len(ENDPOINTS) == len(IN_THE_CONTRACT)


def test_no_two_endpoints_share_a_name_or_a_route():
    assert len({endpoint.name for endpoint in EVERYWHERE}) == len(EVERYWHERE)
    assert len({(endpoint.method, endpoint.path) for endpoint in EVERYWHERE}) == len(EVERYWHERE)


def test_every_endpoint_is_called_by_the_sdk():
    assert set(V1_CALLS) == {endpoint.name for endpoint in ENDPOINTS}
    for endpoint in ENDPOINTS:
        assert fits(endpoint, asked(V1_CALLS[endpoint.name])), endpoint.name


def test_every_extension_endpoint_is_called_by_the_sdk_or_sandbox_client():
    assert set(EXTENSION_CALLS) == {endpoint.name for endpoint in EXTENSIONS}
    for endpoint in EXTENSIONS:
        assert fits(endpoint, asked(EXTENSION_CALLS[endpoint.name])), endpoint.name


@pytest.mark.parametrize("kind", [AgentPay, AsyncAgentPay], ids=["sync", "async"])
@pytest.mark.parametrize("endpoint", EXTENSION_ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_the_client_has_an_attribute_for_every_extension(kind, endpoint):
    found = kind(api_key="k", base_url="http://x.invalid")
    for name in endpoint.name.split("."):
        found = getattr(found, name)
    assert callable(found)


def test_the_server_binds_every_endpoint():
    assert EVERYWHERE == BOUND_ENDPOINTS


def test_the_session_endpoints_are_the_documented_ones():
    assert {(endpoint.method, endpoint.path) for endpoint in SESSION_ENDPOINTS} == OF_SESSIONS


def test_success_statuses_are_those_of_the_contract():
    statuses = {endpoint.name: set(endpoint.responses) for endpoint in ENDPOINTS}

    assert statuses.pop("accounts.create") == {201}
    assert statuses.pop("webhooks.create") == {201}
    assert statuses.pop("transfers.create") == {200, 202}
    assert set(map(frozenset, statuses.values())) == {frozenset({200})}


def test_agent_scoped_keys_may_call_only_the_listed_endpoints():
    assert {endpoint.name for endpoint in EVERYWHERE if endpoint.scope is Scope.ACCOUNT} == OF_AGENTS


def test_non_idempotent_requests_are_retried_only_if_not_processed():
    careful = {endpoint.name for endpoint in ENDPOINTS if endpoint.repeat is Repeat.IF_NOT_PROCESSED}

    assert careful == {"accounts.create", "webhooks.create"}
    assert all(
        endpoint.repeat is Repeat.ALWAYS for endpoint in EVERYWHERE if endpoint.method in ("GET", "PUT")
    )


@pytest.mark.parametrize("endpoint", EVERYWHERE, ids=lambda endpoint: endpoint.name)
def test_request_models_refuse_unknown_fields(endpoint):
    for model in (endpoint.request, endpoint.query):
        assert model is None or (attrs.has(model) and issubclass(model, Request))
    assert endpoint.request is None or endpoint.method in ("POST", "PUT")
    assert endpoint.query is None or endpoint.method == "GET"


@pytest.mark.parametrize("endpoint", EVERYWHERE, ids=lambda endpoint: endpoint.name)
def test_page_sizes_are_those_of_the_contract(endpoint):
    if endpoint.query is not None:
        expected = 25 if endpoint.name == "accounts.transactions" else 20
        assert attrs.fields_dict(endpoint.query)["limit"].default == expected
