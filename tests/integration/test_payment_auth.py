"""`PaymentAuth` against sellers that settle on the chain: one purchase is one payment, whatever they do."""

import asyncio
import contextlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import httpx
import pytest
from anyio import from_thread, to_thread
from sellers import EXACT

from agentpay import errors
from agentpay.payments import PaymentAuth, PaymentRefusedError
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Mode, Paywall, Protocol

pytestmark = [pytest.mark.unmeasured, pytest.mark.plugin("payments")]

PRICE = Decimal("0.01")


@pytest.fixture
def bot(server: AgentPayServer) -> str:
    account_id = server.client().accounts.create(name="Bot").account_id
    server.sandbox.fund(account_id, 10)
    return account_id


def shop(server: AgentPayServer, **options: Any) -> Paywall:
    return Paywall(server, {"/forecast": PRICE}, **options)


def buyer(server: AgentPayServer, paywall: Paywall, bot: str, **options: Any) -> httpx.Client:
    auth = PaymentAuth(server.agent_client(bot), account_id=bot, **options)
    return httpx.Client(auth=auth, transport=paywall.transport(), base_url=paywall.base_url)


def spent(server: AgentPayServer, bot: str) -> Decimal:
    return Decimal(10) - server.client().accounts.balance(bot).balance_usdc


def sell(mode: Mode, protocol: Protocol) -> Any:
    return lambda paywall: paywall.sell("/forecast", PRICE, mode=mode, protocols=[protocol])


def sell_upto(mode: str) -> Any:
    return lambda paywall: paywall.sell_upto("/forecast", PRICE, mode=mode)


def sell_by_session(mode: str) -> Any:
    return lambda paywall: paywall.sell_by_session("/forecast", PRICE, mode=mode)


@pytest.mark.parametrize("protocol", [*EXACT, "x402_upto"])
def test_a_purchase_is_paid_once_and_settles(server: AgentPayServer, bot: str, protocol: str) -> None:
    with Paywall(server) as paywall, buyer(server, paywall, bot, max_amount="0.05", report=True) as http:
        if protocol == "x402_upto":
            paywall.sell_upto("/forecast", "0.05", charge=PRICE)
        else:
            paywall.sell("/forecast", PRICE, protocols=[protocol])
        response = http.get("/forecast", extensions={"payment_key": "forecast-7"})
        assert response.status_code == 200
        record = response.extensions["payment"]
        assert spent(server, bot) == paywall.received_usdc == PRICE
        payment = server.client().payments.get(record.transfer_id)
        assert (payment.protocol, payment.amount_usdc) == (protocol, PRICE)
        assert payment.origin == paywall.base_url
        assert payment.outcome is not None
        assert (payment.outcome.status_code, payment.outcome.receipt) == (200, record.receipt)


SETTLED_ANYWAY = (
    Mode.LOSE_REPLY,
    Mode.FAIL_AFTER_SETTLING,
    Mode.ASK_TWICE,
    Mode.RAISE_PRICE,
    Mode.CHANGE_PAYEE,
)
PAID, OPEN, SERVED = errors.PaidNotDeliveredError, PaymentRefusedError, 200
RETRIED: dict[str, tuple[Any, Any]] = {
    **{
        f"{mode} {protocol}": (sell(mode, protocol), OPEN if mode is Mode.HOLD else PAID)
        for mode in (*SETTLED_ANYWAY, Mode.HOLD)
        for protocol in EXACT
    },
    "upto that loses the reply": (sell_upto("lose_reply"), PAID),
    "upto that fails": (sell_upto("charge_maximum"), PAID),
    "session that loses the reply": (sell_by_session("lose_reply"), SERVED),
    "session that fails": (sell_by_session("steal_voucher"), SERVED),
    "session that refuses": (sell_by_session("refuse_accepted"), PAID),
}
TRIES = 3


def is_retried(outcome: Any) -> bool:
    """Return whether the usual layer above tries again: SDKs, and loops such as those of tenacity."""
    return isinstance(outcome, httpx.TransportError) or outcome in (500, 502, 503)


def retried(post: Callable[..., httpx.Response]) -> Any:
    outcome: Any = None
    for _ in range(TRIES):
        try:
            outcome = post("/forecast", json={"city": "Oslo"}).status_code
        except (httpx.TransportError, errors.AgentPayError) as error:
            outcome = error
        if not is_retried(outcome):
            break
    return outcome


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("case", RETRIED.values(), ids=RETRIED)
def test_retries_of_the_layer_above_pay_once(
    server: AgentPayServer, bot: str, case: tuple[Any, Any], is_async: bool
) -> None:
    sold, expected = case

    async def buy(paywall: Paywall) -> Any:
        async with server.async_client() as client:
            auth = PaymentAuth(client, account_id=bot, session_cap="1")
            transport = paywall.async_transport()
            async with httpx.AsyncClient(auth=auth, transport=transport, base_url=paywall.base_url) as http:
                return await to_thread.run_sync(
                    retried, lambda *url, **body: from_thread.run(partial(http.post, *url, **body))
                )

    with Paywall(server) as paywall:
        sold(paywall)
        if is_async:
            outcome = asyncio.run(buy(paywall))
        else:
            with buyer(server, paywall, bot, session_cap="1") as http:
                outcome = retried(http.post)
        operator = server.client()
        paid = [each.amount_usdc for each in operator.payments.list(account_id=bot)]
        paid += [each.running_total_usdc for each in operator.sessions.list(account_id=bot)]
        assert paid == [PRICE]
        if expected == SERVED:
            assert outcome == SERVED
            return
        assert type(outcome) is expected
        assert ("It is paid" in str(outcome)) == (expected is PAID)
        assert ("It may still settle" in str(outcome)) == (expected is OPEN)
        copy = pickle.loads(pickle.dumps(outcome))
        assert (str(copy), vars(copy)) == (str(outcome), vars(outcome))


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "order-7"}], ids=["request", "header"])
def test_a_payment_that_can_no_longer_land_is_replaced_by_a_new_purchase(
    server: AgentPayServer, bot: str, headers: dict[str, str]
) -> None:
    with shop(server) as paywall:
        lost, inner = ["first", "second"], paywall.transport()

        def loses_two(request: httpx.Request) -> httpx.Response:
            if lost and "payment" in request.extensions:
                raise httpx.ReadTimeout(lost.pop(), request=request)
            return inner.handle_request(request)

        def process() -> httpx.Client:
            auth, way = PaymentAuth(server.agent_client(bot), account_id=bot), httpx.MockTransport(loses_two)
            return httpx.Client(auth=auth, transport=way, base_url=paywall.base_url, headers=headers)

        with process() as http:
            for _ in range(2):
                with pytest.raises(httpx.ReadTimeout):
                    http.get("/forecast")
            assert len(list(server.client().payments.list())) == 1
            server.sandbox.clock.advance(minutes=5)
            assert http.get("/forecast").status_code == 200
        # The service has freed the key of the first payment by then.
        server.sandbox.clock.advance(hours=25)
        if headers:
            with process() as http, pytest.raises(errors.PaidNotDeliveredError):
                http.get("/forecast")
    assert [each.status for each in server.client().payments.list()] == ["settled", "failed"]
    assert spent(server, bot) == PRICE


def test_an_approved_payment_is_presented_by_an_equal_request(server: AgentPayServer, bot: str) -> None:
    operator = server.client()
    operator.policies.update(bot, escalation_threshold="0.01")
    with shop(server) as paywall, buyer(server, paywall, bot) as http:
        waiting = []
        for _ in range(2):
            with pytest.raises(errors.PaymentPendingApprovalError) as caught:
                http.get("/forecast")
            waiting.append(caught.value.transfer_id)
        assert waiting[0] == waiting[1]
        operator.approvals.approve(waiting[0])
        assert http.get("/forecast").extensions["payment"].transfer_id == waiting[0]
    assert spent(server, bot) == PRICE


REFUSALS: list[tuple[Mode, str, str, type[Any]]] = [
    (Mode.HONEST, "1", "0.009", errors.UnpayableChallengeError),
    (Mode.ASK_TWICE, "1", "0.05", PaymentRefusedError),
    (Mode.HONEST, "0.001", "0.05", errors.PaymentPendingApprovalError),
]


@pytest.mark.parametrize(("mode", "threshold", "cap", "kind"), REFUSALS)
def test_a_refusal_names_price_and_cap(
    server: AgentPayServer, bot: str, mode: Mode, threshold: str, cap: str, kind: type[Any]
) -> None:
    server.client().policies.update(bot, escalation_threshold=threshold)
    with (
        shop(server, mode=mode) as paywall,
        buyer(server, paywall, bot, max_amount=cap) as http,
        pytest.raises(kind) as caught,
    ):
        http.get("/forecast")
    error = caught.value
    assert f"{PRICE}" in str(error)
    assert f"max_amount {cap}" in str(error)
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert (each.price_usdc, each.max_amount_usdc) == (PRICE, Decimal(cap))


def undelivered(server: AgentPayServer) -> int:
    return len(server.client().payments.list(status="undelivered").data)


@pytest.mark.parametrize("report", [True, False])
@pytest.mark.parametrize("mode", [Mode.LOSE_REPLY, Mode.FAIL_AFTER_SETTLING])
def test_what_was_delivered_at_last_is_listed_no_more(
    server: AgentPayServer, bot: str, mode: Mode, *, report: bool
) -> None:
    with shop(server, serves_again=True) as paywall, buyer(server, paywall, bot, report=report) as http:
        paywall.mode = mode
        with contextlib.suppress(httpx.TransportError):
            http.post("/forecast", extensions={"payment_key": "forecast-7"})
        assert (spent(server, bot), undelivered(server)) == (PRICE, 1)
        paywall.mode = Mode.HONEST
        assert http.post("/forecast", extensions={"payment_key": "forecast-7"}).status_code == 200
        assert (spent(server, bot), undelivered(server)) == (PRICE, 0)


@pytest.mark.parametrize("report", [True, False])
def test_a_refusal_of_what_was_delivered_is_no_missing_delivery(
    server: AgentPayServer, bot: str, *, report: bool
) -> None:
    with shop(server) as paywall, buyer(server, paywall, bot, report=report) as http:
        assert http.get("/forecast", extensions={"payment_key": "forecast-7"}).status_code == 200
        with pytest.raises(errors.PaidNotDeliveredError):
            http.get("/forecast", extensions={"payment_key": "forecast-7"})
        assert (spent(server, bot), undelivered(server)) == (PRICE, 0)


def broken() -> Iterator[bytes]:
    yield b"{"
    raise httpx.ReadError("broken off")


class Spoiling(httpx.BaseTransport):
    """Replaces the responses of a seller that delivers, as often as there are others."""

    def __init__(self, inner: httpx.BaseTransport, *others: httpx.Response) -> None:
        self.inner, self.others = inner, list(others)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self.inner.handle_request(request)
        return self.others.pop() if response.status_code == 200 and self.others else response


SPOILED: dict[str, Callable[[], httpx.Response]] = {
    "broken": lambda: httpx.Response(200, content=broken()),
    "undecodable": lambda: httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Plain()),
}


class Plain(httpx.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        yield b"no gzip"


@pytest.mark.parametrize("report", [True, False])
@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("is_stream", [True, False], ids=["streamed", "bytes"])
def test_a_body_that_cannot_be_read_is_a_missing_delivery_and_paid_once(
    server: AgentPayServer, bot: str, spoiled: Callable[[], httpx.Response], *, is_stream: bool, report: bool
) -> None:
    with (
        shop(server, serves_again=True) as paywall,
        buyer(server, paywall, bot, report=report) as http,
    ):
        http._transport = Spoiling(http._transport, spoiled())
        body = iter([b"{}"]) if is_stream else b"{}"
        request = http.build_request("POST", "/forecast", content=body)
        with pytest.raises((httpx.ReadError, httpx.DecodingError)):
            http.send(request)
        assert (spent(server, bot), undelivered(server)) == (PRICE, 1)
        # The same request presents the same payment again.
        assert http.send(request).status_code == 200
        assert (spent(server, bot), undelivered(server)) == (PRICE, 0)


def test_a_reader_that_is_cancelled_joins_its_purchase(server: AgentPayServer, bot: str) -> None:
    auth = PaymentAuth(server.async_agent_client(bot), account_id=bot, report=True)

    async def read() -> None:
        transport = paywall.async_transport()
        async with httpx.AsyncClient(auth=auth, transport=transport, base_url=paywall.base_url) as http:
            with pytest.raises(asyncio.CancelledError):
                async with http.stream("GET", "/forecast"):
                    raise asyncio.CancelledError
            assert undelivered(server) == 1
            assert (await http.get("/forecast")).status_code == 200

    with shop(server, serves_again=True) as paywall:
        asyncio.run(read())
    assert (spent(server, bot), undelivered(server)) == (PRICE, 0)


OUTCOME = "http:POST /ext/v1/payments/{transfer_id}/outcome"


def test_a_refusal_is_a_missing_delivery_if_no_delivery_was_reported(
    server: AgentPayServer, bot: str
) -> None:
    key = {"payment_key": "forecast-7"}
    with shop(server, mode=Mode.LOSE_REPLY) as paywall, buyer(server, paywall, bot) as http:
        # The process dies before it tells, or cannot.
        with server.sandbox.fault(OUTCOME, effect="reset"), pytest.raises(httpx.TransportError):
            http.get("/forecast", extensions=key)
        assert undelivered(server) == 0
        with pytest.raises(errors.PaidNotDeliveredError):
            http.get("/forecast", extensions=key)
        assert (spent(server, bot), undelivered(server)) == (PRICE, 1)


def test_a_report_takes_no_delivery_back(server: AgentPayServer, bot: str) -> None:
    client = server.client()
    with shop(server) as paywall, buyer(server, paywall, bot) as http:
        transfer_id = http.get("/forecast").extensions["payment"].transfer_id
    reported = []
    for status_code in (302, 402, 504, 200, 402, 302, 500):
        outcome = client.payments.report_outcome(transfer_id, status_code=status_code, receipt="r").outcome
        reported.append((outcome and outcome.status_code, undelivered(server)))
    assert reported == [(302, 0), (402, 1), (504, 1), (200, 0), (200, 0), (200, 0), (200, 0)]


@pytest.mark.parametrize("is_read", [True, False])
def test_a_delivery_is_reported_once_its_body_has_ended(
    server: AgentPayServer, bot: str, *, is_read: bool
) -> None:
    with shop(server) as paywall, buyer(server, paywall, bot, report=True) as http:
        with http.stream("GET", "/forecast") as response:
            payments, transfer_id = server.client().payments, response.extensions["payment"].transfer_id
            assert payments.get(transfer_id).outcome is None
            if is_read:
                response.read()
        outcome = payments.get(transfer_id).outcome
    assert (outcome and outcome.status_code, undelivered(server)) == (200, 0)


def test_a_request_that_is_sent_twice_buys_twice(server: AgentPayServer, bot: str) -> None:
    with shop(server) as paywall, buyer(server, paywall, bot) as http:
        request = http.build_request("GET", "/forecast")
        assert [http.send(request).status_code for _ in range(2)] == [200, 200]
    assert spent(server, bot) == 2 * PRICE


def test_a_maximum_of_which_nothing_was_taken_buys_nothing(server: AgentPayServer, bot: str) -> None:
    with shop(server) as paywall, buyer(server, paywall, bot) as http:
        paywall.sell_upto("/answer", "0.05", charge="0.01", mode="fail")
        assert http.get("/answer").status_code == 500
        server.sandbox.clock.advance(3 * 3600)
        assert (spent(server, bot), undelivered(server)) == (0, 0)


@pytest.mark.parametrize("effect", ["reset", "reply_lost"], ids=["unasked", "signed"])
def test_requests_lost_by_the_service_are_paid_once(server: AgentPayServer, bot: str, effect: str) -> None:
    auth = PaymentAuth(server.agent_client(bot).with_options(max_retries=0), account_id=bot)
    with (
        shop(server) as paywall,
        httpx.Client(auth=auth, transport=paywall.transport(), base_url=paywall.base_url) as http,
    ):
        with (
            server.sandbox.fault("http:POST /ext/v1/payments", effect=effect, times=1),
            pytest.raises(errors.OutcomeUnknownError),
        ):
            http.get("/forecast", extensions={"payment_key": "k"})
        assert not paywall.sales
        assert http.get("/forecast", extensions={"payment_key": "k"}).status_code == 200
    assert spent(server, bot) == PRICE


# --- A process that dies

KILLED = """
import os, sys
import httpx
from agentpay import AgentPay
from agentpay.payments import PaymentAuth

service, key, account_id, url, step = sys.argv[1:]
client = AgentPay(base_url=service, api_key=key)
authorize = client.payments.authorize

def die(when):
    if when == step:
        os._exit(9)

def watched(**order):
    die("before the service is asked")
    payment = authorize(**order)
    die("once it is signed")
    return payment

client.payments.authorize = watched
hooks = {"response": [lambda response: die("once it is presented") if response.status_code != 402 else None]}
with httpx.Client(auth=PaymentAuth(client, account_id=account_id), event_hooks=hooks) as http:
    http.get(url, extensions={"payment_key": "k"})
"""


@pytest.mark.parametrize("step", ["before the service is asked", "once it is signed", "once it is presented"])
def test_a_killed_process_pays_at_most_once(server: AgentPayServer, bot: str, step: str) -> None:
    key = server.client().agent_keys.create(bot).key
    with shop(server, serves_again=True) as paywall:
        url = f"{paywall.listen()}/forecast"
        arguments = [server.listen(), key, bot, url, step]
        dead = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, capture_output=True)
        assert dead.returncode == 9, dead.stderr.decode()
        paid = 1 if step == "once it is presented" else 0
        assert spent(server, bot) == paid * PRICE

        with httpx.Client(auth=PaymentAuth(server.agent_client(bot), account_id=bot)) as http:
            for _ in range(2):
                assert http.get(url, extensions={"payment_key": "k"}).status_code == 200
        assert spent(server, bot) == PRICE
        assert len(paywall.sales) == len(list(server.client().payments.list())) == 1
