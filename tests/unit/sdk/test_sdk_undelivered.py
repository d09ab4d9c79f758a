"""Which requests present a purchase again that ended undelivered, and which buy anew."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from anyio import from_thread, to_thread
from payment_world import FLAVOURS, FORECAST, SELLER, Clock, Seller, World, new_process
from sdk_world import answer, refusal

from agentpay import Payment, errors, payments, testing

Call = dict[str, Any]
FIFTY = 50


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return new_process(monkeypatch)


@pytest.fixture(params=FLAVOURS.values(), ids=FLAVOURS)
def world(request: pytest.FixtureRequest) -> World:
    return World(*request.param)


@pytest.fixture
def sync_world() -> World:
    return World(httpx, "sync")


def results(world: World, *calls: Call | Callable[[], None]) -> list[Any]:
    """Send requests one after another by one client; return status codes and exceptions."""
    found: list[Any] = []

    def all_of(request: Any) -> None:
        for call in calls:
            if not isinstance(call, dict):
                call()
                continue
            given = {"method": "GET", "url": FORECAST, **call}
            given |= {name: given[name]() for name in given if callable(given[name])}
            try:
                found.append(request(**given).status_code)
            except Exception as error:  # noqa: BLE001 - of any library
                found.append(error)

    async def asent(http: Any) -> None:
        await to_thread.run_sync(all_of, lambda **given: from_thread.run(partial(http.request, **given)))

    world.send(asent if world.is_async else lambda http: all_of(http.request))
    return found


def keys(world: World) -> list[str]:
    return [order["idempotency_key"] for order in world.service.orders]


def waits() -> httpx.Response:
    order = {"account_id": "acct_a", "origin": SELLER}
    waiting = testing.make(Payment, status="pending_approval", transfer_id="txn_1", **order)
    return answer(202, waiting.to_dict())


def breaks_off(world: World) -> Any:
    return lambda _: world.seller.response(200, world.chunks(b"sun", world.package.ReadError("gone")))


REJECTED = {"transfer_id": "txn_1", "status": "rejected"}
ENDINGS: dict[str, tuple[Callable[[World], Any] | None, Any, bool]] = {
    "reply lost": (lambda world: world.seller.drops, None, True),
    "500": (lambda world: world.seller.fails, None, True),
    "404": (lambda world: lambda _: world.seller.response(404), None, True),
    "second 402": (lambda world: world.seller.asks, None, True),
    "body breaks off": (breaks_off, None, True),
    "unknown whether it was signed": (None, httpx.ReadTimeout("slow"), True),
    "pending approval": (None, waits, True),
    "200": (lambda world: world.seller.sells, None, False),
    "302": (lambda world: world.seller.redirects("/elsewhere"), None, False),
    "policy": (None, lambda: refusal(402, "policy_violation", **REJECTED), False),
    "unpayable": (None, lambda: refusal(422, "nothing_payable"), False),
    "busy": (None, lambda: refusal(429, "rate_limited"), False),
}
"""What the seller responds to a payment, or the service instead of one; whether an equal request joins it."""


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_an_equal_request_presents_a_purchase_that_ended_undelivered(
    world: World, ending: tuple[Callable[[World], Any] | None, Any, bool]
) -> None:
    reply, decision, is_joined = ending
    first_time = [world.seller.asks] if reply is None else [world.seller.asks, reply(world)]
    world.seller.serves(*first_time, *[world.seller.asks, world.seller.sells] * 3)
    world.service.steps = [decision]
    assert results(world, {}, {}, {}, {})[1:] == [200, 200, 200]
    first, again, *others = keys(world)
    assert (again == first) is is_joined
    # It was delivered then, so that later ones are new purchases.
    assert len({first, again, *others}) == (3 if is_joined else 4)


def stream() -> Iterator[bytes]:
    yield b"how is Oslo"


FORM = {"files": {"photo": ("a.png", b"png")}, "data": {"city": "Oslo"}}
POST = {"method": "POST", "json": {"city": "Oslo"}}
EQUAL: dict[str, tuple[Call, Call, bool]] = {
    "nothing differs": (POST, POST, True),
    "a field of the retry": (POST, {**POST, "headers": {"X-Retry-Count": "1"}}, True),
    "method": (POST, {**POST, "method": "PUT"}, False),
    "query": ({}, {"url": f"{SELLER}/forecast?city=Rome"}, False),
    "body": (POST, {**POST, "json": {"city": "Rome"}}, False),
    "file": ({"method": "POST", **FORM}, {"method": "POST", "files": {"photo": ("a.png", b"jpg")}}, False),
    "stream": ({"method": "POST", "content": stream}, {"method": "POST", "content": stream}, False),
    **{
        name: (POST, {**POST, "headers": {name: "x"}}, False)
        for name in ("Accept", "Accept-Language", "Authorization", "Content-Type", "Range")
    },
    "the same Idempotency-Key": (
        {**POST, "headers": {"Idempotency-Key": "7"}},
        {**POST, "headers": {"Idempotency-Key": "7", "Accept": "x"}},
        True,
    ),
    "another Idempotency-Key": (
        {**POST, "headers": {"Idempotency-Key": "7"}},
        {**POST, "headers": {"Idempotency-Key": "8"}},
        False,
    ),
    "another payment_key": (
        {"extensions": {"payment_key": "7"}},
        {"extensions": {"payment_key": "8"}},
        False,
    ),
}


@pytest.mark.parametrize("case", EQUAL.values(), ids=EQUAL)
def test_equal_requests_are_one_purchase(sync_world: World, case: tuple[Call, Call, bool]) -> None:
    first, second, is_equal = case
    sync_world.seller.serves(*[sync_world.seller.asks, sync_world.seller.fails] * 2)
    results(sync_world, first, second)
    assert len(set(keys(sync_world))) == (1 if is_equal else 2)


def test_a_multipart_body_is_compared_without_its_boundary(world: World) -> None:
    bodies: list[bytes] = []

    def fails(request: Any) -> Any:
        bodies.append(request.content)
        return world.seller.fails(request)

    world.seller.serves(*[world.seller.asks, fails] * 2)
    results(world, {"method": "POST", **FORM}, {"method": "POST", **FORM})
    assert len(set(bodies)) == 2
    assert len(set(keys(world))) == 1


@pytest.mark.parametrize(("seconds", "is_joined"), [(0, True), (600, True), (600.001, False)])
def test_a_purchase_is_joined_until_ten_minutes_after_its_latest_attempt_has_ended(
    sync_world: World, clock: Clock, seconds: float, is_joined: bool
) -> None:
    def pass_time() -> None:
        clock.seconds += seconds

    sync_world.seller.serves(*[sync_world.seller.asks, sync_world.seller.drops] * 3)
    results(sync_world, {}, pass_time, {}, pass_time, {})
    assert len(set(keys(sync_world))) == (1 if is_joined else 3)


def test_a_thousand_purchases_are_remembered_and_the_latest_are_kept(sync_world: World) -> None:
    urls = [f"{SELLER}/{number}" for number in range(1_000 + 1)]
    calls = [*urls, urls[-1], urls[1], urls[0]]
    sync_world.seller.serves(*[sync_world.seller.asks, sync_world.seller.drops] * len(calls))
    results(sync_world, *({"url": url} for url in calls))
    made = keys(sync_world)
    assert made[-3:-1] == [made[1_000], made[1]]
    assert made[-1] not in made[:-1]


def test_each_client_and_account_has_purchases_of_its_own(sync_world: World) -> None:
    sync_world.seller.serves(*[sync_world.seller.asks, sync_world.seller.drops] * 3)
    first, second = sync_world.auth(), sync_world.auth()
    other = sync_world.auth()
    other._account_id = "acct_b"
    for auth in (first, second, other):
        with pytest.raises(httpx.ReadTimeout):
            sync_world.send(lambda http: http.get(FORECAST), auth=auth)
    assert len(set(keys(sync_world))) == 3


class Crowd(Seller):
    """Responds to paid requests only once all of them are in flight."""

    def __init__(self) -> None:
        super().__init__(httpx)
        self.presented: list[str] = []
        self._together = threading.Barrier(FIFTY)

    def handle(self, request: Any) -> Any:
        if "payment-signature" not in request.headers:
            return self.asks(request)
        self.presented.append(request.headers["payment-signature"])
        self._together.wait()
        return self.fails(request)


def test_fifty_at_once_pay_each_and_each_retry_presents_one_of_them(sync_world: World) -> None:
    sync_world.seller = Crowd()
    auth = sync_world.auth()

    def buy(http: Any) -> Any:
        with ThreadPoolExecutor(FIFTY) as threads:
            return list(threads.map(lambda _: _status(http), range(FIFTY)))

    assert sync_world.send(buy, auth=auth) == [500] * FIFTY
    assert len(set(sync_world.seller.presented)) == FIFTY
    assert set(sync_world.send(buy, auth=auth)) == {payments.PaymentRefusedError}
    assert len(set(sync_world.seller.presented[:FIFTY])) == FIFTY
    assert sorted(sync_world.seller.presented[:FIFTY]) == sorted(sync_world.seller.presented[FIFTY:])


def _status(http: Any) -> Any:
    try:
        return http.get(FORECAST).status_code
    except errors.AgentPayError as error:
        return type(error)


@pytest.mark.parametrize("status", ["submitted", "settled"])
@pytest.mark.parametrize("again", ["asks", "fails"])
def test_a_seller_that_fails_again_is_named_with_what_the_service_shows(
    world: World, again: str, status: str
) -> None:
    world.service.status = status
    world.seller.serves(
        world.seller.asks, world.seller.fails, world.seller.asks, getattr(world.seller, again)
    )
    first, error = results(world, {}, {})
    assert first == 500
    is_paid = status == "settled"
    assert type(error) is (errors.PaidNotDeliveredError if is_paid else errors.PaymentRefusedError)
    assert (error.status_code, error.transfer_id) == (402 if again == "asks" else 500, "txn_1")
    assert error.body == (b"{}" if again == "asks" else b"sorry")
    assert ("It is paid" in str(error), "may still settle" in str(error)) == (is_paid, not is_paid)


def test_an_idempotency_key_of_a_request_with_another_body_raises_before_signing(world: World) -> None:
    world.seller.serves(world.seller.asks, world.seller.sells, world.seller.asks, world.seller.asks)
    key = {"headers": {"Idempotency-Key": "order-7"}}
    other = {**POST, **key, "json": {"city": "Rome"}}
    first, second, third = results(world, {**POST, **key}, other, {**other, "method": "PUT"})
    assert first == 200
    assert isinstance(second, errors.IdempotencyConflictError)
    assert "Idempotency-Key" in str(second)
    assert isinstance(third, IndexError), "it is of another method, and is presented"
    assert [each.startswith("http:") for each in keys(world)] == [True, True]


def test_the_key_of_a_header_is_a_digest_that_other_processes_derive_too(sync_world: World) -> None:
    sync_world.seller.serves(sync_world.seller.asks, sync_world.seller.sells)
    results(sync_world, {**POST, "headers": {"Idempotency-Key": "order-7"}})
    text = f'["POST","{FORECAST}","order-7"]'
    assert keys(sync_world) == [f"http:{hashlib.sha256(text.encode()).hexdigest()}"]


@pytest.mark.parametrize("code", ["payment_expired", "payment_failed"])
def test_the_name_of_a_payment_that_never_lands_is_free(world: World, code: str) -> None:
    over = refusal(409, code, transfer_id="txn_1")
    key = {"headers": {"Idempotency-Key": "order-7"}}
    world.seller.serves(world.seller.asks, world.seller.drops, world.seller.asks, world.seller.sells)
    world.service.steps = []
    results(world, key, lambda: world.service.steps.append(over), key)
    first, again, anew = keys(world)
    assert (again, anew) == (first, f"{first}:2")

    world.seller.serves(world.seller.asks)
    world.service.steps = [over]
    (error,) = results(world, {"extensions": {"payment_key": "k"}})
    assert (type(error), error.code) == (errors.ConflictError, code), "the caller chose that key"


def test_a_key_that_another_process_has_passed_is_never_used_again(world: World) -> None:
    """The service frees the key of a failed payment after a day."""
    world.seller.serves(*[world.seller.asks, world.seller.sells] * 2)
    key = {"headers": {"Idempotency-Key": "order-7"}}
    assert results(world, key) == [200]
    (first,) = keys(world)
    world.service.failed = {first, f"{first}:2"}
    assert results(world, key) == [200]
    assert keys(world) == [first, f"{first}:3"]


def test_other_terms_raise_and_keep_the_purchase(world: World) -> None:
    conflict = refusal(409, "idempotency_conflict", transfer_id="txn_1")
    world.seller.serves(world.seller.asks, world.seller.drops, world.seller.asks, world.seller.asks)
    _, error, again = results(world, {}, lambda: world.service.steps.extend([conflict] * 2), {}, {})
    assert [type(each) for each in (error, again)] == [errors.IdempotencyConflictError] * 2
    assert len(set(keys(world))) == 1
    assert len(world.seller.seen) == 4


def test_a_request_that_is_sent_again_itself_and_delivered_is_over(sync_world: World) -> None:
    seller = sync_world.seller
    seller.serves(seller.asks, seller.drops, seller.asks, seller.sells, seller.asks, seller.sells)

    def three(http: Any) -> None:
        request = http.build_request("GET", FORECAST)
        with pytest.raises(httpx.ReadTimeout):
            http.send(request)
        assert http.send(request).status_code == 200
        assert http.get(FORECAST).status_code == 200

    sync_world.send(three)
    first, again, other = keys(sync_world)
    assert first == again != other
