"""Options of a call, deadlines, raw responses, and requests without a method."""

import copy
import json
import logging
import pickle
from decimal import Decimal

import attrs
import httpx
import pytest
from calls import call_of, is_page, response_of
from sdk_world import (
    ACCOUNT,
    ACCOUNT_POLICY,
    KEY,
    TRANSFER,
    URL,
    Script,
    answer,
    page,
    paid,
    refusal,
)

from agentpay import AgentPay, RawResponse, Transfer, __version__, errors
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS


def pay(client, **options):
    return client.transfers.create(from_="acct_a", to="acct_b", amount="1.5", **options)


def busy():
    return answer(503, {"error": "service_unavailable", "message": "busy"})


CALLS = {
    "accounts.get": (lambda c, **o: c.accounts.get("acct_a", **o), ACCOUNT),
    "accounts.list": (lambda c, **o: c.accounts.list(**o), page([ACCOUNT])),
    "policies.update": (lambda c, **o: c.policies.update("acct_a", paused=True, **o), ACCOUNT_POLICY),
    "transfers.create": (lambda c, **o: pay(c, idempotency_key="key-1", **o), TRANSFER),
    "request": (lambda c, **o: c.request("GET", "/v1/accounts", **o), page([])),
}


INVALID_OPTIONS = [
    ({"timeout": 0}, "timeout must be above 0"),
    ({"timeout": "3"}, "timeout is a number of seconds"),
    ({"timeout": httpx.Timeout(5, connect=0)}, "timeout.connect must be above 0"),
    ({"timeout": object()}, "timeout is a number of seconds or None, not object"),
    ({"total_timeout": float("inf")}, "total_timeout must be above 0"),
    ({"total_timeout": -1}, "total_timeout must be above 0"),
    ({"max_retries": -1}, "max_retries must be an integer"),
    ({"extra_headers": ["X-A"]}, "extra_headers must be a mapping"),
    ({"extra_headers": {"X A": "1"}}, "a name that is not valid for a header field"),
    ({"extra_headers": {"X-A": "a\r\nX-B: c"}}, r"extra_headers\['X-A'\] must be printable"),
    ({"extra_headers": {"X-A": "ü"}}, "must be printable ASCII"),
    ({"extra_headers": {"X-A": " a"}}, "without blanks at its ends"),
    ({"extra_headers": {"X-A": 1}}, "must be printable ASCII"),
    ({"extra_headers": {"authorization": "Bearer x"}}, "authorization, which the client sets"),
    ({"extra_headers": {"Host": "evil.example"}}, "Host, which the client sets"),
    ({"extra_headers": {"Content-Length": "1"}}, "Content-Length, which the client sets"),
    ({"extra_headers": {"If-Match": "*"}}, "If-Match, which the client sets"),
]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
class TestOptions:
    def test_extra_headers_are_sent_with_every_request_of_the_call(self, caller, call):
        make, body = call
        script = caller.script(*[answer(200, body)] * 3, default_headers={"X-Team": "a", "X-Other": "b"})
        caller(lambda c: make(c, extra_headers={"x-team": "c", "X-Trace": "1"}))
        for request in script.requests:
            assert request.headers["X-Team"] == "c"
            assert request.headers["X-Other"] == "b"
            assert request.headers["X-Trace"] == "1"

    def test_options_of_the_call_override_the_client_and_apply_to_it_only(self, caller, call):
        make, body = call
        script = caller.script(*[answer(200, body)] * 4, busy())
        caller(lambda c: make(c, timeout=3))
        caller(make)
        assert {frozenset(request.extensions["timeout"].values()) for request in script.requests} == {
            frozenset({3.0}),
            frozenset({30.0}),
        }
        while len(script.steps) > 1:
            script.steps.pop(0)
        sent = len(script.requests)
        with pytest.raises(errors.AgentPayError):
            caller(lambda c: make(c, max_retries=0))
        assert len(script.requests) == sent + 1

    def test_an_invalid_option_is_refused_by_name(self, caller, call):
        make, _ = call
        script = caller.script()
        for options, problem in INVALID_OPTIONS:
            with pytest.raises(errors.ConfigurationError, match=problem):
                caller(lambda c, options=options: make(c, **options))
        assert not script.requests


CALLED = [endpoint for endpoint in BOUND_ENDPOINTS if not endpoint.is_stream]


@pytest.mark.parametrize("endpoint", CALLED, ids=lambda endpoint: endpoint.name)
def test_every_call_takes_more_query_and_body_than_this_version_knows(endpoint):
    status, content = 204, None
    if None not in endpoint.responses.values():
        status, body = response_of(endpoint)
        content = page([body]) if is_page(endpoint) else body
    script = Script(answer(status, content))
    client = AgentPay(api_key=KEY, base_url=URL, transport=script)
    is_get = endpoint.method == "GET"
    more = {} if is_get else {"extra_body": {"note": Decimal("0.1"), "tags": ["a"]}}
    call_of(endpoint, extra_query={"expand": "all", "n": 3, "none": None}, **more)(client)
    (request,) = script.requests
    assert {"expand": "all", "n": "3"}.items() <= dict(request.url.params).items()
    assert "none" not in request.url.params
    if not is_get:
        sent = json.loads(request.content, parse_float=Decimal)
        assert {"note": Decimal("0.1"), "tags": ["a"]}.items() <= sent.items()
        assert request.headers["Content-Length"] == str(len(request.content))


@pytest.mark.parametrize("endpoint", CALLED, ids=lambda endpoint: endpoint.name)
def test_no_argument_can_be_set_a_second_time(endpoint):
    """The client compares responses with its arguments, and a key names what it sent."""
    client = AgentPay(api_key=KEY, base_url=URL, transport=Script())
    for option, model in (("extra_query", endpoint.query), ("extra_body", endpoint.request)):
        for each in attrs.fields(model) if model else ():
            name = each.name.removesuffix("_")
            with pytest.raises(TypeError, match=f"{option} must not set '{name}'"):
                call_of(endpoint, **{option: {name: "x"}})(client)


def test_extras_of_a_request_without_a_method(caller):
    script = caller.script(answer(200, {}), answer(200, {}))
    caller(lambda c: c.request("get", "/v1/x", params={"a": 1}, extra_query={"b": 2}))
    assert str(script.requests[0].url) == f"{URL}/v1/x?a=1&b=2"
    caller(lambda c: c.request("post", "/v1/x", json={"a": 1}, extra_body={"b": 2}))
    assert json.loads(script.requests[1].content) == {"a": 1, "b": 2}
    for options in ({"extra_query": {"a": 2}}, {"extra_query": [1]}, {"extra_body": {"b": 2}}):
        with pytest.raises(TypeError, match="extra_"):
            caller(lambda c, options=options: c.request("get", "/v1/x", params={"a": 1}, **options))
    with pytest.raises(TypeError):
        caller(lambda c: c.request("post", "/v1/x", json={}, extra_body={"b": 0.5}))


class TestSettings:
    def test_settings_are_readable_and_those_of_a_copy_do_not_change_the_original(self, caller):
        own = {"timeout": 7, "max_retries": 5, "total_timeout": 9, "app_info": "shop/1.2 (agents)"}
        script = caller.script(*[answer(200, ACCOUNT)] * 2, default_headers={"X-A": "1"}, **own)
        client = caller.client
        assert (client.base_url, client.timeout, client.max_retries, client.total_timeout) == (URL, 7, 5, 9)
        copied = client.with_options(timeout=None, total_timeout=None, default_headers={"X-B": "2"})
        assert (copied.timeout, copied.max_retries, copied.total_timeout) == (None, 5, None)
        caller(lambda _: copied.accounts.get("acct_a"))
        caller(lambda c: c.accounts.get("acct_a"))
        sent = [("X-A" in request.headers, "X-B" in request.headers) for request in script.requests]
        assert sent == [(False, True), (True, False)]
        for request in script.requests:
            assert request.headers["User-Agent"] == f"agentpay-python/{__version__} shop/1.2 (agents)"

    def test_no_log_shows_the_value_of_an_added_header(self, caller, caplog):
        caller.script(answer(200, ACCOUNT), default_headers={"X-Gateway-Key": "hush-1"})
        with caplog.at_level(logging.DEBUG, logger="agentpay"):
            caller(lambda c: c.accounts.get("acct_a", extra_headers={"X-Token": "hush-2"}))
        assert "X-Token" in caplog.text or "x-token" in caplog.text
        assert "hush" not in caplog.text
        assert KEY not in caplog.text


class TestDeadline:
    @pytest.mark.parametrize(("seconds", "is_repeated"), [(0.55, False), (0.6, True)])
    def test_a_retry_is_made_only_if_it_leaves_enough_time(self, caller, seconds, is_repeated):
        script = caller.script(busy(), answer(200, ACCOUNT))
        caller.client._http.random = lambda: 1.0  # a pause of 0.5 s
        if is_repeated:
            caller(lambda c: c.accounts.get("acct_a", total_timeout=seconds))
            assert [round(r.extensions["timeout"]["read"], 6) for r in script.requests] == [0.1, 0.1]
        else:
            with pytest.raises(errors.ServerError):
                caller(lambda c: c.accounts.get("acct_a", total_timeout=seconds))
            assert len(script.requests) == 1
        assert caller.clock.sleeps == [0.5] * is_repeated

    def test_a_deadline_reports_an_unknown_outcome_as_unknown(self, caller):
        script = caller.script(httpx.ReadError("reset"), busy(), paid, total_timeout=0.8)
        caller.client._http.random = lambda: 1.0
        with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
            caller(pay)
        # The second pause would be 1 s. Both attempts were made under one key, which the error carries.
        assert [body["idempotency_key"] for body in script.bodies] == [caught.value.idempotency_key] * 2

    def test_each_network_step_gets_the_remaining_time(self, caller):
        seen = []

        def slow(request):
            steps = request.extensions["timeout"]
            seen.append(steps.get("connect"))
            caller.clock.now += 4
            seen.append(steps["read"])
            assert steps.get("other") is None
            return answer(200, ACCOUNT)

        caller.script(slow)
        caller(lambda c: c.accounts.get("acct_a", total_timeout=5, timeout=3))
        assert seen == [3, 1]

    def test_a_complete_response_is_accepted_after_the_deadline(self, caller):
        def late(request):
            caller.clock.now += 60
            return paid(request)

        caller.script(late)
        assert caller(lambda c: pay(c, total_timeout=5)).status == "settled"

    def test_all_requests_of_one_call_share_the_deadline(self, caller):
        left = []

        def answered(request):
            left.append(request.extensions["timeout"]["read"])
            caller.clock.now += 2
            return answer(200, ACCOUNT_POLICY, etag='"1"')

        caller.script(answered, answered)
        caller(lambda c: c.policies.update("acct_a", paused=False, total_timeout=10))
        assert left == [10, 8]


class TestResponse:
    def test_a_model_has_the_status_and_headers_of_its_response(self, caller):
        caller.script(busy(), answer(200, TRANSFER, x_request_id="req_1", x_more="m"))
        transfer = caller(lambda c: pay(c, idempotency_key="key-1"))
        response = transfer.response
        assert (response.status_code, response.request_id, response.retries_made) == (200, "req_1", 1)
        assert response.headers["X-More"] == "m"
        assert response.json() == TRANSFER
        assert response.content == json.dumps(TRANSFER).encode()
        assert transfer == Transfer.from_json(response.content)
        assert Transfer.from_json(response.content).response is None
        assert "response" not in transfer.to_dict()
        assert "req_1" not in repr(transfer)

    def test_a_response_hides_its_body_and_survives_pickling(self, caller):
        caller.script(answer(200, TRANSFER))
        transfer = caller(lambda c: c.transfers.get("txn_a"))
        assert repr(transfer.response) == "RawResponse(status_code=200, retries_made=0)"
        assert pickle.loads(pickle.dumps(transfer)).response == transfer.response
        assert copy.deepcopy(transfer).response.headers == transfer.response.headers


class TestRequest:
    def test_request_reaches_paths_without_a_method(self, caller):
        script = caller.script(answer(200, {"limit": 1.5, "now": True}, x_request_id="req_1"))
        response = caller(
            lambda c: c.request(
                "get", "/ext/v1/sandbox/clock", params={"deep": 1, "cursor": "a b", "none": None}
            )
        )
        assert isinstance(response, RawResponse)
        assert response.json() == {"limit": Decimal("1.5"), "now": True}
        assert (response.status_code, response.request_id, response.retries_made) == (200, "req_1", 0)
        assert script.requests[0].url.raw_path == b"/ext/v1/sandbox/clock?deep=1&cursor=a+b"
        assert script.requests[0].headers["Authorization"] == f"Bearer {KEY}"

    def test_a_query_that_is_no_mapping_and_a_float_are_named(self, caller):
        script = caller.script()
        with pytest.raises(TypeError, match="params must be a mapping of names to values, not list"):
            caller(lambda c: c.request("GET", "/v1/accounts", params=[("limit", 1)]))
        with pytest.raises(TypeError, match="float has no exact JSON form; use Decimal"):
            caller(lambda c: c.request("PUT", "/v1/accounts/acct_a/policy", json={"max_daily_spend": 0.1}))
        assert not script.requests

    def test_a_body_is_sent_as_exact_json(self, caller):
        script = caller.script(answer(201, {}))
        caller(lambda c: c.request("POST", "/v1/webhooks", json={"low": Decimal("0.10"), "n": [1, None]}))
        assert script.requests[0].content == b'{"low":0.1,"n":[1,null]}'
        assert script.requests[0].headers["Content-Type"] == "application/json"

    @pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
    def test_only_a_get_is_retried(self, caller, method):
        for failure in (busy(), refusal(429, "rate_limited"), httpx.ConnectError("refused")):
            script = caller.script(failure, answer(200, {}))
            if method == "GET":
                assert caller(lambda c: c.request(method, "/v1/new")).retries_made == 1
                continue
            with pytest.raises(errors.AgentPayError):
                caller(lambda c: c.request(method, "/v1/new", json={}, max_retries=5))
            assert len(script.requests) == 1

    @pytest.mark.parametrize("failure", [busy, lambda: httpx.ReadError("reset")], ids=["503", "lost"])
    def test_an_unknown_outcome_is_reported_with_the_key_of_the_body(self, caller, failure):
        caller.script(failure(), failure())
        body = {"idempotency_key": "key-1"}
        with pytest.raises(errors.OutcomeUnknownError) as caught:
            caller(lambda c: c.request("POST", "/ext/v1/payments", json=body))
        assert (caught.value.operation, caught.value.idempotency_key) == ("POST /ext/v1/payments", "key-1")
        with pytest.raises(errors.TransferOutcomeUnknownError):
            caller(lambda c: c.request("POST", "/v1/transfers", json=body))

    def test_a_body_that_is_not_json_can_be_read_as_bytes(self, caller):
        caller.script(answer(200, b"# HELP"), answer(204, b""))
        response = caller(lambda c: c.request("GET", "/metrics"))
        assert response.content == b"# HELP"
        with pytest.raises(ValueError, match="JSON"):
            response.json()
        assert caller(lambda c: c.request("DELETE", "/ext/v1/console/webhooks/wh_a")).json() is None

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("fetch", "/v1/accounts"),
            ("CONNECT", "/v1/accounts"),
            ("GET", "v1/accounts"),
            ("GET", "@evil.example/"),
            ("GET", "https://evil.example/"),
            ("GET", "/v1/../console"),
            ("GET", "/v1/./accounts"),
            ("GET", "/v1/accounts?limit=1"),
            ("GET", "/v1/accounts#x"),
            ("GET", "/v1/ accounts"),
            ("GET", "/v1\\accounts"),
            ("GET", "/v1/accounts\r\nX-A: b"),
            ("GET", ""),
        ],
    )
    def test_an_invalid_method_or_path_is_refused(self, caller, method, path):
        script = caller.script()
        with pytest.raises(ValueError, match="must be"):
            caller(lambda c: c.request(method, path))
        assert not script.requests
