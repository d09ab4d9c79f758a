"""Errors that no endpoint owns: keys, paths, methods, sizes, media types, the order of checks.

See interface R9 to R18, E1 to E11.
"""

import httpx
import pytest
import stores
from server_world import (
    START,
    UNKNOWN_ACCOUNT,
    Funded,
    faults,
    made_key,
    path_of,
    raw_client,
    refused,
    state_of,
)

from agentpay_server import AgentPayServer, Settings
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

pytestmark = pytest.mark.unmeasured

KIB = 1024
WELL_FORMED_UNKNOWN_KEY = made_key()

PATHS = sorted({endpoint.path for endpoint in BOUND_ENDPOINTS})
SMALLEST = {
    "payments.report_outcome": {"status_code": 200},
    "sandbox.accounts.fund": {"amount": "1"},
    "sessions.charge": {"amount": "1", "idempotency_key": "k"},
}
"""Bodies that have nothing but what must be there, where that is anything."""
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"]


def transfer_body(**changes):
    return {"from": UNKNOWN_ACCOUNT, "to": UNKNOWN_ACCOUNT, "amount": "1", "idempotency_key": "k", **changes}


# --- Keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization",
    [
        *[
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer x",
            "Basic dXNlcjpwYXNz",
            "Bearer ap_operator_",
            "Token {key}",
        ],
        *["{key}", "Bearer {key}x", "Bearer x{key}", "Bearer {key} {key}", "Bearer: {key}", "Bearer,{key}"],
        *[
            f"Bearer {WELL_FORMED_UNKNOWN_KEY}",
            "Bearer " + "x" * 10_000,
            "Bearer {flipped}",
            b"Bearer \xff\xfe",
        ],
        "Bearer {agent_prefixed}",
    ],
)
def test_without_a_valid_key_every_path_is_401(shared_http, shared_server, authorization):
    if isinstance(authorization, str):
        key = shared_server.operator_key
        authorization = authorization.format(
            key=key,
            flipped=key[:-1] + ("0" if key[-1] != "0" else "1"),
            agent_prefixed=key.replace("operator", "agent"),
        )
    headers = {} if authorization is None else {"Authorization": authorization}
    with raw_client(shared_server, "") as anonymous:
        for path in (
            "/v1/accounts",
            "/v1/nowhere",
            "/ext/v1/console/audit",
            "/ext/v1/sandbox/clock",
            "/metrics/",
        ):
            response = anonymous.get(path, headers=headers)

            refused(response, "unauthorized")
            assert response.headers["www-authenticate"] == "Bearer"


def test_all_invalid_keys_get_the_same_answer(shared_server):
    answers = set()
    for key in ("nonsense", WELL_FORMED_UNKNOWN_KEY, "x" * 5_000):
        with raw_client(shared_server, key) as client:
            body = client.get("/v1/accounts").json()
        answers.add((body["error"], body["message"]))

    assert len(answers) == 1


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_read_in_any_case(shared_http, shared_server, scheme):
    headers = {"Authorization": f"{scheme} {shared_server.operator_key}"}

    assert shared_http.get("/v1/accounts", headers=headers).status_code == 200


def test_two_authorization_headers_are_401(shared_server, shared_http):
    twice = [("Authorization", f"Bearer {shared_server.operator_key}")] * 2
    with raw_client(shared_server, "") as anonymous:
        refused(anonymous.get("/v1/accounts", headers=twice), "unauthorized")


def test_a_key_in_the_query_or_the_body_is_ignored(shared_server):
    key = shared_server.operator_key
    with raw_client(shared_server, "") as anonymous:
        refused(anonymous.get("/v1/accounts", params={"api_key": key, "access_token": key}), "unauthorized")


# --- Paths and methods ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *["/v1", "/v1/", "/v2/accounts", "/v1/accounts/", "/v1/accounts/x/", "/v1/accounts/x/y"],
        *["/V1/accounts", "/v1//accounts", "/v1/accounts/x/policy/", "/v1/transfers/", "/openapi.yaml"],
        *["/v1/accounts/a%2Fb", "/v1/accounts%00", "/v1/sessions", "/v1/ext/v1/sessions"],
        *["/ext", "/ext/v1", "/ext/v1/", "/ext/v1/console", "/ext/v1/sandbox", "/ext/v1/accounts"],
        *["/ext/v1sessions", "/ext/v2/sessions", "/sessions", "/payments", "/transfers", "/whoami"],
        *["/console/events", "/sandbox/clock", "/accounts/acct_x/budget", "/sessions/sess_x"],
    ],
)
def test_an_unknown_path_is_404(shared_http, path):
    refused(shared_http.get(path), "not_found")


@pytest.mark.parametrize("path", PATHS)
def test_a_method_that_a_path_does_not_take_is_405_with_those_it_takes(shared_http, path):
    allowed = {endpoint.method for endpoint in BOUND_ENDPOINTS if endpoint.path == path}

    for method in {*METHODS} - allowed:
        response = shared_http.request(method, path)
        refused(response, "method_not_allowed")
        assert response.headers["allow"] == ", ".join(sorted(allowed))


# The name of a fault is not an identifier: unknown ones are 400 with a list of the available ones.
@pytest.mark.parametrize("path", [path for path in PATHS if "_id}" in path])
def test_a_malformed_identifier_is_404_like_an_unknown_one(shared_http, path):
    if "snapshot_id" in path and not stores.has_snapshots():
        pytest.skip("only a server that keeps everything in memory has snapshots")
    before, _, after = path.partition("{")

    for identifier in ("x", "%00", "%0a", "%F0%9F%A4%96", "acct_", "..;", "'--", "%25", "a" * 5_000):
        target = before + identifier + after.partition("}")[2]
        for endpoint in BOUND_ENDPOINTS:
            if endpoint.path == path:
                body = {"json": SMALLEST.get(endpoint.name, {})} if endpoint.request else {}
                refused(shared_http.request(endpoint.method, target, **body), "not_found")


def test_every_response_has_a_unique_request_id(shared_http):
    answers = [
        shared_http.get("/v1/accounts"),
        shared_http.get("/v1/accounts"),
        shared_http.get("/v1/nowhere"),
        shared_http.get("/v1/accounts", headers={"Authorization": "x", "X-Request-Id": "mine"}),
        shared_http.post("/v1/transfers", content=b"{"),
    ]

    identifiers = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(identifiers)) == len(answers)
    assert all(len(identifier) == len("req_") + 26 for identifier in identifiers)


# --- Size, media type -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v1/accounts", "/v1/transfers", "/ext/v1/console/agent-keys", "/ext/v1/sandbox/clock/advance"]
)
def test_a_body_of_64_kib_is_read_and_one_byte_more_is_413(shared_http, path):
    faults(shared_http.post(path, content=b" " * (64 * KIB)))
    refused(shared_http.post(path, content=b" " * (64 * KIB + 1)), "payload_too_large")


def test_a_chunked_body_is_measured_as_it_comes(shared_http):
    def chunks(count):
        yield from [b" " * KIB] * count

    refused(shared_http.post("/v1/accounts", content=chunks(65)), "payload_too_large")
    faults(shared_http.post("/v1/accounts", content=chunks(64)))


def test_a_large_body_with_a_small_content_length_is_413(shared_http):
    headers = {"Content-Length": "5"}

    refused(shared_http.post("/v1/accounts", content=b" " * 70_000, headers=headers), "payload_too_large")


@pytest.mark.parametrize("length", ["9" * 20, "9" * 5_000])
def test_a_body_that_claims_to_be_huge_is_413_unread(shared_http, length):
    headers = {"Content-Length": length}

    refused(shared_http.post("/v1/accounts", content=b"{}", headers=headers), "payload_too_large")


@pytest.mark.parametrize("length", ["-1", "abc", "", "1e3", "\u00b2"])
def test_a_malformed_content_length_is_ignored(shared_http, length):
    headers = {"Content-Length": length.encode("latin-1")}

    faults(shared_http.post("/v1/accounts", content=b"{}", headers=headers))


@pytest.mark.parametrize(
    "content_type",
    [
        *["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"],
        *["application/xml", "application/jsonp", "application/json; charset=latin-1", "text/json"],
    ],
)
def test_a_body_with_another_content_type_is_415(shared_http, content_type):
    response = shared_http.post(
        "/v1/accounts", content=b'{"name":"x"}', headers={"Content-Type": content_type}
    )

    refused(response, "unsupported_media_type")


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "APPLICATION/JSON",
        'application/json; charset="utf-8"',
        "application/json;charset=UTF-8",
    ],
)
def test_every_json_content_type_is_accepted(http, content_type):
    response = http.post("/v1/accounts", content=b'{"name":"x"}', headers={"Content-Type": content_type})

    assert response.status_code == 201


def test_a_body_without_a_content_type_is_accepted(http):
    response = http.post("/v1/accounts", content=b'{"name":"x"}')

    assert "content-type" not in response.request.headers
    assert response.status_code == 201


# --- Bodies that are not JSON, or not this JSON -----------------------------------------------------------

NOT_JSON = {
    "empty": b"",
    "blank": b"  ",
    "truncated": b'{"name":',
    "two values": b"{} {}",
    "trailing comma": b'{"name":"x",}',
    "single quotes": b"{'name':'x'}",
    "comment": b'{"name":"x"} // no',
    "NaN": b'{"name":NaN}',
    "Infinity": b'{"name":-Infinity}',
    "byte order mark": b'\xef\xbb\xbf{"name":"x"}',
    "latin-1": b'{"name":"\xe9"}',
    "UTF-16": '{"name":"x"}'.encode("utf-16"),
    "surrogate in UTF-8": b'{"name":"\xed\xa0\x80"}',
    "raw control character": b'{"name":"a\x01"}',
    "raw NUL": b'{"name":"a\x00"}',
    "escaped NUL": b'{"name":"a\\u0000"}',
    "NUL in a key": b'{"name":"x","metadata":{"\\u0000":1}}',
    "lone surrogate": b'{"name":"\\ud800"}',
    "lone low surrogate": b'{"name":"x","metadata":{"a":["\\udfff"]}}',
    "repeated key": b'{"name":"x","name":"y"}',
    "repeated key, escaped": b'{"name":"x","n\\u0061me":"x"}',
    "repeated key, deep": b'{"name":"x","metadata":{"a":[{"b":1,"b":1}]}}',
    "nesting of 17": b'{"name":"x","metadata":' + b'{"a":' * 15 + b"[]" + b"}" * 15 + b"}",
    "nesting without end": b"[" * 60_000,
    "objects without end": b'{"a":' * 12_000,
    "integer of 5,000 digits": b'{"name":' + b"1" * 5_000 + b"}",
    "exponent of 30 digits": b'{"name":1e' + b"9" * 30 + b"}",
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_a_body_that_is_not_acceptable_json_is_400_and_changes_nothing(shared_server, shared_http, body):
    before = state_of(shared_server)

    found = faults(shared_http.post("/v1/accounts", content=body))

    assert all(name == "body" or "NUL or lone surrogates" in found[name] for name in found)
    assert all(message.startswith("must ") for message in found.values())
    assert found
    assert state_of(shared_server) == before


def test_a_nesting_of_16_is_read(http):
    body = b'{"name":"x","metadata":' + b'{"a":' * 14 + b"[]" + b"}" * 14 + b"}"

    assert http.post("/v1/accounts", content=body).status_code == 201


@pytest.mark.parametrize(
    "endpoint",
    [endpoint for endpoint in BOUND_ENDPOINTS if endpoint.request],
    ids=lambda endpoint: endpoint.name,
)
def test_a_body_must_be_an_object(shared_http, endpoint):
    path = path_of(endpoint)

    for body in (b"null", b"true", b"1", b'"x"', b"[]", b'[{"name":"x"}]'):
        response = shared_http.request(endpoint.method, path, content=body)
        assert faults(response) == {"body": "must be an object"}


# --- Order of checks (interface R17)
# --------------------------------------------------------------------------------


def test_401_comes_before_404_and_405_of_the_route(shared_server):
    with raw_client(shared_server, "") as anonymous:
        refused(anonymous.get("/nowhere"), "unauthorized")
        refused(anonymous.delete("/v1/accounts"), "unauthorized")
        refused(anonymous.post("/v1/transfers", content=b" " * 70_000), "unauthorized")


def test_404_and_405_of_the_route_come_before_403(shared_server, shared_agent_http):
    refused(shared_agent_http.get("/ext/v1/console/nowhere"), "not_found")
    refused(shared_agent_http.delete("/ext/v1/console/audit"), "method_not_allowed")


def test_403_comes_before_429_and_429_before_413():
    with AgentPayServer(clock=START, settings=Settings(rate_limit_per_minute=2)) as server:
        account = server.client().accounts.create(name="a")
        agent = server.agent_keys.create(account.account_id)
        with raw_client(server, agent.key) as http:
            for _ in range(2):
                assert http.get(f"/v1/accounts/{account.account_id}").status_code == 200
            refused(http.get(f"/v1/accounts/{account.account_id}"), "rate_limited")

            refused(http.get(f"/v1/accounts/{account.account_id}/policy"), "forbidden")
            refused(http.get("/v1/nowhere"), "not_found")
            refused(http.post("/v1/transfers", content=b" " * 70_000), "rate_limited")


def test_403_comes_before_413_415_and_400(shared_agent_http):
    path = f"/v1/accounts/{UNKNOWN_ACCOUNT}/policy"

    refused(shared_agent_http.put(path, content=b" " * 70_000), "forbidden")
    refused(shared_agent_http.put(path, content=b"x", headers={"Content-Type": "text/plain"}), "forbidden")
    refused(shared_agent_http.put(path, content=b"x"), "forbidden")


def test_413_comes_before_415(shared_http):
    headers = {"Content-Type": "text/plain"}

    refused(shared_http.post("/v1/transfers", content=b"x" * 70_000, headers=headers), "payload_too_large")


def test_415_comes_before_400(shared_http):
    headers = {"Content-Type": "text/plain"}

    refused(shared_http.post("/v1/transfers", content=b"{", headers=headers), "unsupported_media_type")


def test_400_comes_before_404_of_the_account(shared_http):
    faults(shared_http.post("/v1/transfers", json=transfer_body(amount=1)))
    faults(shared_http.put(f"/v1/accounts/{UNKNOWN_ACCOUNT}/policy", json={"paused": 1}))
    faults(shared_http.get(f"/v1/accounts/{UNKNOWN_ACCOUNT}/transactions", params={"limit": 0}))
    faults(shared_http.post(f"/ext/v1/sandbox/accounts/{UNKNOWN_ACCOUNT}/fund", json={"amount": "-1"}))


def test_404_of_the_source_comes_before_the_idempotency_key(funded: Funded, http: httpx.Client):
    payer, payee = funded("5"), funded("0.1")
    body = transfer_body(**{"from": payer.account_id}, to=payee.account_id)
    assert http.post("/v1/transfers", json=body).status_code == 200

    refused(http.post("/v1/transfers", json={**body, "from": UNKNOWN_ACCOUNT}), "not_found")


def test_the_idempotency_key_comes_before_paused(funded: Funded, http: httpx.Client):
    payer, payee = funded("5"), funded("0.1")
    body = transfer_body(**{"from": payer.account_id}, to=payee.account_id)
    settled = http.post("/v1/transfers", json=body)
    http.put(f"/v1/accounts/{payer.account_id}/policy", json={"paused": True})

    assert http.post("/v1/transfers", json=body).json() == settled.json()
    refused(http.post("/v1/transfers", json={**body, "amount": "2"}), "idempotency_conflict")


def test_paused_comes_before_the_recipient_and_the_recipient_before_the_rest(
    funded: Funded, http: httpx.Client
):
    payer = funded("5")
    path = f"/v1/accounts/{payer.account_id}/policy"
    body = transfer_body(**{"from": payer.account_id}, to="nobody", amount="100")
    strict = {"require_memo": True, "allowed_counterparties": [], "categories": [], "max_single_transfer": 0}

    http.put(path, json={**strict, "paused": True})
    refused(http.post("/v1/transfers", json={**body, "idempotency_key": "1"}), "account_paused")

    http.put(path, json={"paused": False})
    refused(http.post("/v1/transfers", json={**body, "idempotency_key": "2"}), "invalid_recipient")


# --- Rate limit (interface R18)
# --------------------------------------------------------------------------------------


def test_over_the_rate_limit_is_429_until_retry_after_has_passed():
    settings = Settings(rate_limit_per_minute=3)
    with AgentPayServer(clock=START, settings=settings) as server, raw_client(server) as http:
        while (response := http.get("/v1/accounts")).status_code == 200:
            pass

        refused(response, "rate_limited")
        assert response.headers["retry-after"] == "20"
        _move_clock(server, 19.999)
        refused(http.get("/v1/accounts"), "rate_limited")
        _move_clock(server, 0.001)
        assert http.get("/v1/accounts").status_code == 200
        refused(http.get("/v1/accounts"), "rate_limited")


def test_every_key_has_a_separate_rate_limit():
    settings = Settings(rate_limit_per_minute=3)
    with AgentPayServer(clock=START, settings=settings) as server, raw_client(server) as http:
        account_id = http.post("/v1/accounts", json={"name": "a"}).json()["account_id"]
        agent_key = http.post("/ext/v1/console/agent-keys", json={"account_id": account_id}).json()["key"]
        while http.get("/v1/accounts").status_code == 200:
            pass

        with raw_client(server, agent_key) as agent:
            assert agent.get(f"/v1/accounts/{account_id}").status_code == 200


def test_a_rate_limited_transfer_moves_nothing_and_stores_nothing():
    with (
        AgentPayServer(clock=START, settings=Settings(rate_limit_per_minute=5)) as server,
        raw_client(server) as http,
    ):
        account = http.post("/v1/accounts", json={"name": "a"}).json()["account_id"]
        while http.get("/v1/accounts").status_code == 200:
            pass
        before = state_of(server)

        refused(http.post("/v1/transfers", json=transfer_body(**{"from": account})), "rate_limited")

        assert state_of(server) == before


def test_without_the_setting_there_is_no_limit(shared_http):
    assert {shared_http.get("/ext/v1/sandbox/clock").status_code for _ in range(200)} == {200}


def _move_clock(server, seconds):
    """Past the limit that the operator's own requests are under."""
    runtime = server._running.server
    server._running._owner.call(runtime.services.schedule.advance(round(seconds * 1_000_000)))


# --- Faults of the server ---------------------------------------------------------------------------------


def test_an_internal_error_is_500_without_details_and_is_logged(
    server: AgentPayServer,
    http: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    async def fail(*_, **__):
        raise ZeroDivisionError("PLANTED")

    monkeypatch.setattr(server._running.server.services.built["accounts"].accounts, "list", fail)

    response = http.get("/v1/accounts")

    body = response.json()
    assert response.status_code == 500
    assert set(body) == {"error", "message", "request_id"}
    assert body["error"] == "internal_error"
    assert body["request_id"] == response.headers["x-request-id"]
    assert "PLANTED" not in response.text
    assert "PLANTED" in caplog.text
    assert body["request_id"] in caplog.text
    assert server.operator_key[-20:] not in caplog.text
    assert http.get("/ext/v1/sandbox/clock").status_code == 200
