"""A missing extension is distinguished from a missing object, and missing fields are tolerated."""

import inspect

import httpx
import pytest
from calls import call_of
from sdk_world import Caller, answer

from agentpay import AgentPay, APIError, AsyncAgentPay, NotFoundError, NotSupportedError
from agentpay.contract.endpoints import ENDPOINTS
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.extensions import EXTENSION_ENDPOINTS

NOT_FOUND = {"error": "not_found", "message": "There is no such thing.", "request_id": "req_1"}
PLAIN = [e for e in EXTENSION_ENDPOINTS if not e.is_stream and ErrorCode.NOT_FOUND not in e.every_error]
"""Endpoints that look nothing up."""
LOOK_UPS = [e for e in EXTENSION_ENDPOINTS if not e.is_stream and ErrorCode.NOT_FOUND in e.every_error]


def each(endpoints):
    return pytest.mark.parametrize("endpoint", endpoints, ids=lambda endpoint: endpoint.name)


@pytest.fixture(params=["sync", "asyncio", "trio"])
def caller(request):
    caller = Caller(AgentPay) if request.param == "sync" else Caller(AsyncAgentPay, request.param)
    yield caller
    caller(lambda client: client.close())


@each([*PLAIN, *LOOK_UPS])
def test_a_404_without_an_error_body_is_extension_not_offered(caller, endpoint):
    caller.script(lambda _: httpx.Response(404, text="<h1>no such page</h1>"), max_retries=0)
    with pytest.raises(NotSupportedError) as caught:
        caller(call_of(endpoint))
    error = caught.value
    assert error.message == (
        f"{endpoint.name} is an extension, and this service has no {endpoint.method} {endpoint.path}"
    )
    assert (error.status_code, error.code) == (404, None)


@each(PLAIN)
def test_any_404_of_an_endpoint_without_a_lookup_is_extension_not_offered(caller, endpoint):
    caller.script(answer(404, NOT_FOUND))
    with pytest.raises(NotSupportedError) as caught:
        caller(call_of(endpoint))
    assert (caught.value.code, caught.value.request_id) == ("not_found", "req_1")


@each(LOOK_UPS)
def test_a_404_of_a_lookup_is_not_found(caller, endpoint):
    caller.script(answer(404, NOT_FOUND))
    with pytest.raises(NotFoundError, match="no such thing"):
        caller(call_of(endpoint))


@pytest.mark.parametrize("status", [400, 401, 403, 405, 501])
def test_other_statuses_are_not_extension_not_offered(caller, status):
    caller.script(lambda _: httpx.Response(status, text="no"), max_retries=0)
    with pytest.raises(APIError) as caught:
        caller(lambda c: c.whoami())
    assert not isinstance(caught.value, NotSupportedError)


def test_a_404_of_a_v1_endpoint_is_not_found(caller):
    caller.script(lambda _: httpx.Response(404, text="no"), lambda _: httpx.Response(404, text="no"))
    with pytest.raises(NotFoundError):
        caller(lambda c: c.accounts.list())
    with pytest.raises(NotFoundError):
        caller(lambda c: c.accounts.get("acct_a"))


def test_a_404_of_a_request_by_path_is_not_found(caller):
    caller.script(answer(404, NOT_FOUND))
    with pytest.raises(NotFoundError):
        caller(lambda c: c.request("GET", "/ext/v1/sessions/sess_a"))


def test_the_endpoint_table_distinguishes_lookups_from_other_calls():
    for endpoint in EXTENSION_ENDPOINTS:
        takes_an_identifier = "{" in endpoint.path or endpoint.name in (
            "sessions.open",
            "agent_keys.create",
        )
        assert takes_an_identifier <= (ErrorCode.NOT_FOUND in endpoint.every_error)
    assert {"whoami", "transfers.list", "console.audit_log.list"} <= {endpoint.name for endpoint in PLAIN}
    assert all(endpoint.is_extension for endpoint in EXTENSION_ENDPOINTS)
    assert not any(endpoint.is_extension for endpoint in ENDPOINTS)


def test_whoami_reads_a_service_that_does_not_limit_keys(caller):
    body = {
        "key_id": "key_a",
        "kind": "agent",
        "operator_id": "op_a",
        "account_id": "acct_a",
        "cluster": "devnet",
        "is_test_money": True,
    }
    caller.script(answer(200, body))
    identity = caller(lambda client: client.whoami())
    assert identity.account_id == "acct_a"
    assert (identity.expires_at, identity.max_total_usdc, identity.spent_total_usdc) == (None, None, None)


def test_a_mock_of_the_client_has_the_extensions():
    for kind in (AgentPay, AsyncAgentPay):
        for name in ("sessions", "approvals", "whoami"):
            assert inspect.getattr_static(kind, name)
