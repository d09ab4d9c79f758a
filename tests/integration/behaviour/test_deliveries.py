"""Deliveries on a paused clock: when each attempt is made, and what it sends.

See interface W7 to W10; P11.
"""

import re
import threading
from datetime import timedelta

import bounds
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from money import events, rows
from receivers import Receiver, answer, drop, hang
from server_world import START, UNKNOWN, Funded, faults, raw_client

from agentpay import AgentPay, ConflictError, webhooks
from agentpay.contract.ext.deliveries import Delivery
from agentpay.webhooks import RETRY_SCHEDULE
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

DELAYS = [
    timedelta(0),
    timedelta(seconds=30),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
]
DUE = [START + sum(DELAYS[: number + 1], timedelta(0)) for number in range(5)]
MILLISECOND = timedelta(milliseconds=1)
SETTLED = ["transfer.settled"]


@pytest.fixture
def receiver():
    with Receiver() as running:
        yield running


@pytest.fixture
def pay(client: AgentPay, funded: Funded):
    """A function that makes a transfer: one event for a subscriber of `transfer.settled`."""
    payer, payee = funded("1000"), funded("1", name="Payee")

    def make(amount: str = "1") -> None:
        client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=amount)

    return make


def only(server: AgentPayServer) -> Delivery:
    (delivery,) = server.deliveries.list()
    return delivery


def until(look):
    """Ask the server until it is so: first attempts at real receivers wait for no clock."""
    while not look():
        pass


def move(server: AgentPayServer, duration: timedelta) -> None:
    server.sandbox.clock.advance(duration / timedelta(seconds=1))


# --- When -------------------------------------------------------------------------------------------------


def test_a_real_receiver_gets_an_event_at_once_and_retries_wait_for_the_clock(
    server: AgentPayServer, pay, receiver: Receiver
):
    server.client().webhooks.create(url=receiver.url, events=SETTLED)
    receiver.next(500)
    pay()
    until(lambda: only(server).attempts)

    assert (only(server).status, only(server).waits_for) == ("retrying", "clock")
    assert len(receiver.posts) == 1
    server.sandbox.clock.advance(30)
    assert (only(server).status, only(server).waits_for) == ("delivered", None)


def test_an_inbox_gets_an_event_at_once_only_while_the_server_has_a_port(server: AgentPayServer, pay):
    inbox = server.webhook_inbox(events=SETTLED)
    pay()
    assert only(server).waits_for == "clock"
    server.listen()
    until(lambda: inbox.receipts)
    pay()
    until(lambda: len(inbox.receipts) == 2)


@pytest.mark.parametrize("failures", range(6))
def test_the_schedule_is_kept_to_the_millisecond(server: AgentPayServer, pay, failures):
    inbox = server.webhook_inbox(events=SETTLED)
    assert DUE[-1] - DUE[0] == RETRY_SCHEDULE == timedelta(hours=2, minutes=35, seconds=30)
    for number in range(failures):
        # Odd and even numbers of failures begin with a different one.
        if (number + failures) % 2:
            inbox.fail_next(503)
        else:
            inbox.drop_next()
    pay()
    attempts = min(failures + 1, 5)

    # Nothing runs before the clock is advanced, and by zero what is due.
    delivery = only(server)
    assert (delivery.status, delivery.attempts, delivery.next_attempt_at) == ("pending", (), START)
    assert inbox.receipts == []
    assert server.sandbox.clock.advance(0) == START
    assert len(inbox.receipts) == 1
    for number in range(1, attempts):
        delivery = only(server)
        assert (delivery.status, delivery.next_attempt_at) == ("retrying", DUE[number])
        move(server, DELAYS[number] - MILLISECOND)
        assert len(inbox.receipts) == number
        move(server, MILLISECOND)
        assert len(inbox.receipts) == number + 1
    server.sandbox.clock.advance(days=2)

    delivery = only(server)
    assert delivery.status == ("undelivered" if failures == 5 else "delivered")
    assert delivery.next_attempt_at is None
    assert [attempt.at for attempt in delivery.attempts] == DUE[:attempts]
    assert [receipt.attempt for receipt in inbox.receipts] == list(range(1, attempts + 1))
    assert len({receipt.event.id for receipt in inbox.receipts}) == 1
    assert len(inbox.events) == (failures < 5)


def test_leases_expire_in_real_time_on_a_manual_clock(server: AgentPayServer, pay):
    inbox = server.webhook_inbox(events=SETTLED)
    deliveries = server._running.server.services.built["webhooks"].sender
    pay()

    server._running._owner.call(deliveries.claim(1))
    server.sandbox.clock.advance(days=30)

    # A month of the server's time does not end an attempt in real time.
    assert inbox.receipts == []
    (row,) = rows(server, "deliveries")
    assert row["leased_until_us"] > 1_700_000_000_000_000


def test_deliveries_run_in_the_order_in_which_they_fall_due(server: AgentPayServer, pay):
    inbox = server.webhook_inbox(events=SETTLED)
    inbox.fail_next(times=5)
    for amount in ("1", "2", "3"):
        pay(amount)
        server.sandbox.clock.advance(10)

    server.sandbox.clock.advance(hours=3)

    order = sorted(
        (attempt.at, delivery.delivery_id)
        for delivery in server.deliveries.list()
        for attempt in delivery.attempts
    )
    received = [receipt.event.data.amount_usdc for receipt in inbox.receipts]
    by_delivery = {d.delivery_id: n for n, d in zip((3, 2, 1), server.deliveries.list(), strict=True)}
    assert received == [by_delivery[delivery_id] for _, delivery_id in order]
    assert received[:4] == [1, 2, 3, 1]
    together = server.webhook_inbox(events=SETTLED)
    for amount in range(4, 24):
        pay(str(amount))
    server.sandbox.clock.advance(0)
    assert [receipt.event.data.amount_usdc for receipt in together.receipts] == list(range(4, 24))


def test_concurrent_advances_run_one_after_the_other(server: AgentPayServer, pay):
    inbox = server.webhook_inbox(events=SETTLED)
    inbox.fail_next(times=5)
    pay()

    threads = [threading.Thread(target=server.sandbox.clock.advance, args=(600,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert server.sandbox.clock.now() == START + timedelta(seconds=12_000)
    assert [attempt.at for attempt in only(server).attempts] == DUE


@pytest.mark.parametrize("failures", [0, 1], ids=["at once", "in an advance"])
def test_a_receiver_that_advances_the_clock_before_responding_is_refused(
    server: AgentPayServer, pay, receiver: Receiver, failures, monkeypatch: pytest.MonkeyPatch
):
    bounds.shorten(monkeypatch, delivery_settle_seconds=0.1)
    server.client().webhooks.create(url=receiver.url, events=SETTLED)
    refusals = []

    def move_first(exchange):
        with pytest.raises(ConflictError, match="respond first") as refusal:
            server.sandbox.clock.advance(60)
        refusals.append(refusal.value.code)
        exchange.wire.sendall(answer(200))

    receiver.next(*[500] * failures, move_first)
    pay()
    until(lambda: only(server).attempts)
    if failures:
        server.sandbox.clock.advance(30)

    assert refusals == ["clock_moving"]
    assert only(server).status == "delivered"
    assert server.sandbox.clock.now() == START + timedelta(seconds=30 * failures)


def test_an_inbox_can_be_awaited_while_another_receiver_is_slow(
    server: AgentPayServer, pay, receiver: Receiver
):
    server.client().webhooks.create(url=receiver.url, events=SETTLED)
    inbox = server.webhook_inbox(events=SETTLED)
    is_posted, found = threading.Event(), []

    def answer_late(exchange):
        is_posted.set()
        waiting.join(1)
        exchange.wire.sendall(answer(200))

    def wait():
        is_posted.wait()
        found.append(inbox.wait_for("transfer.settled"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    receiver.next(answer_late)
    pay()
    waiting.join()

    assert [event.type for event in found] == ["transfer.settled"]


@settings(max_examples=20)
@given(
    failures=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    steps=st.lists(st.integers(0, 9_000_000), max_size=8),
)
def test_attempt_times_do_not_depend_on_how_the_clock_is_advanced(failures, steps):
    with AgentPayServer(clock=START) as server:
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("a", "b"))
        server.sandbox.fund(payer, 10)
        inboxes = []
        for count in failures:
            inboxes.append(server.webhook_inbox(events=SETTLED))
            inboxes[-1].fail_next(times=count)
        client.transfers.create(from_=payer, to=payee, amount="1")

        for step in steps:
            server.sandbox.clock.advance(step / 1000)
        server.sandbox.clock.advance(days=1)

        for inbox, count in zip(inboxes, failures, strict=True):
            (delivery,) = server.deliveries.list(webhook_id=inbox.webhook_id)
            attempts = min(count + 1, 5)
            # On time, however large the step was, as soon as the clock was moved at all.
            assert [attempt.at for attempt in delivery.attempts] == DUE[:attempts]
            assert len(inbox.receipts) == attempts


# --- What is sent, to a real receiver ---------------------------------------------------------------------


def test_every_attempt_sends_the_same_bytes_under_the_same_identifier(
    server: AgentPayServer, pay, receiver: Receiver
):
    webhook = server.client().webhooks.create(url=receiver.url, events=SETTLED)
    receiver.default = 500
    pay()
    server.sandbox.clock.advance(hours=3)

    posts = receiver.posts
    (event,) = [event for event in server.events.list() if event.type == "transfer.settled"]
    assert len(posts) == 5
    assert len({post.body for post in posts}) == 1
    assert {post.headers["x-service-event-id"] for post in posts} == {event.id}
    assert [post.headers["x-service-delivery-attempt"] for post in posts] == ["1", "2", "3", "4", "5"]
    assert {post.line for post in posts} == {"POST /hooks HTTP/1.1"}
    for post in posts:
        assert post.headers["content-type"] == "application/json"
        assert re.fullmatch(r"agentpay-server/\d+\.\d+.*", post.headers["user-agent"])
        assert re.fullmatch("[0-9a-f]{64}", post.headers["x-service-signature"])
        assert post.headers["x-service-signature"] == webhooks.sign(post.body, webhook.secret)
        assert "x-service-signature-next" not in post.headers
        assert webhooks.unwrap(post.body, post.headers, webhook.secret).id == event.id
    assert posts[0].body.decode() == next(
        row["body"] for row in rows(server, "events") if row["event_id"] == event.id
    )


def test_neither_a_redirect_nor_retry_after_changes_when_a_post_is_retried(
    server: AgentPayServer, pay, receiver: Receiver
):
    server.client().webhooks.create(url=receiver.url, events=SETTLED)
    for status in (302, 429, 503):
        before = len(receiver.posts)
        receiver.next(answer(status, f"Location: {receiver.url}\r\nRetry-After: 1\r\n"))
        pay()

        server.sandbox.clock.advance(29.999)
        assert len(receiver.posts) == before + 1, "neither a redirect nor Retry-After changes anything"
        server.sandbox.clock.advance(0.001)

        delivery = next(iter(server.deliveries.list()))
        assert [attempt.status_code for attempt in delivery.attempts] == [status, 200]


@pytest.mark.parametrize("act", [drop, hang, b"garbage\r\n\r\n"], ids=["drop", "hang", "garbage"])
def test_a_missing_response_is_retried(
    server: AgentPayServer, pay, receiver: Receiver, act, monkeypatch: pytest.MonkeyPatch
):
    server.client().webhooks.create(url=receiver.url, events=SETTLED)
    receiver.next(act)

    with monkeypatch.context() as impatient:
        if act is hang:
            bounds.shorten(impatient, delivery_seconds=0.5)
        pay()
        server.sandbox.clock.advance(0)
    server.sandbox.clock.advance(30)

    first, second = only(server).attempts
    assert first.status_code is None
    assert first.error.startswith("no answer")
    assert (second.status_code, second.error) == (200, None)


# --- What is shown ----------------------------------------------------------------------------------------


def test_a_delivery_is_shown_with_exactly_its_fields(server: AgentPayServer, http: httpx.Client, pay):
    inbox = server.webhook_inbox(events=SETTLED)
    inbox.fail_next(503)
    inbox.drop_next()
    pay()
    server.sandbox.clock.advance(30)

    (shown,) = http.get("/ext/v1/console/deliveries").json()["data"]

    assert re.fullmatch(r"dlv_[0-9a-z]{26}", shown.pop("delivery_id"))
    durations = [attempt.pop("duration_ms") for attempt in shown["attempts"]]
    assert all(isinstance(duration, int) and duration >= 0 for duration in durations)
    assert shown == {
        "event_id": events(server)[-1]["id"],
        "event_type": "transfer.settled",
        "webhook_id": inbox.webhook_id,
        "status": "retrying",
        "attempts": [
            {
                "at": "2026-01-01T00:00:00.000Z",
                "status_code": 503,
                "error": None,
                "response_excerpt": None,
            },
            {
                "at": "2026-01-01T00:00:30.000Z",
                "status_code": None,
                "error": "no answer: ReadError",
                "response_excerpt": None,
            },
        ],
        "next_attempt_at": "2026-01-01T00:05:30.000Z",
        "redelivered_at": None,
        "waits_for": "clock",
    }


def test_only_the_start_of_a_response_body_is_stored(
    server: AgentPayServer, http: httpx.Client, pay, receiver: Receiver, caplog: pytest.LogCaptureFixture
):
    server.client().webhooks.create(url=receiver.url, events=SETTLED)
    receiver.default = answer(
        500, "X-Secret: PLANTED\r\n", b"e\x1b[2J\0\xff\n" + b"x" * 1018 + b"PLANTED" * 1000
    )
    pay()

    server.sandbox.clock.advance(hours=3)

    attempts = http.get("/ext/v1/console/deliveries").json()["data"][0]["attempts"]
    start = "e\\x1b[2J\\x00\ufffd\n"
    assert [attempt["response_excerpt"] for attempt in attempts] == [start + "x" * (1024 - 8)] * 5
    database = str(rows(server, "delivery_attempts"))
    assert "PLANTED" not in http.get("/ext/v1/console/deliveries").text + database
    assert "xxx" not in caplog.text
    receiver.default = answer(200, "Content-Encoding: gzip\r\n", b"\x1f\x8b")
    pay()
    server.sandbox.clock.advance(0)
    (attempt,) = http.get("/ext/v1/console/deliveries").json()["data"][0]["attempts"]
    assert (attempt["status_code"], attempt["response_excerpt"]) == (200, None), "it is compressed"


# --- Replay -----------------------------------------------------------------------------------------------


def test_an_undelivered_event_is_replayed(
    server: AgentPayServer, http: httpx.Client, pay, receiver: Receiver
):
    server.client().webhooks.create(url=receiver.url, events=SETTLED)
    receiver.default = 500
    pay()
    server.sandbox.clock.advance(hours=3)
    event_id = only(server).event_id
    receiver.default = 200
    # The replay's own first attempt may be made at once.
    assert len(receiver.posts) == 5

    response = http.post(f"/ext/v1/console/events/{event_id}/replay")

    (replayed,) = response.json()["data"]
    assert response.status_code == 202
    assert (replayed["status"], replayed["attempts"]) == ("pending", [])
    assert replayed["next_attempt_at"] == "2026-01-01T03:00:00.000Z"
    server.sandbox.clock.advance(0)
    assert len(receiver.posts) == 6
    assert receiver.posts[5].body == receiver.posts[0].body
    assert receiver.posts[5].headers["x-service-event-id"] == event_id
    assert receiver.posts[5].headers["x-service-delivery-attempt"] == "1"
    assert [d.status for d in server.deliveries.list(event_id=event_id)] == [
        "delivered",
        "undelivered",
    ]


def test_a_delivered_event_can_be_replayed_with_new_retries(server: AgentPayServer, pay):
    inbox = server.webhook_inbox(events=SETTLED)
    pay()
    event = inbox.wait_for("transfer.settled")
    inbox.fail_next(times=5)

    server.events.replay(event.id)
    entry = next(iter(server.console.audit_log.list()))
    assert (entry.action, entry.subject) == ("events.replay", event.id)
    assert entry.after == {"webhook_ids": [inbox.webhook_id]}
    server.sandbox.clock.advance(days=1)

    assert len(inbox.receipts) == 6
    assert len(inbox.events) == 1
    newest, _ = server.deliveries.list()
    assert (newest.status, [attempt.at for attempt in newest.attempts]) == ("undelivered", DUE)


def test_a_replay_goes_to_every_current_subscriber(server: AgentPayServer, pay):
    gone, kept = server.webhook_inbox(events=SETTLED), server.webhook_inbox(events=SETTLED)
    pay()
    event = kept.wait_for("transfer.settled")
    server.webhooks.delete(gone.webhook_id)
    later = server.webhook_inbox()
    other_type = server.webhook_inbox(events=["transfer.rejected"])
    other_account = server.webhook_inbox(account_ids=[server.client().accounts.create(name="c").account_id])

    replayed = server.events.replay(event.id)
    server.sandbox.clock.advance(0)

    assert [delivery.webhook_id for delivery in replayed] == [kept.webhook_id, later.webhook_id]
    for inbox in (kept, later):
        server.webhooks.delete(inbox.webhook_id)
    assert list(server.events.replay(event.id)) == []
    assert [len(i.receipts) for i in (gone, kept, later, other_type, other_account)] == [1, 2, 1, 0, 0]


def test_a_replay_to_one_webhook_ignores_its_subscription(server: AgentPayServer, pay):
    first, second = server.webhook_inbox(events=SETTLED), server.webhook_inbox(events=["transfer.rejected"])
    pay()
    event = first.wait_for("transfer.settled")

    (replayed,) = server.events.replay(event.id, webhook_id=second.webhook_id)
    server.sandbox.clock.advance(0)

    assert replayed.webhook_id == second.webhook_id
    assert (len(first.receipts), len(second.receipts)) == (1, 1)
    assert second.events[0].id == event.id


def test_an_invalid_replay_is_refused(server: AgentPayServer, http: httpx.Client, pay):
    inbox = server.webhook_inbox(events=SETTLED)
    pay()
    event_id = inbox.wait_for("transfer.settled").id
    deleted = server.webhook_inbox().webhook_id
    server.webhooks.delete(deleted)
    path = f"/ext/v1/console/events/{event_id}/replay"
    other_key = server.sandbox.create_operator("b").key
    foreign = server.client(api_key=other_key).webhooks.create(url=inbox.url, events=SETTLED).webhook_id

    for webhook_id in (UNKNOWN["webhook_id"], "x", "", deleted, foreign):
        assert list(faults(http.post(path, json={"webhook_id": webhook_id}))) == ["webhook_id"]
    assert list(faults(http.post(path, json={"webhook_id": 1}))) == ["webhook_id"]
    assert list(faults(http.post(path, json={"surprise": 1}))) == ["surprise"]
    with raw_client(server, other_key) as other:
        assert other.post(path).status_code == 404
        assert other.post(path, json={"webhook_id": foreign}).status_code == 404
    assert len(rows(server, "deliveries")) == 1


def test_every_event_reaches_a_receiver_that_eventually_answers(
    server: AgentPayServer, pay, receiver: Receiver
):
    webhook = server.client().webhooks.create(url=receiver.url, events=SETTLED)
    # Each event fails up to four times, in every way there is.
    receiver.next(*[500, drop, b"x\r\n\r\n", answer(302, "Location: /\r\n")] * 5)
    for amount in range(1, 11):
        pay(str(amount))

    server.sandbox.clock.advance(hours=3)

    accepted = {
        webhooks.unwrap(post.body, post.headers, webhook.secret).data.amount_usdc
        for post in receiver.posts[20:]
    }
    assert {d.status for d in server.deliveries.list()} == {"delivered"}
    assert accepted == set(range(1, 11))
