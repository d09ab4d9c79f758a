"""Errors that no endpoint owns: keys, paths, methods, sizes, media types, the order of checks.

See interface R9 to R18, E1 to E11.
"""

import httpx
import pytest
import stores
from server_world import (
    START,
    UNKNOWN_ACCOUNT,
    faults,
    made_key,
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


NO_KEYS = [
    *[None, "", "Bearer", "Bearer ", "Bearer x", "Basic dXNlcjpwYXNz", "Bearer ap_operator_", "Token {key}"],
    *["{key}", "Bearer {key}x", "Bearer x{key}", "Bearer {key} {key}", "Bearer: {key}", "Bearer,{key}"],
    *[f"Bearer {WELL_FORMED_UNKNOWN_KEY}", "Bearer " + "x" * 10_000, "Bearer {flipped}", b"Bearer \xff\xfe"],
    "Bearer {agent_prefixed}",
]


def test_without_a_valid_key_every_path_is_401_with_the_same_answer(shared_server):
    key = shared_server.operator_key
    flipped = key[:-1] + ("0" if key[-1] != "0" else "1")
    paths = ("/v1/accounts", "/v1/nowhere", "/ext/v1/console/audit", "/ext/v1/sandbox/clock", "/metrics/")
    messages = {}
    with raw_client(shared_server, "") as anonymous:
        for given in NO_KEYS:
            parts = {"key": key, "flipped": flipped, "agent_prefixed": key.replace("operator", "agent")}
            text = given.format(**parts) if isinstance(given, str) else given
            for path in paths:
                response = anonymous.get(path, headers={} if text is None else {"Authorization": text})
                messages[given] = refused(response, "unauthorized")["message"]
                assert response.headers["www-authenticate"] == "Bearer"
        twice = [("Authorization", f"Bearer {key}")] * 2
        refused(anonymous.get("/v1/accounts", headers=twice), "unauthorized")
        # A key in the query is none.
        refused(anonymous.get("/v1/accounts", params={"api_key": key, "access_token": key}), "unauthorized")
    unknown = ("Bearer x", f"Bearer {WELL_FORMED_UNKNOWN_KEY}", "Bearer {flipped}", "Bearer {agent_prefixed}")
    assert len({messages[given] for given in unknown}) == 1


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_read_in_any_case(shared_http, shared_server, scheme):
    headers = {"Authorization": f"{scheme} {shared_server.operator_key}"}

    assert shared_http.get("/v1/accounts", headers=headers).status_code == 200


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


@pytest.mark.parametrize("path", ["/v1/accounts", "/v1/transfers", "/ext/v1/sandbox/token-accounts"])
def test_a_body_of_64_kib_is_read_and_one_byte_more_is_413(shared_http, path):
    """Also where no body is expected, and whatever its length is said to be."""
    faults(shared_http.post(path, content=b" " * (64 * KIB)))
    for content, headers in (
        (b" " * (64 * KIB + 1), {}),
        (iter([b" " * KIB] * 65), {}),
        (b" " * 70_000, {"Content-Length": "5"}),
        (b"{}", {"Content-Length": "9" * 20}),
        (b"{}", {"Content-Length": "9" * 5_000}),
    ):
        refused(shared_http.post(path, content=content, headers=headers), "payload_too_large")


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
    ["APPLICATION/JSON", 'application/json; charset="utf-8"', "application/json;charset=UTF-8", None],
)
def test_every_json_content_type_and_none_is_accepted(http, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = http.post("/v1/accounts", content=b'{"name":"x"}', headers=headers)

    assert ("content-type" in response.request.headers) == (content_type is not None)
    assert response.status_code == 201


# --- Bodies that are not JSON, or not this JSON -----------------------------------------------------------

# tests/contract has every form; here is that an endpoint reads by those rules.
NOT_JSON = {
    "empty": b"",
    "truncated": b'{"name":',
    "two values": b"{} {}",
    "NaN": b'{"name":NaN}',
    "byte order mark": b'\xef\xbb\xbf{"name":"x"}',
    "latin-1": b'{"name":"\xe9"}',
    "UTF-16": '{"name":"x"}'.encode("utf-16"),
    "raw NUL": b'{"name":"a\x00"}',
    "NUL in a key": b'{"name":"x","metadata":{"\\u0000":1}}',
    "lone low surrogate": b'{"name":"x","metadata":{"a":["\\udfff"]}}',
    "repeated key, escaped": b'{"name":"x","n\\u0061me":"x"}',
    "repeated key, deep": b'{"name":"x","metadata":{"a":[{"b":1,"b":1}]}}',
    "no object": b'[{"name":"x"}]',
    "nesting of 17": b'{"name":"x","metadata":' + b'{"a":' * 15 + b"[]" + b"}" * 15 + b"}",
    "nesting without end": b"[" * 60_000,
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


# --- Order of checks (interface R17); of a transfer's, test_transfers_refused has the rest ------------------


LARGE, TEXT = {"content": b" " * 70_000}, {"content": b"x", "headers": {"Content-Type": "text/plain"}}
POLICY, AUDIT = f"/v1/accounts/{UNKNOWN_ACCOUNT}/policy", "/ext/v1/console/audit"
ORDER = [
    # 401 before all others, 404 and 405 of the route before 403, 403 before 413, 415 and 400.
    ("nobody", "GET", "/nowhere", {}, "unauthorized"),
    ("nobody", "DELETE", "/v1/accounts", {}, "unauthorized"),
    ("nobody", "POST", "/v1/transfers", LARGE, "unauthorized"),
    ("agent", "GET", "/ext/v1/console/nowhere", {}, "not_found"),
    ("agent", "DELETE", AUDIT, {}, "method_not_allowed"),
    ("agent", "PUT", POLICY, LARGE, "forbidden"),
    ("agent", "PUT", POLICY, TEXT, "forbidden"),
    ("agent", "PUT", POLICY, {"content": b"x"}, "forbidden"),
    ("operator", "POST", "/v1/transfers", {**TEXT, **LARGE}, "payload_too_large"),
    ("operator", "POST", "/v1/transfers", TEXT, "unsupported_media_type"),
    # 400 before 404 of the account.
    ("operator", "POST", "/v1/transfers", {"json": transfer_body(amount=1)}, "invalid_request"),
    ("operator", "PUT", POLICY, {"json": {"paused": 1}}, "invalid_request"),
    ("operator", "GET", f"/v1/accounts/{UNKNOWN_ACCOUNT}/transactions?limit=0", {}, "invalid_request"),
]


@pytest.mark.parametrize(("who", "method", "path", "content", "error"), ORDER)
def test_the_first_check_that_fails_decides(
    shared_server, shared_http, shared_agent_http, who, method, path, content, error
):
    with raw_client(shared_server, "") as anonymous:
        http = {"nobody": anonymous, "agent": shared_agent_http, "operator": shared_http}[who]
        refused(http.request(method, path, **content), error)


# --- Rate limit (interface R18) ---------------------------------------------------------------------------


def test_over_the_rate_limit_is_429_until_retry_after_has_passed():
    """Per key; 403 comes before it, and it before 413. What is refused moves and stores nothing."""
    settings = Settings(rate_limit_per_minute=3)
    with AgentPayServer(clock=START, settings=settings) as server, raw_client(server) as http:
        account_id = http.post("/v1/accounts", json={"name": "a"}).json()["account_id"]
        agent_key = http.post("/ext/v1/console/agent-keys", json={"account_id": account_id}).json()["key"]
        assert http.get("/v1/accounts").status_code == 200
        response = http.get("/v1/accounts")
        refused(response, "rate_limited")
        assert response.headers["retry-after"] == "20"
        before = state_of(server)
        refused(http.post("/v1/transfers", json=transfer_body(**{"from": account_id})), "rate_limited")
        assert state_of(server) == before

        path = f"/v1/accounts/{account_id}"
        with raw_client(server, agent_key) as agent:
            assert [agent.get(path).status_code for _ in range(4)] == [200] * 3 + [429]
            refused(agent.get(f"{path}/policy"), "forbidden")
            refused(agent.get("/v1/nowhere"), "not_found")
            refused(agent.post("/v1/transfers", content=b" " * 70_000), "rate_limited")

        _move_clock(server, 19.999)
        refused(http.get("/v1/accounts"), "rate_limited")
        _move_clock(server, 0.001)
        assert http.get("/v1/accounts").status_code == 200
        refused(http.get("/v1/accounts"), "rate_limited")


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
