"""Leases: if a process dies between post and commit, the event is posted again with its identifier (P11)."""

import asyncio
import random
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import pytest
from server_world import START
from sqlalchemy import select

from agentpay import webhooks
from agentpay.contract.accounts import CreateAccount
from agentpay.contract.ext.deliveries import Delivery, ListDeliveries, ListEvents, ReplayEvent
from agentpay.contract.transfers import CreateTransfer
from agentpay.contract.webhooks import CreateWebhook
from agentpay_server import Settings
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import Storage
from agentpay_server.assembly.server import start_server
from agentpay_server.contract.sandbox import Fund
from agentpay_server.database import tables
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.ledger import deliveries as store
from agentpay_server.ledger.deliveries import LEASE_US
from agentpay_server.platform.clock import SystemClock, manual_clock, to_us
from agentpay_server.platform.principals import Principal
from agentpay_server.platform.tasks import Tasks
from agentpay_server.platform.vault import Vault
from agentpay_server.webhooks import sender as service
from agentpay_server.webhooks.http import HttpPoster
from agentpay_server.webhooks.sender import WebhookSender

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

URL = "http://receiver.invalid/"
KEY = bytes(32)


class Receiver(httpx.AsyncBaseTransport):
    """A receiver within the process that notes every post, and takes its time."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.posts: list[httpx.Request] = []
        self.open: dict[str, int] = {}
        self.met = False
        """Whether two attempts at one event ever met."""
        self._chance = chance

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        event_id = request.headers["x-service-event-id"]
        self.posts.append(request)
        self.open[event_id] = self.open.get(event_id, 0) + 1
        self.met |= self.open[event_id] > 1
        for _ in range(0 if self._chance is None else self._chance.randrange(6)):
            await asyncio.sleep(0)
        self.open[event_id] -= 1
        return httpx.Response(200, stream=httpx.ByteStream(b""))

    @property
    def ids(self) -> list[str]:
        return [request.headers["x-service-event-id"] for request in self.posts]


class Hanging(httpx.AsyncBaseTransport):
    """A receiver that never responds."""

    def __init__(self) -> None:
        self.posted = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.posted.set()
        await asyncio.Event().wait()
        raise AssertionError


class Yielding:
    """A database that lets others in before and after every unit of work, as one behind a socket does."""

    def __init__(self, inner: MemoryDatabase, chance: random.Random) -> None:
        self._inner = inner
        self._chance = chance

    async def run(self, unit, /, *args, **kwargs):
        await self._wander()
        result = await self._inner.run(unit, *args, **kwargs)
        await self._wander()
        return result

    async def read(self, unit, /, *args, **kwargs):
        await self._wander()
        result = await self._inner.read(unit, *args, **kwargs)
        await self._wander()
        return result

    async def close(self) -> None:
        await self._inner.close()

    async def _wander(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)


class Kept:
    """A database that outlives the server that uses it."""

    def __init__(self) -> None:
        self.inner = MemoryDatabase()
        self.run, self.read = self.inner.run, self.inner.read

    async def close(self) -> None:
        """Keep it."""


@asynccontextmanager
async def runtime_on(database, receiver: Receiver, **options):
    runtime = await start_server(
        ServerConfig(
            clock=options.pop("clock", None) or manual_clock(START), mounts={URL: receiver}, **options
        ),
        Storage(database=database, ledger=database, settings=Settings(encryption_key=KEY)),
    )
    try:
        yield runtime
    finally:
        await runtime.stop()


async def with_events(
    runtime, count: int, principal: Principal | None = None, types: tuple[str, ...] = ("transfer.settled",)
) -> str:
    """Register a webhook, make `count` events of each type for it, and return its secret."""
    principal = principal or runtime.principal
    payer, payee = [
        await runtime.services.built["accounts"].accounts.create(
            principal, CreateAccount(name=name, metadata=None)
        )
        for name in "ab"
    ]
    await runtime.services.built["sandbox"].fund(principal, payer.account_id, Fund(amount=1000))
    webhook = await hooks(runtime).webhooks.create(principal, CreateWebhook(url=URL, events=types))
    for number in range(count):
        request = CreateTransfer(
            from_=payer.account_id, to=payee.account_id, amount=1, idempotency_key=f"k{number}"
        )
        await runtime.services.built["transfers"].transfers.create(principal, request)
    return webhook.secret


async def statuses(runtime) -> list[str]:
    return await runtime.context.database.read(
        lambda connection: list(connection.execute(select(tables.deliveries.c.status)).scalars())
    )


def hooks(runtime) -> Any:
    return runtime.services.built["webhooks"]


async def only(runtime) -> Delivery:
    (delivery,) = (await hooks(runtime).deliveries.list_deliveries(runtime.principal, ListDeliveries())).data
    return delivery


class DiedError(Exception):
    pass


def die(*_):
    raise DiedError


@pytest.fixture
def real_time(monkeypatch: pytest.MonkeyPatch):
    """Real time, as leases see it: a list whose only element is the microsecond."""
    now = [1_000_000_000]
    monkeypatch.setattr(service, "real_now_us", lambda: now[0])
    return now


async def test_an_attempt_posted_but_not_recorded_is_repeated_when_its_lease_expires(
    monkeypatch: pytest.MonkeyPatch, real_time, caplog: pytest.LogCaptureFixture
):
    receiver = Receiver()
    async with runtime_on(MemoryDatabase(), receiver) as runtime:
        secret = await with_events(runtime, 1)
        with monkeypatch.context() as dying:
            dying.setattr(store, "finish_attempt", die)
            await runtime.services.schedule.advance(0)
        assert len(receiver.posts) == 1
        assert "delivery.failed" in caplog.text

        real_time[0] += LEASE_US - 1
        await runtime.services.schedule.advance(0)
        assert len(receiver.posts) == 1, "it may still be in progress"
        real_time[0] += 1
        await runtime.services.schedule.advance(0)

        first, second = receiver.posts
        assert first.content == second.content
        assert first.headers == second.headers, "the attempt is the same one: its number and its signature"
        webhooks.verify(second.content, second.headers, secret)
        assert await statuses(runtime) == ["delivered"]


async def test_a_leased_delivery_cannot_be_claimed_again(real_time):
    receiver = Receiver()
    async with runtime_on(MemoryDatabase(), receiver) as runtime:
        await with_events(runtime, 3)
        deliveries = hooks(runtime).sender

        first = await deliveries.claim(2)
        second = await deliveries.claim(2)

        assert (len(first), len(second), await deliveries.claim(2)) == (2, 1, [])
        assert await deliveries.next_due_us() is None
        real_time[0] += LEASE_US
        assert await deliveries.next_due_us() is not None
        assert await deliveries.claim(9) == [*first, *second]


async def test_an_attempt_that_ends_after_its_lease_is_posted_once(real_time):
    receiver = Receiver()
    async with runtime_on(MemoryDatabase(), receiver) as runtime:
        await with_events(runtime, 1)
        (slow,) = await hooks(runtime).sender.claim(1)
        real_time[0] += LEASE_US
        (quick,) = await hooks(runtime).sender.claim(1)

        await hooks(runtime).sender.attempt(quick)
        await hooks(runtime).sender.attempt(slow)

        assert len(receiver.posts) == 2
        attempts = await runtime.context.database.read(store.attempts, slow.delivery_id)
        assert [attempt.attempt for attempt in attempts] == [1]


async def test_a_new_process_voids_earlier_leases():
    receiver, database = Receiver(), Kept()
    async with runtime_on(database, receiver) as killed:
        await with_events(killed, 3)
        # Killed: after a claim, after a post, and before anything.
        claimed = await hooks(killed).sender.claim(2)
        headers = hooks(killed).sender._headers(claimed[1], claimed[1].body.encode(), 1, 0)
        await hooks(killed).poster.post(claimed[1].url, headers, claimed[1].body.encode())

    async with runtime_on(database, receiver) as restarted:
        await restarted.services.schedule.advance(0)

        assert await statuses(restarted) == ["delivered"] * 3
        assert receiver.ids[0] == claimed[1].event_id
        assert (len(receiver.ids), len(set(receiver.ids))) == (4, 3)
        by_id = {request.headers["x-service-event-id"]: request.content for request in receiver.posts}
        assert by_id[claimed[1].event_id] == receiver.posts[0].content
    await database.inner.close()


async def test_a_delivery_with_an_unreadable_secret_is_undelivered_and_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
):
    receiver = Receiver()
    async with runtime_on(MemoryDatabase(), receiver) as runtime:
        secret = await with_events(runtime, 1)
        with monkeypatch.context() as other:
            other.setattr(runtime.context.vault, "_cipher", Vault(bytes(range(32)))._cipher)
            await runtime.services.schedule.advance(10**11)

        assert receiver.posts == []
        delivery = await only(runtime)
        assert (delivery.status, delivery.next_attempt_at) == ("undelivered", None)
        assert [attempt.status_code for attempt in delivery.attempts] == [None] * 5
        assert {attempt.error for attempt in delivery.attempts} == {service.UNSIGNED}
        assert secret not in str(delivery)

        await hooks(runtime).deliveries.replay(runtime.principal, delivery.event_id, ReplayEvent())
        await runtime.services.schedule.advance(0)
        (post,) = receiver.posts
        webhooks.verify(post.content, post.headers, secret)


class Raising(httpx.AsyncBaseTransport):
    """A receiver for which the HTTP library raises an unusual exception."""

    def __init__(self, error: BaseException) -> None:
        self.posts = 0
        self._error = error

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.posts += 1
        raise self._error


class ForeignError(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        ForeignError("http://receiver.invalid/secret"),
        ZeroDivisionError(),
        RecursionError(),
        ExceptionGroup("both", [OSError(), ValueError()]),
        asyncio.CancelledError(),
        asyncio.InvalidStateError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_any_exception_of_an_attempt_is_a_failed_attempt(error, real_time):
    receiver = Raising(error)
    async with runtime_on(MemoryDatabase(), receiver) as runtime:
        await with_events(runtime, 1)
        await runtime.services.schedule.advance(0)
        delivery = await only(runtime)
        assert (delivery.status, len(delivery.attempts)) == ("retrying", 1)
        assert await hooks(runtime).sender.next_due_us() is not None, "no lease is left"

        await runtime.services.schedule.advance(10**11)

        delivery = await only(runtime)
        assert (delivery.status, delivery.next_attempt_at) == ("undelivered", None)
        assert {attempt.error for attempt in delivery.attempts} == {f"no answer: {type(error).__name__}"}
        assert (receiver.posts, len(delivery.attempts)) == (5, 5)


async def test_an_attempt_that_is_ended_with_its_server_is_not_posted():
    """It was not the receiver's fault: the next start makes the same attempt."""
    receiver, database = Hanging(), Kept()
    async with runtime_on(database, receiver) as runtime:
        await with_events(runtime, 1)
        (delivery,) = await hooks(runtime).sender.claim(1)
        attempt = asyncio.create_task(hooks(runtime).sender.attempt(delivery))
        await receiver.posted.wait()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        assert await runtime.context.database.read(store.attempts, delivery.delivery_id) == []
    await database.inner.close()


@pytest.mark.parametrize("seed", range(20))
async def test_every_event_arrives_through_kills_and_restarts(
    monkeypatch: pytest.MonkeyPatch, seed, caplog: pytest.LogCaptureFixture
):
    chance, receiver, database = random.Random(seed), Receiver(), Kept()
    types, count = ("transfer.initiated", "transfer.settled"), 20
    async with runtime_on(database, receiver) as first:
        secret = await with_events(first, count // 2, types=types)
    finish = store.finish_attempt

    def maybe_die(*args):
        if chance.random() < 0.5:
            raise DiedError
        return finish(*args)

    with monkeypatch.context() as dying:
        dying.setattr(store, "finish_attempt", maybe_die)
        for _ in range(3):
            async with runtime_on(database, receiver) as doomed:
                await doomed.services.schedule.advance(0)
    async with runtime_on(database, receiver) as last:
        await last.services.schedule.advance(0)
        assert await statuses(last) == ["delivered"] * count
        recorded = await last.context.database.read(
            lambda connection: [
                event_id
                for event_id, type_ in connection.execute(
                    select(tables.events.c.event_id, tables.events.c.type)
                )
                if type_ in types
            ]
        )
    assert set(receiver.ids) == set(recorded)
    for request in receiver.posts:
        assert webhooks.unwrap(request.content, request.headers, secret).id in recorded
    await database.inner.close()


@pytest.mark.parametrize("seed", range(10))
async def test_two_dispatchers_never_attempt_the_same_delivery_at_once(seed):
    chance = random.Random(seed)
    receiver, count = Receiver(chance), 40
    database = MemoryDatabase()
    async with runtime_on(database, receiver) as runtime:
        await with_events(runtime, count)
        context = runtime.context
        yielding = Yielding(database, chance)
        clock, tasks = SystemClock(), Tasks()
        poster = HttpPoster(public_only=False, mounts={URL: receiver})
        shared = attrs.evolve(context, database=yielding, clock=clock, tasks=tasks)
        workers = [WebhookSender(shared, poster) for _ in range(2)]

        async def work(worker):
            while await worker.next_due_us() is not None or worker._attempts:
                await worker.run_due()
                await asyncio.sleep(0)

        await asyncio.gather(*(work(worker) for worker in workers))
        await tasks.stop(within_seconds=5)
        await poster.close()

        assert not receiver.met
        assert sorted(receiver.ids) == sorted(set(receiver.ids))
        assert len(receiver.ids) == count
        assert await statuses(runtime) == ["delivered"] * count


class RunningAt:
    """A clock that is not moved by hand, and shows one time."""

    is_manual = False

    def now_us(self) -> int:
        return to_us(START)


def dispatcher(runtime) -> WebhookSender:
    """Return what claims as on a running clock."""
    return WebhookSender(attrs.evolve(runtime.context, clock=RunningAt()), hooks(runtime).poster)


async def replayed_to(runtime, count: int, principal=None) -> str:
    """Register another webhook, replay the newest `count` events to it, and return its identifier."""
    principal = principal or runtime.principal
    webhook = await hooks(runtime).webhooks.create(
        principal, CreateWebhook(url=URL, events=("transfer.rejected",))
    )
    page = await hooks(runtime).deliveries.list_events(
        principal, ListEvents(type="transfer.settled", limit=count)
    )
    for event in page.data:
        await hooks(runtime).deliveries.replay(
            principal, event.id, ReplayEvent(webhook_id=webhook.webhook_id)
        )
    return webhook.webhook_id


async def test_a_claim_is_limited_per_endpoint():
    async with runtime_on(MemoryDatabase(), Receiver()) as runtime:
        await with_events(runtime, 20)
        deliveries = dispatcher(runtime)

        first = await deliveries.claim(5)
        second = await deliveries.claim(64)
        assert len(first) + len(second) == store.TO_ONE_ENDPOINT_AT_ONCE == 8
        assert await deliveries.claim(64) == []
        await deliveries.attempt(second[0])
        third = await deliveries.claim(64)

        assert len(third) == 1
        taken = [delivery.delivery_id for delivery in (*first, *second, *third)]
        assert len(set(taken)) == 9


async def test_a_claim_is_limited_per_operator():
    async with runtime_on(MemoryDatabase(), Receiver()) as runtime:
        await with_events(runtime, 10)
        for _ in range(7):
            await replayed_to(runtime, 10)
        deliveries = dispatcher(runtime)

        first = await deliveries.claim(20)
        second = await deliveries.claim(256)

        assert (len(first), len(second)) == (20, store.OF_ONE_OPERATOR_AT_ONCE - 20)
        assert await deliveries.claim(256) == []
        await deliveries.attempt(first[0])
        assert len(await deliveries.claim(256)) == 1


async def test_a_busy_operator_does_not_delay_others():
    async with runtime_on(MemoryDatabase(), Receiver()) as runtime:
        await with_events(runtime, 30)
        other = await runtime.services.built["operators"].keys.create_operator(
            "b", requested_by=runtime.principal
        )
        principal = Principal(operator_id=other.operator_id, key_id=runtime.principal.key_id)
        await with_events(runtime, 1, principal)

        claimed = await dispatcher(runtime).claim(2)

        owners = await runtime.context.database.read(
            lambda connection: dict(
                tuple(row)
                for row in connection.execute(
                    select(tables.deliveries.c.delivery_id, tables.deliveries.c.operator_id)
                )
            )
        )
        assert {owners[delivery.delivery_id] for delivery in claimed} == set(owners.values())


async def test_on_a_manual_clock_deliveries_are_claimed_in_order_of_due_time():
    async with runtime_on(MemoryDatabase(), Receiver()) as runtime:
        await with_events(runtime, 12)
        await replayed_to(runtime, 5)

        claimed = [(await hooks(runtime).sender.claim(1))[0].delivery_id for _ in range(17)]

        by_seq = select(tables.deliveries.c.delivery_id).order_by(tables.deliveries.c.seq)
        assert claimed == await runtime.context.database.read(
            lambda connection: list(connection.execute(by_seq).scalars())
        )
