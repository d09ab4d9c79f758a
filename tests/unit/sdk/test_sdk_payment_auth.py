"""`PaymentAuth`: every rule of a client that pays, in httpx and httpx2, sync, on asyncio and on trio."""

import base64
import contextlib
import gzip
import json
import pickle
import socket
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import anyio
import httpx
import pytest
from payment_world import FLAVOURS, FORECAST, MPP, SELLER, V1, World
from sdk_world import KEY, URL, refusal

from agentpay import AgentPay, AsyncAgentPay, Payment, errors, testing
from agentpay._pay402 import messages
from agentpay._pay402.challenges import beside_authorization
from agentpay.payments import (
    OutcomeUnknownError,
    PaymentAuth,
    PaymentPendingApprovalError,
    PaymentRefusedError,
)


@pytest.fixture(params=FLAVOURS.values(), ids=FLAVOURS)
def world(request: pytest.FixtureRequest) -> World:
    return World(*request.param)


# --- What is paid


def test_a_402_is_paid_and_the_receipt_is_on_the_response(world: World) -> None:
    world.seller.serves(world.seller.asks, world.seller.sells)
    auth = world.auth(max_amount="0.05", memo="trip")
    response = world.send(lambda http: http.get(FORECAST, headers={"X-Trip": "Oslo"}), auth=auth)
    assert (response.status_code, response.content) == (200, b"sunny")
    (order,) = world.service.orders
    assert order == {
        "account_id": "acct_a",
        "idempotency_key": order["idempotency_key"],
        "origin": SELLER,
        "url": f"{SELLER}/forecast",
        "method": "GET",
        "headers": [["payment-required", "e30="]],
        "max_amount": "0.050000",
        "memo": "trip",
    }
    assert uuid.UUID(order["idempotency_key"]).version == 4
    first, second = world.seller.seen
    assert "payment-signature" not in first["headers"]
    assert second["headers"]["payment-signature"] == "cheque-1"
    assert second["sent"][b"PAYMENT-SIGNATURE"] == b"cheque-1"
    record = response.extensions["payment"]
    assert (record.transfer_id, record.receipt) == ("txn_1", "cmVjZWlwdA==")
    assert record.idempotency_key == order["idempotency_key"]
    assert record.payment.transfer_id == "txn_1"
    assert record.declined is None
    # Who holds the header can present it.
    shown = repr(response.request.headers).lower()
    assert "cheque" not in repr(record) + shown
    assert "'payment-signature': '[secure]'" in shown
    assert "'x-trip': 'oslo'" in shown


def test_what_comes_instead_of_a_402_is_returned_or_raised_unpaid(world: World) -> None:
    world.seller.serves(world.seller.sells, world.seller.drops)
    response = world.get()
    assert response.content == b"sunny"
    assert "payment" not in response.extensions
    with pytest.raises(world.package.ReadTimeout) as caught:
        world.get()
    assert "payment" not in caught.value.request.extensions
    assert world.service.orders == []


Fields = list[tuple[str, str]]
X402, JSON, GZIP = (
    ("PAYMENT-REQUIRED", "e30="),
    ("Content-Type", "application/json"),
    ("Content-Encoding", "gzip"),
)
BY_MPP, TOO_LONG = ("WWW-Authenticate", MPP), "x" * 33_000


def asks(world: World, fields: Fields, content: bytes = b"") -> Any:
    """Return a step that asks for a payment, with a body that arrives by streaming."""
    encoded = gzip.compress(content) if GZIP in fields else content
    return lambda _: world.package.Response(402, headers=fields, stream=world.chunks(encoded))


SENT: dict[str, tuple[Fields, bytes, list[list[str]], bytes | None]] = {
    "x402 v2": (
        [X402, ("Set-Cookie", "a=1"), ("X-Secret", "1")],
        b"{a page}" * 9,
        [["payment-required", "e30="]],
        None,
    ),
    "x402 v1": ([JSON], V1, [], V1),
    "x402 v1 compressed": ([JSON, GZIP], V1, [], V1),
    "mpp": ([BY_MPP], b"pay", [["www-authenticate", MPP]], None),
    "a body beside a header that is too large": ([("PAYMENT-REQUIRED", TOO_LONG), JSON], V1, [], V1),
    "one challenge of two": (
        [("WWW-Authenticate", f"Payment {TOO_LONG}"), BY_MPP],
        b"",
        [["www-authenticate", MPP]],
        None,
    ),
    "the first 256": ([BY_MPP] * 257, b"", [["www-authenticate", MPP]] * 256, None),
}


@pytest.mark.parametrize("given", SENT.values(), ids=SENT)
def test_challenges_of_every_protocol_reach_the_service_and_nothing_else(
    world: World, given: tuple[Fields, bytes, list[list[str]], bytes | None]
) -> None:
    fields, content, headers, body = given
    world.seller.serves(asks(world, fields, content), world.seller.sells)
    assert world.get().status_code == 200
    (order,) = world.service.orders
    assert order["headers"] == headers
    assert order.get("body") == (None if body is None else body.decode())


def test_without_an_account_that_of_the_key_pays_and_is_read_once(world: World) -> None:
    seller, auth = world.seller, world.auth(account_id=None)
    seller.serves(seller.sells)
    world.send(lambda http: http.get(FORECAST), auth=auth)
    assert world.service.asked_who == 0, "nothing is asked before the first 402"
    for _ in range(2):
        seller.serves(seller.asks, seller.sells)
        assert world.send(lambda http: http.get(FORECAST), auth=auth).status_code == 200
    assert [order["account_id"] for order in world.service.orders] == ["acct_a", "acct_a"]
    assert world.service.asked_who == 1


@pytest.mark.parametrize("again_by", [{}, {"account_id": "Bot"}])
def test_an_equal_request_presents_the_payment_however_the_account_is_named(
    world: World, again_by: dict[str, str]
) -> None:
    client = world.client()
    seller = world.seller.serves(world.seller.asks, world.seller.drops, world.seller.asks, world.seller.sells)
    with pytest.raises(seller.package.ReadTimeout):
        world.send(lambda http: http.get(FORECAST), auth=PaymentAuth(client, account_id="acct_a"))
    again = world.send(lambda http: http.get(FORECAST), auth=PaymentAuth(client, **again_by))
    assert again.extensions["payment"].transfer_id == "txn_1"
    first, second = world.service.orders
    assert first == second


def test_an_operator_key_without_an_account_is_refused_before_anything_is_signed(world: World) -> None:
    world.service.account_id = None
    world.seller.serves(world.seller.asks)
    with pytest.raises(errors.ConfigurationError, match="pass account_id"):
        world.send(lambda http: http.get(FORECAST), auth=world.auth(account_id=None))
    assert (world.service.orders, len(world.seller.seen)) == ([], 1)


def test_the_request_body_is_sent_again_with_the_payment(world: World) -> None:
    world.seller.serves(world.seller.asks, world.seller.sells)

    def parts() -> Any:
        yield from (b"how is ", b"Oslo")

    async def aparts() -> Any:
        for part in parts():
            yield part

    content = aparts() if world.is_async else parts()
    world.send(lambda http: http.post(FORECAST, content=content))
    assert [each["body"] for each in world.seller.seen] == [b"how is Oslo"] * 2


# --- One key, one payment


def test_the_same_key_again_presents_the_same_payment(world: World) -> None:
    world.seller.serves(world.seller.asks, world.seller.fails, world.seller.asks, world.seller.sells)
    failed = world.get(extensions={"payment_key": "forecast-7"})
    assert failed.status_code == 500
    record = failed.extensions["payment"]
    assert (record.transfer_id, record.idempotency_key) == ("txn_1", "forecast-7")
    world.get(extensions={"payment_key": "forecast-7"})
    assert [order["idempotency_key"] for order in world.service.orders] == ["forecast-7"] * 2
    presented = [each["headers"].get("payment-signature") for each in world.seller.seen]
    assert presented == [None, "cheque-1", None, "cheque-1"]


def test_a_lost_reply_raises_the_library_error_with_the_payment_record(world: World) -> None:
    world.seller.serves(world.seller.asks, world.seller.drops)
    with pytest.raises(world.package.ReadTimeout) as caught:
        world.get()
    record = caught.value.request.extensions["payment"]
    assert (record.transfer_id, record.receipt) == ("txn_1", None)
    assert record.idempotency_key == world.service.orders[0]["idempotency_key"]

    # The request itself may be retried: it keeps its key.
    world.seller.serves(world.seller.asks, world.seller.sells)
    request = caught.value.request
    response = world.send(lambda http: http.send(request))
    assert response.status_code == 200
    assert len({order["idempotency_key"] for order in world.service.orders}) == 1
    presented = [each["headers"].get("payment-signature") for each in world.seller.seen]
    assert presented == [None, "cheque-1", None, "cheque-1"]


# --- When it ends


def pending() -> httpx.Response:
    given = {"transfer_id": "txn_9", "account_id": "acct_a", "idempotency_key": "forecast-7"}
    waiting = testing.make(Payment, status="pending_approval", origin=SELLER, **given)
    return httpx.Response(202, json=waiting.to_dict())


UNSIGNED: dict[str, tuple[Any, type[Exception], str]] = {
    "policy": (
        lambda: refusal(402, "policy_violation", transfer_id="txn_1", status="rejected"),
        errors.PolicyViolationError,
        "about policy_violation",
    ),
    "unpayable": (lambda: refusal(422, "nothing_payable"), errors.UnpayableChallengeError, "about nothing"),
    "pending": (pending, PaymentPendingApprovalError, r"approvals\.approve"),
    "lost": (httpx.ReadTimeout("slow"), OutcomeUnknownError, "whether the payment was signed"),
}


@pytest.mark.parametrize("reply", UNSIGNED.values(), ids=UNSIGNED)
def test_what_the_service_does_not_sign_is_raised_and_nothing_is_presented(
    world: World, reply: tuple[Any, type[Exception], str]
) -> None:
    step, kind, words = reply
    world.seller.serves(world.seller.asks)
    world.service.steps = [step]
    with pytest.raises(kind, match=words) as caught:
        world.get(extensions={"payment_key": "forecast-7"})
    error: Any = caught.value
    assert len(world.seller.seen) == 1
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == (str(error), vars(error))
    if kind is PaymentPendingApprovalError:
        assert (error.transfer_id, error.idempotency_key) == ("txn_9", "forecast-7")
    if kind is OutcomeUnknownError:
        assert (error.operation, error.idempotency_key) == ("payments.authorize", "forecast-7")
    world.seller.serves(world.seller.asks, world.seller.sells)
    world.get(extensions={"payment_key": "forecast-7"})
    assert {order["idempotency_key"] for order in world.service.orders} == {"forecast-7"}


def test_a_second_402_raises_payment_refused(world: World) -> None:
    fields = {"PAYMENT_REQUIRED": "e30=", "PAYMENT_RESPONSE": "bm8="}
    world.seller.serves(world.seller.asks, lambda _: world.seller.response(402, b"too little", **fields))
    with pytest.raises(PaymentRefusedError, match="payment_key='forecast-7'") as caught:
        world.get(extensions={"payment_key": "forecast-7"})
    error = caught.value
    assert (error.idempotency_key, error.transfer_id) == ("forecast-7", "txn_1")
    assert (error.receipt, error.body) == ("bm8=", b"too little")
    assert (len(world.service.orders), len(world.seller.seen)) == (1, 2)


def test_the_body_of_a_refusal_is_read_as_far_as_it_arrives_and_up_to_a_limit(world: World) -> None:
    lost = world.chunks(b"too", world.package.ReadError("gone"))
    endless = world.chunks(*[b"x" * 1024] * 100_000)
    for body, read in ((lost, b"too"), (endless, b"x" * 32 * 1024)):
        world.seller.serves(world.seller.asks, lambda _, body=body: world.seller.response(402, body))
        with pytest.raises(PaymentRefusedError) as caught:
            world.get()
        assert caught.value.body == read
    assert endless.taken < 40


# --- Why a seller refuses


def encoded(value: object) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


REFUSALS: dict[str, tuple[dict[str, str], bytes, str | None]] = {
    "x402 v2": ({"PAYMENT_REQUIRED": encoded({"error": "memo differs"})}, b"{}", "memo differs"),
    "urlsafe": ({"PAYMENT_REQUIRED": encoded({"error": "?>?>?>"}).replace("/", "_")}, b"", "?>?>?>"),
    "settling": ({"PAYMENT_RESPONSE": encoded({"success": False, "errorReason": "late"})}, b"{}", "late"),
    "x402 v1": ({}, json.dumps({"x402Version": 1, "error": "memo differs"}).encode(), "memo differs"),
    "mpp": ({}, b'{"title": "Refused", "detail": "the amount differs"}', "the amount differs"),
    "both": ({}, b'{"error": "payment_invalid", "message": "It is late."}', "payment_invalid: It is late."),
    "split": (
        {"PAYMENT_REQUIRED": encoded({"error": "late"})},
        b'{"error": "x", "message": "It is late."}',
        "late: It is late.",
    ),
    "object": ({}, b'{"error": {"code": 7, "message": "no"}}', "no"),
    "lines": ({}, b'{"detail": "a\\nb\\u202e\\u0007 c"}', "a b c"),
    "long": ({}, json.dumps({"detail": "x" * 9_000}).encode(), "x" * 500),
    "page": ({"PAYMENT_REQUIRED": "%%"}, b"<html>", None),
    "deep": ({"PAYMENT_REQUIRED": "W1tb"}, b"[" * 30_000, None),
    "numbers": ({}, b'{"error": 7, "detail": " "}', None),
}


@pytest.mark.parametrize("given", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_has_the_reason_the_headers_and_the_body(
    world: World, given: tuple[dict[str, str], bytes, str | None]
) -> None:
    fields, body, reason = given
    world.seller.serves(world.seller.asks, lambda _: world.seller.response(402, body, **fields, X_Trace="7"))
    with pytest.raises(PaymentRefusedError) as caught:
        world.get()
    error = caught.value
    assert (error.reason, error.body) == (reason, body)
    assert error.headers["x-trace"] == "7"
    assert reason is None or repr(reason) in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == (str(error), vars(error))


# --- Bodies that do not arrive


def test_the_read_timeout_of_a_body_that_is_not_needed_is_short(world: World) -> None:
    """A seller that sends nothing more delays the payment by a second, not by the timeout of the client."""
    read: list[float] = []

    def asks_slowly(request: Any) -> Any:
        def part() -> bytes:
            read.append(request.extensions["timeout"]["read"])
            return b"{}"

        return world.package.Response(402, headers=[X402], stream=world.chunks(part))

    world.seller.serves(asks_slowly, world.seller.sells)
    assert world.send(lambda http: http.get(FORECAST), timeout=60.0).status_code == 200
    assert read == [1.0]
    assert [each["timeout"]["read"] for each in world.seller.seen] == [60.0, 65.0]


def test_a_challenge_whose_body_is_truncated_raises_the_library_error_unsigned(world: World) -> None:
    body = world.chunks(V1[:20], world.package.RemoteProtocolError("truncated"))
    world.seller.serves(lambda _: world.seller.response(402, body, Content_Type="application/json"))
    with pytest.raises(world.package.RemoteProtocolError) as caught:
        world.get()
    assert str(caught.value.request.url) == FORECAST
    assert world.service.orders == []


def test_a_paid_response_whose_body_is_lost_carries_the_payment_record(world: World) -> None:
    body = world.chunks(b"sun", world.package.ReadError("gone"))
    world.seller.serves(world.seller.asks, lambda _: world.seller.response(200, body))
    with pytest.raises(world.package.ReadError) as caught:
        world.get(extensions={"payment_key": "forecast-7"})
    record = caught.value.request.extensions["payment"]
    assert (record.idempotency_key, record.transfer_id) == ("forecast-7", "txn_1")


HEAD = b"HTTP/1.1 402 Payment Required\r\nPAYMENT-REQUIRED: e30=\r\nContent-Type: application/json\r\n"
SOLD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nsunny"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
STREAMS = {
    "truncated": [HEAD + b"Content-Length: 90\r\n\r\n{"],
    "truncated chunk": [HEAD + CHUNKED + b"9\r\n{"],
    "dripped": [HEAD + b"Content-Length: 9000\r\n\r\n{", *[b" "] * 9000],
    "silent": [HEAD + b"Content-Length: 9000\r\n\r\n", None],
}


@pytest.mark.filterwarnings(
    "ignore:Async generator:ResourceWarning"
)  # trio, of a body that is not read to its end
@pytest.mark.parametrize("parts", STREAMS.values(), ids=STREAMS)
def test_a_402_over_a_socket_is_paid_whatever_its_body(
    world: World, parts: list[bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "SPARE_SECONDS", 0.1)
    with replaying([parts, [SOLD]]) as (url, asked):
        response = world.send(
            lambda http: http.get(url, extensions={"payment_key": "forecast-7"}),
            transport=world.package.AsyncHTTPTransport() if world.is_async else world.package.HTTPTransport(),
            timeout=60.0,
        )
    assert (response.status_code, response.content) == (200, b"sunny")
    assert response.history[0].content == b""
    assert "body" not in world.service.orders[0]
    assert b"cheque-1" not in asked[0]
    assert b"PAYMENT-SIGNATURE: cheque-1" in asked[1]


@contextlib.contextmanager
def replaying(responses: list[list[bytes | None]]) -> Iterator[tuple[str, list[bytes]]]:
    """Serve each response on a connection of its own, its parts one by one; None leaves it open."""
    asked: list[bytes] = []
    stopped = threading.Event()

    def respond() -> None:
        with contextlib.ExitStack() as opened:
            for parts in responses:
                connection = opened.enter_context(listening.accept()[0])
                asked.append(connection.recv(65_536))
                with contextlib.suppress(OSError):
                    for part in parts:
                        if part is None:
                            break
                        connection.sendall(part)
                        if len(parts) > 2 and stopped.wait(0.005):
                            return
                    else:
                        connection.shutdown(socket.SHUT_WR)
            stopped.wait()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=respond, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/forecast", asked
        stopped.set()
        thread.join()


# --- Cookies of the 402


def test_cookies_of_the_402_go_with_the_payment_and_not_to_another_origin(world: World) -> None:
    """As with `httpx.DigestAuth`: sellers keep their challenge in a session."""
    cookies = ("quote=7; Path=/", "other=1; Path=/elsewhere", "foreign=1; Domain=other.example")
    world.seller.serves(
        asks(world, [X402, *(("Set-Cookie", each) for each in cookies)]),
        world.seller.redirects("https://other.example/"),
        world.seller.sells,
    )
    response = world.get(headers={"Cookie": "quote=old; who=me"}, follow_redirects=True)
    assert response.status_code == 200
    assert [each["headers"].get("cookie") for each in world.seller.seen] == [
        "quote=old; who=me",
        "who=me; quote=7",
        None,
    ]


# --- Keys


@pytest.mark.parametrize(
    ("key", "error"), [("", ValueError), ("k" * 129, ValueError), (None, TypeError), (0, TypeError)]
)
def test_a_falsy_or_invalid_payment_key_raises_before_anything_is_sent(
    world: World, key: Any, error: type[Exception]
) -> None:
    world.seller.serves(world.seller.asks, world.seller.sells)
    with pytest.raises(error, match="payment_key must"):
        world.get(extensions={"payment_key": key})
    assert (world.seller.seen, world.service.orders) == ([], [])


# --- What is declined


LARGE, LONG_JSON = "longer than 32768", "than 57344 bytes of JSON"
MANUAL = ("PAYMENT-SIGNATURE", "X-PAYMENT", "Payment-Authorization", "Authorization")
UNPAID: list[tuple[dict[str, str], Fields, bytes, str | None]] = [
    ({}, [], b"", None),
    ({}, [], b"members only", None),
    ({}, [JSON], b'{"error":"quota"}', None),
    ({}, [("WWW-Authenticate", 'Basic realm="payment"')], b"", None),
    ({}, [("WWW-Authenticate", 'Bearer realm="x", Prepayment id="1"')], b"", None),
    ({}, [("Content-Type", "text/html")], V1, None),
    ({}, [JSON], V1 + b" " * 33_000, None),
    ({}, [JSON], V1 + b"\0", None),
    ({}, [JSON, GZIP], V1 + b" " * 10_000_000, None),
    *(
        ({}, [(name, f"Payment {TOO_LONG}")], b"pay", LARGE)
        for name in ("PAYMENT-REQUIRED", "WWW-Authenticate")
    ),
    *(
        ({}, [JSON], V1 + filler.encode(), LONG_JSON)
        for filler in ("я" * 15_000, '"' * 30_000, "\x01" * 30_000)
    ),
    *(({name: "Payment mine"}, [X402], b"{}", "another payment") for name in MANUAL),
]


@pytest.mark.parametrize(("headers", "fields", "content", "declined"), UNPAID)
def test_a_402_that_cannot_be_paid_is_returned_untouched_with_the_reason(
    world: World, headers: dict[str, str], fields: Fields, content: bytes, declined: str | None
) -> None:
    world.seller.serves(asks(world, fields, content))
    response = world.get(headers=headers)
    assert (response.status_code, response.content) == (402, content)
    assert world.service.orders == []
    if declined is not None:
        assert declined in response.extensions["payment"].declined


def test_a_streamed_402_can_still_be_read_in_full(world: World) -> None:
    parts = [b"x" * 20_000] * 5
    body = world.chunks(*parts)
    world.seller.serves(lambda _: world.seller.response(402, body, Content_Type="application/json"))

    def read(http: Any) -> Any:
        if not world.is_async:
            with http.stream("GET", FORECAST) as response:
                assert body.taken == 2, "no more than the limit, and one part"
                return b"".join(response.iter_bytes())

        async def run() -> bytes:
            async with http.stream("GET", FORECAST) as response:
                assert body.taken == 2
                return b"".join([part async for part in response.aiter_bytes()])

        return run()

    assert world.send(read) == b"".join(parts)
    assert world.service.orders == []


def test_an_endless_402_body_is_read_only_up_to_the_limit(world: World) -> None:
    body = world.chunks(*[b"x" * 1024] * 100_000)
    world.seller.serves(
        lambda _: world.seller.response(402, body, PAYMENT_REQUIRED="e30=", Content_Encoding="br"),
        world.seller.sells,
    )
    response = world.get()
    assert response.status_code == 200
    assert body.taken < 40
    assert response.history[0].content == b""


def test_a_402_after_a_redirect_is_not_paid(world: World) -> None:
    world.seller.serves(world.seller.redirects("https://other.example/pay"), world.seller.asks)
    response = world.get(follow_redirects=True)
    assert (response.status_code, world.service.orders) == (402, [])
    assert "redirect" in response.extensions["payment"].declined


@pytest.mark.parametrize("to", ["https://other.example/pay", "/elsewhere"])
def test_a_redirect_does_not_carry_the_payment_header(world: World, to: str) -> None:
    moves = [world.seller.asks, world.seller.redirects(to)]
    world.seller.serves(*moves, world.seller.sells)
    assert world.get(follow_redirects=True).status_code == 200
    presented = [each["headers"].get("payment-signature") for each in world.seller.seen]
    assert presented == [None, "cheque-1", None]
    assert b"PAYMENT-SIGNATURE" not in world.seller.seen[-1]["sent"]

    world.seller.serves(*moves)
    moved = world.get()
    assert moved.status_code == 302
    assert "payment-signature" not in moved.next_request.headers
    assert moved.extensions["payment"].transfer_id == "txn_2"

    world.seller.serves(*moves, world.seller.asks)
    with pytest.raises(PaymentRefusedError):
        world.get(follow_redirects=True)
    assert len(world.service.orders) == 3


ELSEWHERE = 'Payment id="c2", header="Payment-Authorization", method="solana"'


@pytest.mark.parametrize(
    ("field", "forwarded"),
    [
        (MPP, None),
        (f"{MPP}, {ELSEWHERE}", ELSEWHERE),
        (f"{ELSEWHERE}, {MPP}", ELSEWHERE),
        (f'Basic realm="a", {ELSEWHERE}, Negotiate YII=, {MPP}', ELSEWHERE),
        (f"Negotiate YII=, {ELSEWHERE}, Custom", ELSEWHERE),
        (f"{ELSEWHERE}, {ELSEWHERE}", f"{ELSEWHERE}, {ELSEWHERE}"),
        ("payment id=c2 , HEADER = payment-authorization", "payment id=c2 , HEADER = payment-authorization"),
        (f'{MPP}, note="header=payment-authorization"', None),
        (f'{MPP}, note=", Payment header=payment-authorization"', None),
        (f'{MPP}, note="\\", header=Payment-Authorization, x=\\""', None),
        (f'{MPP}, xheader="Payment-Authorization"', None),
        (f'{MPP}, header="Payment-Authorization-2"', None),
        (f'{MPP}, header="Authorization", header="Payment-Authorization"', None),
        (f'{MPP}, Other header="Payment-Authorization"', None),
        (f'{ELSEWHERE} "', None),
        (f'{ELSEWHERE}, "', None),
    ],
)
def test_only_challenges_beside_an_authorization_are_forwarded(
    world: World, field: str, forwarded: str | None
) -> None:
    world.service.header = "Payment-Authorization"
    world.seller.serves(lambda _: world.seller.response(402, WWW_Authenticate=field), world.seller.sells)
    response = world.get(headers={"Authorization": "Bearer mine"})
    if forwarded is None:
        assert (response.status_code, world.service.orders) == (402, [])
        assert "Authorization" in response.extensions["payment"].declined
    else:
        assert response.status_code == 200
        assert world.service.orders[0]["headers"] == [["www-authenticate", forwarded]]
        presented = world.seller.seen[1]["headers"]
        assert (presented["authorization"], presented["payment-authorization"]) == ("Bearer mine", "cheque-1")


@pytest.mark.parametrize("field", ["Payment {}", "Payment {}=", 'Payment a="{}', "Payment a={}=", "{} {}"])
def test_a_long_header_field_is_read_in_linear_time(field: str) -> None:
    # Quadratic time would be hours.
    headers = [("WWW-Authenticate", field.replace("{}", "a" * 1_000_000))]
    assert list(beside_authorization(headers)) == []


def test_a_payment_that_would_replace_a_header_is_not_presented(world: World) -> None:
    world.service.header = "Authorization"
    world.seller.serves(world.seller.asks)
    response = world.get(headers={"Authorization": "Bearer mine"})
    record = response.extensions["payment"]
    assert (response.status_code, record.transfer_id) == (402, "txn_1")
    assert "Authorization" in record.declined
    assert len(world.seller.seen) == 1


def test_a_402_from_the_payment_service_is_not_paid(world: World) -> None:
    world.seller.serves(world.seller.asks)
    response = world.get(f"{URL}:443/v1/transfers")
    assert (response.status_code, world.service.orders) == (402, [])
    assert "payment service" in response.extensions["payment"].declined


# --- How it is sent


@pytest.mark.parametrize(
    ("timeout", "options", "read"),
    [
        (5.0, {}, 65.0),
        (90.0, {}, 90.0),
        (None, {}, None),
        (5.0, {"read_timeout": None}, 5.0),
        (5.0, {"read_timeout": 10}, 10),
    ],
)
def test_the_paid_request_has_a_longer_read_timeout(
    world: World, timeout: float | None, options: dict[str, Any], read: float | None
) -> None:
    world.seller.serves(world.seller.asks, world.seller.sells)
    world.send(lambda http: http.get(FORECAST, timeout=timeout), auth=world.auth(**options))
    first, second = (each["timeout"] for each in world.seller.seen)
    assert first == dict.fromkeys(("connect", "read", "write", "pool"), timeout)
    assert second == {**first, "read": read}


def test_a_failed_report_does_not_affect_the_response(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.seller.serves(world.seller.asks, world.seller.sells)
    world.service.steps = [None, *[httpx.ConnectError("gone")] * 9]
    response = world.send(lambda http: http.get(FORECAST), auth=world.auth(report=True))
    assert response.status_code == 200
    (report,) = {
        (each["transfer_id"], each["status_code"], each["receipt"]) for each in world.service.reports
    }
    assert report == ("txn_1", 200, "cmVjZWlwdA==")
    assert "the outcome of payment txn_1 was not reported" in caplog.text


# --- Mistakes


def test_a_client_of_the_other_kind_is_refused_before_anything_is_sent(world: World) -> None:
    async def asynchronously(auth: PaymentAuth) -> None:
        async with auth:
            pass

    other: Any = AgentPay if world.is_async else AsyncAgentPay
    auth = PaymentAuth(other(api_key=KEY, base_url=URL), account_id="acct_a")
    with pytest.raises(errors.ConfigurationError, match="AsyncAgentPay"):
        world.send(lambda http: http.get(FORECAST), auth=auth)
    assert world.seller.seen == []
    wrong = world.auth().__enter__ if world.is_async else partial(anyio.run, asynchronously, world.auth())
    with pytest.raises(errors.ConfigurationError, match="give it an A"):
        wrong()


def test_floats_and_objects_that_are_no_client_are_refused() -> None:
    for client in (None, "ap_agent_1", object()):
        with pytest.raises(errors.ConfigurationError, match="must be an AgentPay or an AsyncAgentPay"):
            PaymentAuth(client, account_id="acct_a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_amount"):
        PaymentAuth(AgentPay(api_key=KEY, base_url=URL), account_id="acct_a", max_amount=0.05)  # type: ignore[arg-type]


def test_a_mock_of_the_client_is_accepted() -> None:
    client = Mock(spec=AgentPay)
    client.base_url = URL
    client.payments.authorize.return_value = testing.make(Payment, transfer_id="txn_7")
    steps = iter([httpx.Response(402, headers={"PAYMENT-REQUIRED": "e30="}), httpx.Response(200)])
    auth = PaymentAuth(client, account_id="acct_a")
    with httpx.Client(auth=auth, transport=httpx.MockTransport(lambda _: next(steps))) as http:
        assert http.get(FORECAST).extensions["payment"].transfer_id == "txn_7"
