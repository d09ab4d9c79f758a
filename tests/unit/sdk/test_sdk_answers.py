"""Every response becomes a model, or the exception of its status and code."""

import json
import logging
import unicodedata

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from responses import received
from sdk_world import ACCOUNT, TRANSFER, answer, page, refusal

from agentpay import Account, FieldError, errors
from agentpay.contract.endpoints import ENDPOINTS, GET_ACCOUNT, LIST_ACCOUNTS
from agentpay.contract.errors import ErrorCode


def get_account(client):
    return client.accounts.get("acct_a", max_retries=0)


BODY_MAX_BYTES = 16 * 2**20
ABANDONED = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
"""trio says so of every body that is not read to its end."""


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
    ErrorCode.NOT_IN_MEMORY: errors.ConflictError,
    ErrorCode.NOT_AT_REST: errors.ConflictError,
    ErrorCode.REQUEST_TIMEOUT: errors.APIError,
    ErrorCode.MISDIRECTED_REQUEST: errors.APIError,
}


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_code_maps_to_its_exception(caller, code):
    caller.script(refusal(code.status, code, request_id="req_1"))
    with pytest.raises(errors.APIError) as caught:
        caller(get_account)
    error = caught.value
    assert type(error) is KINDS[code]
    assert (error.status_code, error.code, error.request_id) == (code.status, code, "req_1")
    assert error.message == f"about {code}"
    assert f"about {code}" in str(error)
    assert error.advice.replace(" with the same idempotency key", "") in str(error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequestError),
        (401, errors.AuthenticationError),
        (402, errors.TransferRejectedError),
        (403, errors.PermissionDeniedError),
        (404, errors.NotFoundError),
        (405, errors.InvalidRequestError),
        (408, errors.APIError),
        (409, errors.ConflictError),
        (412, errors.PreconditionFailedError),
        (413, errors.InvalidRequestError),
        (415, errors.InvalidRequestError),
        (418, errors.APIError),
        (421, errors.APIError),
        (422, errors.InvalidRecipientError),
        (429, errors.RateLimitError),
        (500, errors.ServerError),
        (502, errors.ServerError),
        (503, errors.ServerError),
        (504, errors.ServerError),
        (599, errors.ServerError),
    ],
)
def test_an_unknown_code_is_mapped_by_its_status(caller, status, kind):
    caller.script(refusal(status, "of_tomorrow"), answer(status, b"<html>proxy</html>", X_Request_Id="req_2"))
    with pytest.raises(errors.APIError) as caught:
        caller(get_account)
    assert type(caught.value) is kind
    assert caught.value.code == "of_tomorrow"
    with pytest.raises(errors.APIError, match="proxy") as caught:
        caller(get_account)
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.request_id) == (None, "req_2")


def test_an_error_code_with_the_wrong_status_is_ignored(caller):
    caller.script(refusal(500, "policy_violation"))
    with pytest.raises(errors.ServerError):
        caller(get_account)


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
def test_a_code_of_the_contract_counts_without_a_complete_body(caller, code, fields):
    caller.script(answer(ErrorCode(code).status, {"error": code, **fields}), max_retries=0)
    with pytest.raises(errors.APIError) as caught:
        caller(lambda c: c.transfers.create(**PAY))
    error = caught.value
    assert (type(error), error.code) == (KINDS[code], code)
    assert error.message == ErrorCode(code).meaning
    assert error.transfer_id == (fields.get("transfer_id") if code == "account_paused" else None)


def test_the_valid_fields_of_an_error_are_kept(caller):
    caller.script(answer(409, {"error": "idempotency_conflict", "message": "Used.", "details": "text"}))
    with pytest.raises(errors.IdempotencyConflictError, match="Used"):
        caller(lambda c: c.transfers.create(**PAY))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"error": "not_found"}),
        (404, {"error": "Not Found", "message": "No route", "status": 404}),
        (400, {"error": "policy_violation"}),
        (409, {"error": {"code": "idempotency_conflict"}}),
        (409, ["idempotency_conflict"]),
    ],
)
def test_an_error_that_a_proxy_may_have_sent_does_not_settle_a_payment(caller, status, body):
    caller.script(httpx.ReadError("lost"), answer(status, body))
    with pytest.raises(errors.TransferOutcomeUnknownError):
        caller(lambda c: c.transfers.create(**PAY))


def test_an_unreadable_identifier_does_not_mean_that_nothing_was_done(caller):
    body = {"error": "chain_unavailable", "message": "m", "transfer_id": 1}
    caller.script(answer(503, body), max_retries=0)
    with pytest.raises(errors.TransferOutcomeUnknownError):
        caller(lambda c: c.transfers.create(**PAY))


def test_a_refused_transfer_carries_its_id_and_status(caller):
    caller.script(refusal(402, "policy_violation", transfer_id="txn_a", status="rejected"))
    with pytest.raises(errors.PolicyViolationError, match="transfer txn_a") as caught:
        caller(lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount=1))
    assert (caught.value.transfer_id, caught.value.transfer_status) == ("txn_a", "rejected")


HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202egnp\u200b\r\nnext\x7f"
SHOWN = "\\x1b]0;pwned\\x07\\x1b[2J\\x9b31m\\u202egnp\\u200b\\r\\nnext\\x7f"


def acts_on_a_terminal(text):
    return any(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp") for character in text)


def test_error_messages_are_stripped_of_terminal_control_characters(caller, caplog):
    caplog.set_level(logging.INFO, logger="agentpay")
    fields = {"request_id": HOSTILE, "transfer_id": HOSTILE, "status": HOSTILE}
    details = [{"field": HOSTILE, "message": HOSTILE}]
    body = {"error": HOSTILE, "message": HOSTILE, "details": details, **fields}
    caller.script(answer(400, body), answer(200, {**ACCOUNT, "balance_usdc": HOSTILE}))
    with pytest.raises(errors.InvalidRequestError) as caught:
        caller(get_account)
    error = caught.value
    assert (error.message, error.code, error.request_id, error.transfer_id) == (SHOWN,) * 4
    assert error.details == (FieldError(field=SHOWN, message=SHOWN),)
    assert not acts_on_a_terminal(str(error))
    assert SHOWN in str(error)
    with pytest.raises(errors.ResponseValidationError) as caught:
        caller(get_account)
    assert not acts_on_a_terminal(str(caught.value))
    assert not any(acts_on_a_terminal(record.getMessage()) for record in caplog.records)


def test_printable_characters_of_any_language_are_kept_in_messages(caller):
    message = (
        "Zu wenig: 5\u00a0€, \u6b8b\u9ad8\u4e0d\u8db3\u3000\u0627\u0644\u0631\u0635\u064a\u062f \U0001f4b8"
    )
    caller.script(refusal(402, "insufficient_balance", message=message))
    with pytest.raises(errors.InsufficientBalanceError, match=message) as caught:
        caller(get_account)
    assert caught.value.message == message


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


def test_an_invalid_request_shows_every_fault(caller):
    faults = [{"field": "name", "message": "is required"}, {"field": "x", "message": "is not a known field"}]
    caller.script(refusal(400, "invalid_request", details=faults))
    with pytest.raises(
        errors.InvalidRequestError, match="name is required; x is not a known field"
    ) as caught:
        caller(lambda c: c.accounts.create(name=""))
    assert caught.value.details == (
        FieldError(field="name", message="is required"),
        FieldError(field="x", message="is not a known field"),
    )


def test_a_message_with_a_thousand_faults_is_abbreviated(caller):
    faults = [{"field": f"field{n}", "message": "is wrong"} for n in range(1000)]
    caller.script(refusal(400, "invalid_request", details=faults))
    with pytest.raises(errors.InvalidRequestError, match="and 980 more in details") as caught:
        caller(get_account)
    assert len(caught.value.details) == 1000
    assert len(str(caught.value)) < 2000


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
def test_a_success_with_an_invalid_body_is_a_decoding_error(caller, body, problem):
    caller.script(answer(200, body, X_Request_Id="req_3"))
    with pytest.raises(errors.ResponseValidationError, match=problem) as caught:
        caller(get_account)
    assert (caught.value.status_code, caught.value.request_id) == (200, "req_3")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("status", [302, 304, 307])
def test_a_status_that_the_operation_does_not_declare_is_a_decoding_error(caller, status):
    script = caller.script(answer(status, ACCOUNT, Location="https://elsewhere.example.com/"))
    with pytest.raises(
        errors.ResponseValidationError, match=f"the status {status} is not one of this operation"
    ):
        caller(get_account)
    assert len(script.requests) == 1, "a redirect would take the key to another host"


@pytest.mark.parametrize("status", [200, 201])
@pytest.mark.parametrize("body", [{"secret": "whsec_a", "webhook_id": "wh_a"}, {"secret": "whsec_a"}])
def test_the_secret_of_a_new_webhook_is_read_from_either_status(caller, status, body):
    caller.script(answer(status, body))
    webhook = caller(lambda c: c.webhooks.create(url="https://a.example/", events=["transfer.settled"]))
    assert (webhook.secret, webhook.webhook_id) == ("whsec_a", body.get("webhook_id"))


@ABANDONED
def test_a_body_that_is_too_large_is_refused_before_its_end(caller):
    class Endless(httpx.SyncByteStream, httpx.AsyncByteStream):
        read = 0

        def __iter__(self):
            while True:
                self.read += 1
                yield b" " * 2**20

        async def __aiter__(self):
            for chunk in self:
                yield chunk

    stream = Endless()
    caller.connect(httpx.MockTransport(lambda _: httpx.Response(200, stream=stream)))
    with pytest.raises(errors.ResponseValidationError, match=f"larger than {BODY_MAX_BYTES} bytes"):
        caller(get_account)
    assert stream.read <= BODY_MAX_BYTES // 2**20 + 1


@ABANDONED
def test_a_body_that_cannot_be_decompressed_is_a_decoding_error(caller):
    class Garbage(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self):
            yield b"garbage"

        async def __aiter__(self):
            yield b"garbage"

    caller.connect(
        httpx.MockTransport(
            lambda _: httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=Garbage())
        )
    )
    with pytest.raises(errors.ResponseValidationError, match="decompressed"):
        caller(get_account)


def test_unknown_fields_and_values_are_accepted(caller):
    caller.script(answer(200, {**ACCOUNT, "status": "frozen", "tier": {"name": "gold"}}))
    account = caller(get_account)
    assert account.status == "frozen"
    assert account.extra == {"tier": {"name": "gold"}}


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


def test_a_settled_transfer_is_parsed(caller):
    caller.script(answer(200, TRANSFER))
    transfer = caller(lambda c: c.transfers.get("txn_a"))
    assert (transfer.transfer_id, transfer.from_, transfer.to) == ("txn_a", "acct_a", "acct_b")
    assert str(transfer.amount_usdc) == "1.500000"
    assert transfer.is_final
