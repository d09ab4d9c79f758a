"""Deliveries on a running clock, over real sockets: prompt, and independent of slow receivers.

See interface W7 to W10.
"""

import itertools
import time

import bounds
import pytest
from receivers import Receiver, answer, drop, eventually, hang

from agentpay import InsufficientBalanceError, webhooks
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

SETTLED = ["transfer.settled"]


@pytest.fixture
def server():
    with AgentPayServer(clock="system") as running:
        yield running


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch):
    """No attempt ends because of its bound, so what waits for one never ends."""
    bounds.shorten(monkeypatch, delivery_seconds=3_600)


@pytest.fixture
def receiver():
    with Receiver() as running:
        yield running


@pytest.fixture
def pay(server: AgentPayServer):
    client = server.client()
    payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
    server.sandbox.fund(payer, 1000)

    def make(times: int = 1) -> None:
        for _ in range(times):
            client.transfers.create(from_=payer, to=payee, amount="1")

    return make


def test_an_event_is_posted_as_soon_as_it_is_committed(
    server: AgentPayServer, receiver: Receiver, pay, monkeypatch: pytest.MonkeyPatch
):
    # Every wait of the schedule takes longer than the test: it is woken.
    bounds.shorten(monkeypatch, schedule_pause_seconds=3_600, schedule_longest_wait_seconds=3_600)
    webhook = server.client().webhooks.create(url=receiver.url, events=SETTLED)
    before = server.sandbox.clock.now()
    for count in range(1, 6):
        pay()
        post = receiver.wait_for(count)[-1]
        webhooks.verify(post.body, post.headers, webhook.secret)
    eventually(lambda: {d.status for d in server.deliveries.list()} == {"delivered"})
    (delivery, *_) = server.deliveries.list()
    assert before <= delivery.attempts[0].at <= server.sandbox.clock.now()
    # And so is a replay.
    server.events.replay(delivery.event_id)
    assert receiver.wait_for(6)[5].headers["x-service-event-id"] == delivery.event_id


def test_many_events_are_all_posted_once(server: AgentPayServer, receiver: Receiver, pay):
    server.client().webhooks.create(url=receiver.url, events=["transfer.initiated", "transfer.settled"])

    pay(60)
    receiver.wait_for(120)

    eventually(lambda: not list(server.deliveries.list(status="pending")))
    ids = [post.headers["x-service-event-id"] for post in receiver.posts]
    assert len(ids) == len(set(ids)) == 120
    assert receiver.at_once <= 8


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("act", [hang, drop], ids=["slow", "dead"])
def test_a_slow_receiver_does_not_delay_others(server: AgentPayServer, receiver: Receiver, pay, act):
    with Receiver() as bad:
        bad.default = act
        for url in (bad.url, receiver.url):
            server.client().webhooks.create(url=url, events=SETTLED)

        pay(20)
        receiver.wait_for(20)

        assert bad.posts


@pytest.mark.usefixtures("patient")
def test_slow_endpoints_of_one_operator_do_not_delay_others(server: AgentPayServer, receiver: Receiver, pay):
    other = server.client(api_key=server.sandbox.create_operator("b").key)
    payer = other.accounts.create(name="theirs").account_id
    payee = other.accounts.create(name="theirs too").account_id
    with Receiver() as slow:
        slow.default = hang
        for number in range(8):
            server.client().webhooks.create(url=f"{slow.url}/{number}", events=SETTLED)
        other.webhooks.create(url=receiver.url, events=["transfer.rejected"])
        pay(8)
        slow.wait_for(32)

        with pytest.raises(InsufficientBalanceError):
            other.transfers.create(from_=payer, to=payee, amount="1")
        receiver.wait_for(1)


def test_failed_attempts_are_retried_on_schedule(
    server: AgentPayServer, receiver: Receiver, pay, monkeypatch: pytest.MonkeyPatch
):
    bounds.shorten(monkeypatch, delivery_retry_delays_us=(50_000, 60_000, 70_000, 80_000))
    server.client().webhooks.create(url=receiver.url, events=SETTLED)
    receiver.next(500, drop, 404, 500)

    pay()
    receiver.wait_for(5)
    eventually(lambda: [d.status for d in server.deliveries.list()] == ["delivered"])

    (delivery,) = server.deliveries.list()
    times = [attempt.at for attempt in delivery.attempts]
    waits = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)]
    assert all(wait >= delay for wait, delay in zip(waits, (0.05, 0.06, 0.07, 0.08), strict=True))
    assert [post.headers["x-service-delivery-attempt"] for post in receiver.posts] == [*"12345"]


def test_a_receiver_may_call_the_service_before_it_answers(server: AgentPayServer, receiver: Receiver, pay):
    server.client().webhooks.create(url=receiver.url, events=SETTLED)

    def pay_again(exchange):
        pay()
        exchange.wire.sendall(answer(200))

    receiver.next(pay_again)
    pay()

    assert len(receiver.wait_for(2)) == 2


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("_", range(3))
def test_a_server_closes_while_it_delivers(receiver: Receiver, _):
    with AgentPayServer(clock="system") as server:
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("a", "b"))
        server.sandbox.fund(payer, 10)
        client.webhooks.create(url=receiver.url, events=SETTLED)
        client.transfers.create(from_=payer, to=payee, amount="1")
        receiver.wait_for(1)
        started = time.monotonic()

    assert time.monotonic() - started < 120, "closing waits for a receiver"
