"""A missing extension is distinguished from a missing object, and missing fields are tolerated."""

import httpx
import pytest
from calls import call_of
from sdk_world import Caller, answer

from agentpay import AgentPay, APIError, NotFoundError, NotSupportedError
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.extensions import EXTENSION_ENDPOINTS

NOT_FOUND = {"error": "not_found", "message": "There is no such thing.", "request_id": "req_1"}
PLAIN = [e for e in EXTENSION_ENDPOINTS if not e.is_stream and ErrorCode.NOT_FOUND not in e.every_error]
"""Endpoints that look nothing up."""
LOOK_UPS = [e for e in EXTENSION_ENDPOINTS if not e.is_stream and ErrorCode.NOT_FOUND in e.every_error]


@pytest.mark.parametrize("endpoint", [*PLAIN, *LOOK_UPS], ids=lambda endpoint: endpoint.name)
def test_only_a_404_of_a_look_up_with_an_error_body_does_not_say_that_an_extension_is_not_offered(endpoint):
    caller = Caller(AgentPay)
    caller.script(httpx.Response(404, text="<h1>no such page</h1>"), answer(404, NOT_FOUND), max_retries=0)
    with pytest.raises(NotSupportedError) as caught:
        caller(call_of(endpoint))
    assert caught.value.message == (
        f"{endpoint.name} is an extension, and this service has no {endpoint.method} {endpoint.path}"
    )
    assert (caught.value.status_code, caught.value.code) == (404, None)
    with pytest.raises(NotFoundError if endpoint in LOOK_UPS else NotSupportedError) as caught:
        caller(call_of(endpoint))
    assert (caught.value.code, caught.value.request_id) == ("not_found", "req_1")


def test_other_statuses_are_not_extension_not_offered():
    caller = Caller(AgentPay)
    for status in (400, 401, 403, 405, 501):
        caller.script(httpx.Response(status, text="no"), max_retries=0)
        with pytest.raises(APIError) as caught:
            caller(lambda c: c.whoami())
        assert not isinstance(caught.value, NotSupportedError)


def test_a_404_of_a_v1_endpoint_or_a_path_is_not_found():
    caller = Caller(AgentPay)
    for call in (
        lambda c: c.accounts.list(),
        lambda c: c.accounts.get("acct_a"),
        lambda c: c.request("GET", "/ext/v1/sessions/sess_a"),
    ):
        caller.script(httpx.Response(404, text="no"))
        with pytest.raises(NotFoundError):
            caller(call)


def test_whoami_reads_a_service_that_does_not_limit_keys():
    known = {"key_id": "key_a", "kind": "agent", "operator_id": "op_a", "account_id": "acct_a"}
    caller = Caller(AgentPay)
    caller.script(answer(200, {**known, "cluster": "devnet", "is_test_money": True}))
    identity = caller(lambda client: client.whoami())
    assert identity.account_id == "acct_a"
    assert (identity.expires_at, identity.max_total_usdc, identity.spent_total_usdc) == (None, None, None)
