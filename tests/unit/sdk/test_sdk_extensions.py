"""A missing extension is distinguished from a missing object."""

import inspect

import httpx
import pytest
from sdk_world import Caller, answer

from agentpay import AgentPay, APIError, AsyncAgentPay, ExtensionNotOfferedError, NotFoundError
from agentpay.contract.endpoints import ENDPOINTS
from agentpay.contract.errors import ErrorCode
from agentpay.contract.extensions import EXTENSION_ENDPOINTS

NOT_FOUND = {"error": "not_found", "message": "There is no such thing.", "request_id": "req_1"}
CALLS = {
    "whoami": lambda c: c.whoami(),
    "transfers.list": lambda c: c.transfers.list(),
    "sessions.list": lambda c: c.sessions.list(),
    "console.approvals.list": lambda c: c.console.approvals.list(),
    "console.operator_keys.create": lambda c: c.console.operator_keys.create(name="ops"),
    "console.audit.list": lambda c: c.console.audit.list(),
}
"""Calls of endpoints that look nothing up."""
LOOK_UPS = {
    "accounts.budget": lambda c: c.accounts.budget("acct_a"),
    "sessions.open": lambda c: c.sessions.open(account_id="acct_a", to="acct_b", cap_usdc=1),
    "sessions.get": lambda c: c.sessions.get("sess_a"),
    "console.agent_keys.create": lambda c: c.console.agent_keys.create("acct_a"),
    "console.accounts.get": lambda c: c.console.accounts.get("acct_a"),
}


@pytest.fixture(params=["sync", "asyncio", "trio"])
def caller(request):
    caller = Caller(AgentPay) if request.param == "sync" else Caller(AsyncAgentPay, request.param)
    yield caller
    caller(lambda client: client.close())


@pytest.mark.parametrize("operation", [*CALLS, *LOOK_UPS])
def test_a_404_without_an_error_body_is_extension_not_offered(caller, operation):
    caller.script(lambda _: httpx.Response(404, text="<h1>no such page</h1>"), max_retries=0)
    with pytest.raises(ExtensionNotOfferedError) as caught:
        caller((CALLS | LOOK_UPS)[operation])
    error = caught.value
    (endpoint,) = [each for each in EXTENSION_ENDPOINTS if each.name == operation]
    assert error.message == (
        f"{operation} is an extension, and this service has no {endpoint.method} {endpoint.path}"
    )
    assert (error.status, error.code) == (404, None)


@pytest.mark.parametrize("operation", CALLS)
def test_any_404_of_an_endpoint_without_a_lookup_is_extension_not_offered(caller, operation):
    caller.script(answer(404, NOT_FOUND))
    with pytest.raises(ExtensionNotOfferedError) as caught:
        caller(CALLS[operation])
    assert (caught.value.code, caught.value.request_id) == ("not_found", "req_1")


@pytest.mark.parametrize("operation", LOOK_UPS)
def test_a_404_of_a_lookup_is_not_found(caller, operation):
    caller.script(answer(404, NOT_FOUND))
    with pytest.raises(NotFoundError, match="no such thing"):
        caller(LOOK_UPS[operation])


@pytest.mark.parametrize("status", [400, 401, 403, 405, 501])
def test_other_statuses_are_not_extension_not_offered(caller, status):
    caller.script(lambda _: httpx.Response(status, text="no"), max_retries=0)
    with pytest.raises(APIError) as caught:
        caller(CALLS["whoami"])
    assert not isinstance(caught.value, ExtensionNotOfferedError)


def test_a_404_of_a_v1_endpoint_is_not_found(caller):
    caller.script(lambda _: httpx.Response(404, text="no"), lambda _: httpx.Response(404, text="no"))
    with pytest.raises(NotFoundError):
        caller(lambda c: c.accounts.list())
    with pytest.raises(NotFoundError):
        caller(lambda c: c.accounts.get("acct_a"))


def test_a_404_of_a_request_by_path_is_not_found(caller):
    caller.script(answer(404, NOT_FOUND))
    with pytest.raises(NotFoundError):
        caller(lambda c: c.request("GET", "/sessions/sess_a"))


def test_the_endpoint_table_distinguishes_lookups_from_other_calls():
    endpoints = {endpoint.name: endpoint for endpoint in EXTENSION_ENDPOINTS}
    assert not any(ErrorCode.NOT_FOUND in endpoints[name].every_error for name in CALLS)
    assert all(ErrorCode.NOT_FOUND in endpoints[name].every_error for name in LOOK_UPS)
    assert all(endpoint.is_extension for endpoint in EXTENSION_ENDPOINTS)
    assert not any(endpoint.is_extension for endpoint in ENDPOINTS)


def test_a_mock_of_the_client_has_the_extensions():
    for kind in (AgentPay, AsyncAgentPay):
        for name in ("sessions", "console", "whoami"):
            assert inspect.getattr_static(kind, name)
