"""One table of endpoints: the contract, the server's routes and the SDK's methods agree with it."""

import inspect
import re

import attrs
import httpx
import pytest
from calls import call_of, method_of

from agentpay import AgentPay, AsyncAgentPay
from agentpay.contract.endpoints import ENDPOINTS, Repeat
from agentpay.contract.ext.extensions import EXTENSION_ENDPOINTS
from agentpay.contract.ext.sessions import SESSION_ENDPOINTS
from agentpay.contract.requests import Request
from agentpay.errors import AuthenticationError
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS, SANDBOX_ENDPOINTS

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
EXTENSIONS = (*EXTENSION_ENDPOINTS, *SANDBOX_ENDPOINTS)
EVERYWHERE = (*ENDPOINTS, *EXTENSIONS)
OF_SESSIONS = {
    ("POST", "/ext/v1/sessions"),
    ("GET", "/ext/v1/sessions"),
    ("GET", "/ext/v1/sessions/{session_id}"),
    ("POST", "/ext/v1/sessions/{session_id}/charges"),
    ("POST", "/ext/v1/sessions/{session_id}/close"),
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
        # Pages and streams are read when they are iterated over.
        next(iter(call(client)))
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


@pytest.mark.parametrize("endpoint", EVERYWHERE, ids=lambda endpoint: endpoint.name)
def test_every_endpoint_is_called_by_a_method_of_its_name(endpoint):
    assert fits(endpoint, asked(call_of(endpoint)))


@pytest.mark.parametrize("endpoint", [e for e in EVERYWHERE if e.request], ids=lambda endpoint: endpoint.name)
def test_a_method_takes_the_fields_of_its_request(endpoint):
    client = AgentPay(api_key="k", base_url="http://x.invalid")
    parameters = inspect.signature(method_of(client, endpoint)).parameters
    assert set(attrs.fields_dict(endpoint.request)) <= set(parameters)


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
    assert endpoint.request is None or endpoint.method in ("POST", "PUT", "PATCH")
    assert endpoint.query is None or endpoint.method == "GET"


@pytest.mark.parametrize("endpoint", EVERYWHERE, ids=lambda endpoint: endpoint.name)
def test_page_sizes_are_those_of_the_contract(endpoint):
    if endpoint.query is not None and endpoint.name not in ("console.search", "console.spend_report"):
        expected = 25 if endpoint.name == "accounts.transactions" else 20
        assert attrs.fields_dict(endpoint.query)["limit"].default == expected
