"""The router: which handlers run, how often, and the handling of failing ones."""

import asyncio
import logging
import pickle
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from datetime import timedelta
from http import HTTPStatus
from threading import Barrier
from threading import Event as Signal
from typing import TYPE_CHECKING

import pytest
from webhook_world import MOMENT, PAYLOAD, SECRET, payload, signed

from agentpay.errors import ConfigurationError
from agentpay.integrations import MemorySeenEvents, WebhookRouter
from agentpay.webhooks import EVENT_CLASSES, Event, TransferSettled, UnknownEvent, unwrap

if TYPE_CHECKING:
    from agentpay.integrations.seen import SeenEvents

SETTLED = unwrap(PAYLOAD, signed(), SECRET)
NEWER = UnknownEvent(id="evt_b", type="moon.landed", created_at=SETTLED.created_at, data={})


class Heard(list):
    """A handler that records its calls, and fails a given number of times."""

    __qualname__ = "Heard"

    def __init__(self, failures=0):
        super().__init__()
        self.failures = failures

    def __call__(self, event):
        self.append(event)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the handler's own trouble")


class BrokenSeen:
    def add(self, event_id):
        raise ConnectionError("the store is away")

    def discard(self, event_id):
        raise ConnectionError("the store is away")


class LaterExecutor(Executor):
    """Runs what it was given when told to."""

    def __init__(self):
        self.work = []

    def submit(self, fn, /, *args, **kwargs):
        self.work.append((Future(), fn, args))
        return self.work[-1][0]

    def run(self):
        for future, fn, args in self.work:
            try:
                future.set_result(fn(*args))
            except Exception as error:  # noqa: BLE001 - it is passed on
                future.set_exception(error)
        self.work.clear()


async def in_thread(function):
    return await asyncio.to_thread(function)


def process_async(router, event):
    return asyncio.run(router.process_async(event, in_thread))


both_ways = pytest.mark.parametrize("process", [WebhookRouter.process, process_async], ids=["sync", "async"])


def router_with(handler, kind=Event, **options):
    router = WebhookRouter(secret=SECRET, **options)
    router.on(kind)(handler)
    return router


def test_accept_returns_the_event_or_the_status_of_its_refusal_which_is_logged_without_secrets(caplog):
    router = WebhookRouter(secret=[SECRET], tolerance=timedelta(days=10_000))
    assert router.accept(PAYLOAD, signed()) == SETTLED
    old, private = payload(created_at="1980-01-01T00:00:00Z"), payload(data="PRIVATE")
    for body, headers, status in (
        (PAYLOAD, {}, HTTPStatus.UNAUTHORIZED),
        (payload(id="PRIVATE"), signed(), HTTPStatus.UNAUTHORIZED),
        (old, signed(old), HTTPStatus.UNAUTHORIZED),
        (private, signed(private), HTTPStatus.BAD_REQUEST),
    ):
        caplog.clear()
        assert router.accept(body, headers) is status
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"refused with {status.value}" in caplog.text
        assert not [hidden for hidden in ("PRIVATE", "SECRET", MOMENT) if hidden in caplog.text]
    assert "SECRET" not in f"{router!r} {vars(router)!r}"
    with pytest.raises(TypeError):
        pickle.dumps(router)


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        *(
            ({"secret": secret}, ConfigurationError, "webhook secret")
            for secret in (None, "", [], [SECRET, ""])
        ),
        ({"tolerance": 300}, ValueError, "2 h 35 min 30 s"),
        ({"answer": "later"}, ValueError, "'before' or 'after'"),
        ({"answer": None}, ValueError, "'before' or 'after'"),
    ],
)
def test_a_router_with_an_option_that_cannot_be_used_is_refused(options, kind, says):
    with pytest.raises(kind, match=says):
        WebhookRouter(**{"secret": SECRET, **options})


@both_ways
@pytest.mark.parametrize(
    ("kind", "settled", "newer"),
    [
        ("transfer.settled", 1, 0),
        (TransferSettled, 1, 0),
        ("transfer.rejected", 0, 0),
        (UnknownEvent, 0, 1),
        (Event, 1, 1),
    ],
)
def test_handlers_receive_the_events_they_are_registered_for(process, kind, settled, newer):
    heard = Heard()
    router = router_with(heard, kind)
    process(router, SETTLED)
    process(router, NEWER)
    assert heard == [SETTLED] * settled + [NEWER] * newer


def test_events_are_registered_by_name_or_class():
    router = WebhookRouter(secret=SECRET)
    for name in EVENT_CLASSES:
        handler = Heard()
        assert router.on(str(name))(handler) is handler
    for name in ("transfer.setled", "", "TransferSettled", "*"):
        with pytest.raises(ValueError, match=r"transfer\.settled.*UnknownEvent"):
            router.on(name)
    for kind in (None, int, Heard(), SETTLED):
        with pytest.raises(TypeError, match="class of events"):
            router.on(kind)


@both_ways
def test_sync_and_async_handlers_run_in_order_of_registration(process):
    router, order = WebhookRouter(secret=SECRET), []

    @router.on(Event)
    async def first(event):
        await asyncio.sleep(0)
        order.append(1)

    @router.on(TransferSettled)
    def second(event):
        order.append(2)

    class Third:
        async def __call__(self, event):
            order.append(3)

    router.on(Event)(Third())
    process(router, SETTLED)
    assert order == [1, 2, 3]


@both_ways
def test_an_event_is_handled_once(process, caplog):
    caplog.set_level(logging.INFO)
    router = router_with(heard := Heard())
    for _ in range(3):
        process(router, SETTLED)
    assert heard == [SETTLED]
    assert "'evt_a' was handled before" in caplog.text


@both_ways
def test_a_handler_that_fails_is_logged_and_the_next_delivery_runs_it_again(process, caplog):
    router = router_with(heard := Heard(failures=1))
    router.on(Event)(other := Heard())
    process(router, SETTLED)
    assert (len(heard), len(other)) == (1, 1), "one that fails keeps no other from running"
    (record,) = caplog.records
    assert record.getMessage() == "handler Heard failed on event 'evt_a' ('transfer.settled')"
    assert "the handler's own trouble" in caplog.text
    assert "acct_a" not in caplog.text
    assert "SECRET" not in caplog.text
    process(router, SETTLED)
    process(router, SETTLED)
    assert (len(heard), len(other)) == (2, 2)


@both_ways
def test_an_event_without_handlers_is_not_marked_as_handled(process):
    router = router_with(Heard(), "session.settled", seen=(seen := MemorySeenEvents()))
    process(router, SETTLED)
    assert seen.add(SETTLED.id)


@both_ways
def test_an_event_is_handled_while_the_seen_events_store_is_down(process, caplog):
    router = router_with(heard := Heard(failures=1), seen=BrokenSeen())
    process(router, SETTLED)
    assert heard == [SETTLED]
    assert "cannot tell whether event 'evt_a' was handled before" in caplog.text
    assert "'evt_a' remains marked as handled" in caplog.text


@pytest.mark.anyio
async def test_a_cancelled_handler_runs_again_at_the_next_delivery():
    started, seen = asyncio.Event(), MemorySeenEvents()

    async def hang(event):
        started.set()
        await asyncio.Event().wait()

    router = router_with(hang, seen=seen)
    task = asyncio.create_task(router.process_async(SETTLED, in_thread))
    await started.wait()
    assert not seen.add(SETTLED.id)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen.add(SETTLED.id)


def test_concurrent_deliveries_of_an_event_are_handled_once():
    router = router_with(heard := Heard())
    barrier = Barrier(8)

    def deliver(_):
        barrier.wait()
        router.process(SETTLED)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(deliver, range(8)))
    assert heard == [SETTLED]


def test_the_response_does_not_wait_for_the_handler():
    go, heard = Signal(), []

    def handler(event):
        go.wait(60)
        heard.append(event)

    with closing(router_with(handler)) as router:
        assert router.submit(router.process, SETTLED) is HTTPStatus.OK
        assert heard == []
        go.set()
    assert heard == [SETTLED], "close waits"
    assert router.submit(router.process, NEWER) is HTTPStatus.SERVICE_UNAVAILABLE


def test_deliveries_beyond_max_pending_or_after_the_shut_down_get_503(caplog):
    later = LaterExecutor()
    router = router_with(heard := Heard(), executor=later, max_pending=2)
    answers = [router.submit(router.process, event) for event in (SETTLED, NEWER, SETTLED)]
    assert answers == [HTTPStatus.OK, HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE]
    later.run()
    assert heard == [SETTLED, NEWER]
    assert router.submit(lambda event: 1 / 0, SETTLED) is HTTPStatus.OK
    later.run()
    assert "an event could not be processed" in caplog.text
    assert "ZeroDivisionError" in caplog.text

    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    router = router_with(Heard(), executor=threads, max_pending=1)
    for _ in range(2):
        assert router.submit(router.process, SETTLED) is HTTPStatus.SERVICE_UNAVAILABLE
    router.close()


@both_ways
def test_a_handler_that_fails_is_500_until_a_retry_succeeds(process):
    router = router_with(heard := Heard(failures=2), answer="after")
    assert [process(router, SETTLED) for _ in range(4)] == [500, 500, 200, 200]
    assert len(heard) == 3
    assert process(router_with(Heard(), "session.settled", answer="after"), SETTLED) == 200


@both_ways
@pytest.mark.parametrize("failures", [0, 1])
def test_a_delivery_of_an_event_that_is_being_handled_is_503(process, failures):
    during = []

    def handler(event):
        during.append(process(router, event) if not during else None)
        heard(event)

    heard = Heard(failures)
    router = router_with(handler, answer="after")
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(process, router, SETTLED).result() == (500 if failures else 200)
    assert during[0] == 503, "200 would end its retries, though the handler may still fail"
    assert (process(router, SETTLED), len(heard)) == (200, 1 + failures)


def test_concurrent_deliveries_are_handled_once_before_the_response():
    go, heard = Signal(), []
    router = router_with(lambda event: go.wait(60) and heard.append(event), answer="after")
    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(router.process, SETTLED) for _ in range(8)]
        assert next(as_completed(running)).result() == 503
        go.set()
        assert {each.result() for each in running} == {200, 503}
    assert heard == [SETTLED]


@both_ways
def test_an_event_is_retried_while_the_store_cannot_say_whether_it_was_handled(process, caplog):
    class Half(MemorySeenEvents):
        def finish(self, event_id):
            raise ConnectionError("the store is away")

        def is_finished(self, event_id):
            raise ConnectionError("the store is away")

    router = router_with(heard := Heard(), seen=Half(), answer="after")
    assert [process(router, SETTLED), process(router, SETTLED)] == [200, 503]
    assert heard == [SETTLED]
    assert "'evt_a' was handled, but is not marked as finished" in caplog.text
    assert "cannot tell whether event 'evt_a' is handled" in caplog.text


def test_seen_events_in_memory_are_bounded_and_evict_the_oldest():
    seen: SeenEvents = MemorySeenEvents(max_events=2)
    assert [seen.add(name) for name in "aabcba"] == [True, False, True, True, False, True]
    seen.discard("a")
    seen.discard("never there")
    assert seen.add("a")
    assert not seen.is_finished("a")
    seen.finish("a")
    seen.finish("never there")
    assert [seen.is_finished(name) for name in ("a", "never there")] == [True, False]
    with pytest.raises(ValueError, match="at least 1"):
        MemorySeenEvents(max_events=0)
