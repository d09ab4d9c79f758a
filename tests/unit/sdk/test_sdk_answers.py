"""Every response becomes a model, or the exception of its status and code."""

import json
import logging
import unicodedata

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from responses import received
from sdk_world import ACCOUNT, answer, page

from agentpay import Account, FieldError, errors
from agentpay.contract.endpoints import CREATE_TRANSFER, ENDPOINTS, GET_ACCOUNT, LIST_ACCOUNTS
from agentpay.contract.errors import ErrorCode


def get_account(client):
    return client.accounts.get("acct_a", max_retries=0)


KINDS = {
    ErrorCode.POLICY_VIOLATION: errors.PolicyViolationError,
    ErrorCode.ACCOUNT_PAUSED: errors.AccountPausedError,
    ErrorCode.INSUFFICIENT_BALANCE: errors.InsufficientBalanceError,
    ErrorCode.TRANSFER_FAILED: errors.TransferFailedError,
    ErrorCode.SESSION_CAP_EXCEEDED: errors.SessionCapExceededError,
    ErrorCode.IDEMPOTENCY_CONFLICT: errors.IdempotencyConflictError,
    ErrorCode.SESSION_CLOSED: errors.SessionClosedError,
    ErrorCode.TOO_MANY_SESSIONS: errors.ConflictError,
    ErrorCode.PAYMENT_EXPIRED: errors.ConflictError,
    ErrorCode.PAYMENT_FAILED: errors.ConflictError,
    ErrorCode.UNREADABLE_CHALLENGE: errors.UnpayableChallengeError,
    ErrorCode.NOTHING_PAYABLE: errors.UnpayableChallengeError,
    ErrorCode.INVALID_RECIPIENT: errors.InvalidRecipientError,
    ErrorCode.CHAIN_UNAVAILABLE: errors.ChainUnavailableError,
    ErrorCode.SERVICE_UNAVAILABLE: errors.ServerError,
    ErrorCode.UNAUTHORIZED: errors.AuthenticationError,
    ErrorCode.FORBIDDEN: errors.PermissionDeniedError,
    ErrorCode.NOT_FOUND: errors.NotFoundError,
    ErrorCode.METHOD_NOT_ALLOWED: errors.InvalidRequestError,
    ErrorCode.INVALID_REQUEST: errors.InvalidRequestError,
    ErrorCode.PAYLOAD_TOO_LARGE: errors.InvalidRequestError,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: errors.InvalidRequestError,
    ErrorCode.PRECONDITION_FAILED: errors.PreconditionFailedError,
    ErrorCode.RATE_LIMITED: errors.RateLimitError,
    ErrorCode.FEE_BUDGET_EXCEEDED: errors.FeeBudgetExceededError,
    ErrorCode.CLOCK_NOT_MANUAL: errors.ConflictError,
    ErrorCode.CLOCK_MOVING: errors.ConflictError,
    ErrorCode.NOT_AT_REST: errors.ConflictError,
    ErrorCode.NOT_IN_MEMORY: errors.ConflictError,
    ErrorCode.NOT_PENDING: errors.ConflictError,
    ErrorCode.LAST_OPERATOR_KEY: errors.ConflictError,
    ErrorCode.ROTATION_IN_PROGRESS: errors.ConflictError,
    ErrorCode.REQUEST_TIMEOUT: errors.APIError,
    ErrorCode.MISDIRECTED_REQUEST: errors.APIError,
}


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_code_maps_to_its_exception(code):
    body = {"error": code, "message": f"about {code}", "request_id": "req_1"}
    error = received(GET_ACCOUNT, code.status, json.dumps(body).encode())
    assert type(error) is KINDS[code]
    assert (error.status_code, error.code, error.request_id) == (code.status, code, "req_1")
    assert error.message == f"about {code}"
    assert f"about {code}" in str(error)
    assert error.advice.replace(" with the same idempotency key", "") in str(error)


BY_STATUS = {
    errors.APIError: (408, 418, 421),
    errors.AuthenticationError: (401,),
    errors.ConflictError: (409,),
    errors.InvalidRecipientError: (422,),
    errors.InvalidRequestError: (400, 405, 413, 415),
    errors.NotFoundError: (404,),
    errors.PermissionDeniedError: (403,),
    errors.PreconditionFailedError: (412,),
    errors.RateLimitError: (429,),
    errors.ServerError: (500, 502, 503, 504, 599),
    errors.TransferRejectedError: (402,),
}


@pytest.mark.parametrize("kind", BY_STATUS)
def test_an_unknown_code_or_one_of_another_status_is_mapped_by_the_status(kind):
    for status in BY_STATUS[kind]:
        unknown = received(GET_ACCOUNT, status, b'{"error":"of_tomorrow","message":"m"}')
        assert (type(unknown), unknown.code) == (kind, "of_tomorrow")
        proxy = received(GET_ACCOUNT, status, b"<html>proxy</html>", **{"x-request-id": "req_2"})
        assert (type(proxy), proxy.code, proxy.request_id) == (kind, None, "req_2")
        assert "proxy" in str(proxy)
        misplaced = "not_found" if status == 402 else "policy_violation"
        body = json.dumps({"error": misplaced, "message": "m"}).encode()
        assert type(received(GET_ACCOUNT, status, body)) is kind


PAY = {"from_": "acct_a", "to": "acct_b", "amount": 1}


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("policy_violation", {}),
        ("account_paused", {"message": None, "transfer_id": "txn_a", "status": "rejected"}),
        ("insufficient_balance", {"transfer_id": 1}),
        ("idempotency_conflict", {"details": "text", "session_id": 7}),
        ("idempotency_conflict", {"details": [{"field": 1}]}),
        ("invalid_recipient", {"request_id": 5}),
        ("chain_unavailable", {"status": 503}),
    ],
)
def test_a_code_of_the_contract_counts_without_a_complete_body(code, fields):
    body = json.dumps({"error": code, **fields}).encode()
    error = received(CREATE_TRANSFER, ErrorCode(code).status, body)
    assert (type(error), error.code) == (KINDS[code], code)
    assert error.message == ErrorCode(code).meaning
    assert error.transfer_id == (fields.get("transfer_id") if code == "account_paused" else None)
    body = json.dumps({"error": code, **fields, "message": "Used.", "details": "text"}).encode()
    assert received(CREATE_TRANSFER, ErrorCode(code).status, body).message == "Used."


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"error": "not_found"}),
        (404, {"error": "Not Found", "message": "No route", "status": 404}),
        (400, {"error": "policy_violation"}),
        (409, {"error": {"code": "idempotency_conflict"}}),
        (409, ["idempotency_conflict"]),
        # Its identifier cannot be read: this does not say that nothing was done.
        (503, {"error": "chain_unavailable", "message": "m", "transfer_id": 1}),
    ],
)
def test_an_error_that_a_proxy_may_have_sent_does_not_settle_a_payment(caller, status, body):
    caller.script(httpx.ReadError("lost"), answer(status, body), max_retries=1)
    with pytest.raises(errors.TransferOutcomeUnknownError):
        caller(lambda c: c.transfers.create(**PAY))


PRINTABLE = "5\u00a0€, \u6b8b\u9ad8\u4e0d\u8db3\u3000\u0627\u0644\u0631\u0635\u064a\u062f \U0001f4b8"
HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202egnp\u200b\r\nnext\x7f"
SHOWN = "\\x1b]0;pwned\\x07\\x1b[2J\\x9b31m\\u202egnp\\u200b\\r\\nnext\\x7f"


def acts_on_a_terminal(text):
    return any(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp") for character in text)


def test_error_messages_are_stripped_of_terminal_control_characters(caller, caplog):
    caplog.set_level(logging.INFO, logger="agentpay")
    fields = {"request_id": HOSTILE, "transfer_id": HOSTILE, "status": HOSTILE}
    details = [{"field": HOSTILE, "message": HOSTILE}]
    body = {"error": HOSTILE, "message": HOSTILE + PRINTABLE, "details": details, **fields}
    caller.script(answer(400, body), answer(200, {**ACCOUNT, "balance_usdc": HOSTILE}))
    with pytest.raises(errors.InvalidRequestError) as caught:
        caller(get_account)
    error = caught.value
    assert (error.code, error.request_id, error.transfer_id) == (SHOWN,) * 3
    assert error.message == SHOWN + PRINTABLE, "characters of any language are kept"
    assert error.details == (FieldError(field=SHOWN, message=SHOWN),)
    assert not acts_on_a_terminal(str(error))
    assert SHOWN in str(error)
    with pytest.raises(errors.ResponseValidationError) as caught:
        caller(get_account)
    assert not acts_on_a_terminal(str(caught.value))
    assert not any(acts_on_a_terminal(record.getMessage()) for record in caplog.records)


@pytest.mark.parametrize(
    "make",
    [
        lambda text: errors.APIConnectionError(text, may_have_been_processed=True),
        errors.ResponseValidationError,
        errors.ConfigurationError,
        lambda text: errors.TransferOutcomeUnknownError(idempotency_key="k", transfer_id=text),
        lambda text: errors.ServerError(text, status_code=500, request_id=text),
        errors.WebhookPayloadError,
    ],
)
def test_no_exception_prints_terminal_control_characters(make):
    error = make(HOSTILE)
    assert not acts_on_a_terminal(str(error))
    assert not acts_on_a_terminal(repr(error))


def test_an_invalid_request_shows_every_fault_and_of_a_thousand_the_first():
    def refused(faults):
        body = {"error": "invalid_request", "message": "No.", "details": faults}
        return received(GET_ACCOUNT, 400, json.dumps(body).encode())

    faults = [{"field": "name", "message": "is required"}, {"field": "x", "message": "is not a known field"}]
    error = refused(faults)
    assert "name is required; x is not a known field" in str(error)
    assert error.details == tuple(FieldError(**fault) for fault in faults)
    error = refused([{"field": f"field{n}", "message": "is wrong"} for n in range(1000)])
    assert "and 980 more in details" in str(error)
    assert len(error.details) == 1000
    assert len(str(error)) < 2000


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "must be valid JSON"),
        (b"<html>", "must be valid JSON"),
        (b"\xff", "must be UTF-8"),
        (b"NaN", "NaN is not a JSON number"),
        (b"null", "must be an object"),
        (b"[]", "must be an object"),
        (b"{}", "account_id is required"),
        (json.dumps({**ACCOUNT, "name": 5}).encode(), "name must be a string"),
        (json.dumps({**ACCOUNT, "balance_usdc": 5}).encode(), "balance_usdc must be a decimal string"),
        (json.dumps({**ACCOUNT, "created_at": "now"}).encode(), "created_at must be an ISO 8601"),
        (b"[" * 100_000, "must not nest"),
        (b'{"account_id": 1e9}', "name is required"),
        (b'{"account_id": 1e99999999999999999999}', "must be valid JSON"),
        (json.dumps({**ACCOUNT, "policy": {"paused": "no"}}).encode(), "policy.paused must be true or false"),
    ],
)
def test_a_success_with_an_invalid_body_is_a_decoding_error(body, problem):
    error = received(GET_ACCOUNT, 200, body, **{"x-request-id": "req_3"})
    assert type(error) is errors.ResponseValidationError
    assert problem in str(error)
    assert (error.status_code, error.request_id) == (200, "req_3")


@pytest.mark.parametrize("status", [302, 304, 307])
def test_a_status_that_the_operation_does_not_declare_is_a_decoding_error(caller, status):
    script = caller.script(answer(status, ACCOUNT, Location="https://elsewhere.example.com/"))
    with pytest.raises(
        errors.ResponseValidationError, match=f"the status {status} is not one of this operation"
    ):
        caller(get_account)
    assert len(script.requests) == 1, "a redirect would take the key to another host"


@pytest.mark.parametrize("status", [200, 201])
def test_the_secret_of_a_new_webhook_is_read_from_either_status(caller, status):
    for body in ({"secret": "whsec_a", "webhook_id": "wh_a"}, {"secret": "whsec_a"}):
        caller.script(answer(status, body))
        webhook = caller(lambda c: c.webhooks.create(url="https://a.example/", events=["transfer.settled"]))
        assert (webhook.secret, webhook.webhook_id) == ("whsec_a", body.get("webhook_id"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
STATUSES = st.sampled_from([200, 201, 202, 204, 301, 400, 401, 402, 404, 409, 412, 422, 429, 500, 503])


@given(
    endpoint=st.sampled_from(ENDPOINTS),
    status=STATUSES,
    body=st.binary() | JSON.map(lambda value: json.dumps(value).encode()),
    headers=st.dictionaries(
        st.sampled_from(["retry-after", "x-request-id", "etag", "idempotency-replayed"]), st.text()
    ),
)
def test_any_response_becomes_a_model_or_a_declared_exception(endpoint, status, body, headers):
    result = received(endpoint, status, body, **headers)
    if isinstance(result, errors.AgentPayError):
        assert str(result)
    else:
        assert status in endpoint.responses


@given(
    changes=st.dictionaries(st.sampled_from([*ACCOUNT, "status"]), JSON, min_size=1, max_size=3),
)
def test_an_account_with_wrong_fields_becomes_a_decoding_error_or_an_account(changes):
    for endpoint, body in (
        (GET_ACCOUNT, {**ACCOUNT, **changes}),
        (LIST_ACCOUNTS, page([{**ACCOUNT, **changes}])),
    ):
        result = received(endpoint, 200, json.dumps(body).encode())
        if not isinstance(result, errors.ResponseValidationError):
            account = result if endpoint is GET_ACCOUNT else result.data[0]
            assert isinstance(account, Account)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("9" * 400, 999999999999.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
        ("Wednesday, 21-Oct-15 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:28:30", 30.0),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
        ("soon", None),
        ("", None),
        ("Wed, 99 Foo 9999 99:99:99 GMT", None),
    ],
)
def test_retry_after_accepts_seconds_or_a_date(value, seconds):
    headers = {"retry-after": value}
    error = received(GET_ACCOUNT, 429, b"{}", now=1445412480.0, **headers)
    assert isinstance(error, errors.RateLimitError)
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    ("failure", "kind", "processed"),
    [
        (httpx.ConnectError("refused"), errors.APIConnectionError, False),
        (httpx.ProxyError("no tunnel"), errors.APIConnectionError, False),
        (httpx.UnsupportedProtocol("x"), errors.APIConnectionError, False),
        (httpx.ReadError("reset"), errors.APIConnectionError, True),
        (httpx.WriteError("reset"), errors.APIConnectionError, True),
        (httpx.RemoteProtocolError("garbage"), errors.APIConnectionError, True),
        (httpx.LocalProtocolError("state"), errors.APIConnectionError, True),
        (httpx.TooManyRedirects("loop"), errors.APIConnectionError, True),
        (httpx.ConnectTimeout(""), errors.APITimeoutError, False),
        (httpx.PoolTimeout(""), errors.APITimeoutError, False),
        (httpx.ReadTimeout(""), errors.APITimeoutError, True),
        (httpx.WriteTimeout(""), errors.APITimeoutError, True),
    ],
)
def test_no_exception_of_the_http_library_leaks(caller, failure, kind, processed):
    caller.script(failure)
    with pytest.raises(errors.APIConnectionError) as caught:
        caller(get_account)
    assert type(caught.value) is kind
    assert caught.value.may_have_been_processed is processed
    assert ("may have been processed" in str(caught.value)) is processed
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
