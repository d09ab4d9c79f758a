"""Payments through a client: what of a 402 is sent, of any library; what refusal and doubt become."""

import email.message
import io
import json
import urllib.error
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from payment_world import FORECAST, MPP, SELLER, V1
from sdk_world import answer, page, refusal

from agentpay import Payment, errors, testing
from agentpay.types import PinnedSeller

PAYMENT = testing.make(
    Payment, transfer_id="txn_a", account_id="acct_a", idempotency_key="forecast-7", origin=SELLER
).to_dict()
PIN = testing.make(PinnedSeller, origin=SELLER).to_dict()


def authorize(client: Any, **options: Any) -> Any:
    given = {"account_id": "acct_a", "idempotency_key": "forecast-7", **options}
    return client.payments.authorize(**given)


def of_httpx(status: int = 402, **options: Any) -> httpx.Response:
    fields = {"headers": {"PAYMENT-REQUIRED": "e30=", "Set-Cookie": "secret=1"}, **options}
    return httpx.Response(status, request=httpx.Request("POST", FORECAST), **fields)


def of_requests() -> Any:
    """A response with the attributes that one of requests has; the library is not installed here."""
    return SimpleNamespace(
        status_code=402,
        url=FORECAST,
        headers={"PAYMENT-REQUIRED": "e30="},
        content=b"{}",
        request=SimpleNamespace(method="POST"),
    )


def of_urllib() -> Any:
    headers = email.message.Message()
    headers["PAYMENT-REQUIRED"] = "e30="
    return urllib.error.HTTPError(FORECAST, 402, "Payment Required", headers, io.BytesIO(b"{}"))


EXPECTED = {
    "account_id": "acct_a",
    "idempotency_key": "forecast-7",
    "origin": SELLER,
    "url": f"{SELLER}/forecast",
    "headers": [["payment-required", "e30="]],
}


def lower(order: dict[str, Any]) -> dict[str, Any]:
    return {**order, "headers": [[name.lower(), value] for name, value in order["headers"]]}


@pytest.mark.parametrize("response", [of_httpx, of_requests, of_urllib])
def test_a_response_of_any_http_library_is_accepted(caller: Any, response: Any) -> None:
    script = caller.script(answer(201, PAYMENT))
    payment = caller(lambda c: authorize(c, response=response()))
    assert payment.header.name == PAYMENT["header"]["name"]
    (order,) = script.bodies
    method = {} if response is of_urllib else {"method": "POST"}
    assert lower(order) == {**EXPECTED, **method}
    assert script.requests[0].url.path == "/ext/v1/payments"


def test_url_method_headers_and_body_are_accepted_instead_of_a_response(caller: Any) -> None:
    script = caller.script(*[answer(201, PAYMENT)] * 4)
    pairs = [("WWW-Authenticate", "Basic x"), ("WWW-Authenticate", MPP), ("Cookie", "secret=1")]
    caller(lambda c: authorize(c, url=FORECAST, method="GET", headers=pairs, max_amount="0.05", memo="trip"))
    caller(lambda c: authorize(c, url=httpx.URL(FORECAST), headers={}, body=V1))
    caller(lambda c: authorize(c, origin=SELLER, headers={}, body=V1.decode()))
    caller(lambda c: authorize(c, url=FORECAST, headers={}, body=b"\xef\xbb\xbf" + V1))
    one, two, three, four = script.bodies
    assert one == {
        **EXPECTED,
        "method": "GET",
        "headers": [["WWW-Authenticate", MPP]],
        "max_amount": "0.050000",
        "memo": "trip",
    }
    assert two == four == {**EXPECTED, "headers": [], "body": V1.decode()}
    assert three == {name: value for name, value in two.items() if name != "url"}


@pytest.mark.parametrize(
    ("url", "origin", "shown"),
    [
        ("HTTPS://API.Example.com:443/a?key=1#b", "https://api.example.com", "https://api.example.com/a"),
        (
            "http://user:secret@api.example.com:8080/",
            "http://api.example.com:8080",
            "http://api.example.com:8080/",
        ),
        ("http://[::1]:80/x", "http://[::1]", "http://[::1]/x"),
        ("https://api.example.com./a", "https://api.example.com", "https://api.example.com/a"),
        ("https://api.example.com.:8443/a", "https://api.example.com:8443", "https://api.example.com:8443/a"),
        ("https://wetter.österreich.example/", "https://wetter.xn--sterreich-z7a.example", None),
        ("https://api.example.com/" + "x" * 9000, "https://api.example.com", ""),
        (
            "https://api.example.com/" + "x" * 8_000 + "?key=secret#end",
            "https://api.example.com",
            "https://api.example.com/" + "x" * 8_000,
        ),
        (
            "https://api.example.com/caf\u00e9 \u202e%20/a;b",
            "https://api.example.com",
            "https://api.example.com/caf%C3%A9%20%E2%80%AE%20/a;b",
        ),
    ],
)
def test_the_url_is_sent_without_credentials_or_query(
    caller: Any, url: str, origin: str, shown: str | None
) -> None:
    script = caller.script(answer(201, {**PAYMENT, "origin": origin}))
    caller(lambda c: authorize(c, url=url, headers={"payment-required": "e30="}))
    assert script.bodies[0]["origin"] == origin
    assert script.bodies[0].get("url", "") == (f"{origin}/" if shown is None else shown)


@pytest.mark.parametrize(
    ("options", "problem", "words"),
    [
        ({}, TypeError, "pass response="),
        ({"url": FORECAST}, TypeError, "its url= and headers="),
        ({"headers": {}}, TypeError, "its url= and headers="),
        ({"response": of_httpx(200)}, ValueError, "the response is 200, not 402"),
        ({"url": "ftp://example.com", "headers": {}}, ValueError, "url must be an address"),
        ({"url": FORECAST, "headers": {"payment-required": "x" * 33_000}}, ValueError, "longer than 32768"),
        ({"url": FORECAST, "headers": {"payment-required": "é" * 12_000}}, ValueError, "57344 bytes of JSON"),
        ({"response": of_httpx(), "max_amount": 0.05}, TypeError, "max_amount"),
        ({"response": of_httpx(stream=httpx.ByteStream(b"{}"))}, TypeError, "call response.read"),
        ({"response": of_httpx(), "account_id": 7}, TypeError, "account_id"),
    ],
)
def test_an_invalid_argument_is_refused_before_sending(
    caller: Any, options: dict[str, Any], problem: type[Exception], words: str
) -> None:
    caller.script()
    with pytest.raises(problem, match=words):
        caller(lambda c: authorize(c, **options))


def test_an_authorization_is_retried_under_its_key(caller: Any) -> None:
    waiting = {**PAYMENT, "status": "pending_approval", "header": None}
    script = caller.script(httpx.ReadTimeout("slow"), refusal(500, "internal_error"), answer(202, waiting))
    payment = caller(lambda c: authorize(c, response=of_httpx()))
    assert (payment.status, payment.header) == ("pending_approval", None)
    assert [body["idempotency_key"] for body in script.bodies] == ["forecast-7"] * 3


REJECTED = {"transfer_id": "txn_a", "status": "rejected"}
DECISIONS: list[tuple[int, str, dict[str, str], type[errors.APIError]]] = [
    (402, "policy_violation", REJECTED, errors.PolicyViolationError),
    (402, "account_paused", REJECTED, errors.AccountPausedError),
    (402, "insufficient_balance", REJECTED, errors.InsufficientBalanceError),
    (409, "idempotency_conflict", {"transfer_id": "txn_a"}, errors.IdempotencyConflictError),
    (409, "payment_expired", {"transfer_id": "txn_a"}, errors.ConflictError),
    (409, "payment_failed", {"transfer_id": "txn_a"}, errors.ConflictError),
    (422, "unreadable_challenge", {}, errors.UnpayableChallengeError),
    (422, "nothing_payable", {}, errors.UnpayableChallengeError),
    (422, "invalid_recipient", {}, errors.InvalidRecipientError),
    (503, "chain_unavailable", {}, errors.ChainUnavailableError),
]


def test_a_decision_of_the_service_is_raised_and_not_retried(caller: Any) -> None:
    for status, code, fields, error in DECISIONS:
        script = caller.script(
            refusal(status, code, **fields), **({"max_retries": 0} if status == 503 else {})
        )
        with pytest.raises(error) as caught:
            caller(lambda c: authorize(c, response=of_httpx()))
        assert type(caught.value) is error
        assert (caught.value.code, caught.value.transfer_id) == (code, fields.get("transfer_id"))
        assert len(script.requests) == 1


@pytest.mark.parametrize(
    "last",
    [
        httpx.ReadTimeout("slow"),
        refusal(500, "internal_error"),
        answer(201, {**PAYMENT, "idempotency_key": "forecast-8"}),
    ],
)
def test_an_unknown_outcome_names_the_key_and_the_remedy(caller: Any, last: Any) -> None:
    caller.script(last, max_retries=0)
    with pytest.raises(errors.OutcomeUnknownError, match="with the same parameters") as caught:
        caller(lambda c: authorize(c, response=of_httpx()))
    assert isinstance(caught.value, errors.OutcomeUnknownError)
    assert caught.value.idempotency_key == "forecast-7"


ORIGINS = "/ext/v1/console/origins"
QUOTED = quote(SELLER, safe="")
CALLS: list[tuple[Any, Any, str, str, Any]] = [
    (lambda c: c.payments.get("txn_a"), PAYMENT, "GET", "/ext/v1/payments/txn_a", None),
    (
        lambda c: c.payments.list(account_id="acct_a", status="settled", origin=SELLER, transfer_id="txn_a"),
        page([PAYMENT]),
        "GET",
        f"/ext/v1/payments?account_id=acct_a&status=settled&origin={QUOTED}&transfer_id=txn_a",
        None,
    ),
    (
        lambda c: c.payments.report_outcome("txn_a", status_code=200, receipt="r", duration_ms=31),
        PAYMENT,
        "POST",
        "/ext/v1/payments/txn_a/outcome",
        {"status_code": 200, "receipt": "r", "duration_ms": 31},
    ),
    (
        lambda c: c.sellers.put(SELLER, category="weather", recipients=["a" * 32], max_amount="0.5"),
        PIN,
        "PUT",
        f"{ORIGINS}/{QUOTED}",
        {"category": "weather", "recipients": ["a" * 32], "max_amount": "0.500000"},
    ),
    (lambda c: c.sellers.get(SELLER), PIN, "GET", f"{ORIGINS}/{QUOTED}", None),
    (lambda c: c.sellers.list(), page([PIN]), "GET", ORIGINS, None),
    (lambda c: c.sellers.delete(SELLER), None, "DELETE", f"{ORIGINS}/{QUOTED}", None),
]


def test_payments_and_pinned_sellers_are_read_listed_and_changed_by_one_exact_request(caller: Any) -> None:
    for call, reply, method, target, body in CALLS:
        script = caller.script(answer(204, b"") if reply is None else answer(200, reply))
        caller(call)
        (request,) = script.requests
        assert (request.method, request.url.raw_path.decode()) == (method, target)
        assert (json.loads(request.content) if request.content else None) == body
    with pytest.raises(TypeError, match="recipients is a list"):
        caller(lambda c: c.sellers.put(SELLER, recipients="a" * 32))
