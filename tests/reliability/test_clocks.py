"""Servers whose clock is wrong, over one PostgreSQL: what they refuse, and the daily limit (P9)."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import machine_clock
import pytest
import stores
from sellers import ORIGIN, Seller
from session_sellers import UptoSeller
from two_servers import started
from worlds import Answer, Party, World, drive

from agentpay_server.chain.protocol import ChainUnreachableError

pytestmark = pytest.mark.anyio

SECOND_US = 1_000_000
HOUR_US, DAY_US = 3_600 * SECOND_US, 86_400 * SECOND_US
MOST = 60
"""More than the readings of the clock during any request."""


class Machine:
    """A machine whose clock is ahead of the others."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return machine_clock.now_us() + self.ahead_us

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Run what is started meanwhile on this machine."""
        with machine_clock.of_tasks(self.now_us):
            yield


@pytest.fixture
def anyio_backend() -> str:
    """A loop whose time is real: PostgreSQL's is."""
    return "asyncio"


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def servers(machine: Machine, request: pytest.FixtureRequest) -> AsyncIterator[tuple[World, World]]:
    """Two servers; the second is on the machine whose clock the test sets.

    A test may give both the same settings as the fixture's parameter.
    """
    url = await stores.fresh_url()
    settings = {"session_lifetime_seconds": 3_600.0, **getattr(request, "param", {})}
    server = await started(url, None, None, **settings)
    with machine.in_use():
        other = await started(url, server.chain, server.runtime.operator.key, **settings)
    # The second has created an unused chain from the ledger: the first continues from there.
    with suppress(ChainUnreachableError):
        await server.chain.latest_blockhash()
    yield server, other
    await other.stop()
    await server.stop()
    stores.run.free.append(url)


async def not_ready(server: World) -> list[str]:
    return list((await server.request("GET", "/readyz")).body.get("not_ready", []))


async def test_a_server_25_hours_ahead_does_not_pass_the_daily_limit(
    servers: tuple[World, World], machine: Machine
) -> None:
    server, ahead = servers
    source, to = await server.account("20"), await server.outside()
    await server.policy(source, max_daily_spend=5)
    machine.ahead_us = 25 * HOUR_US
    for number in range(12):
        if number < 6:
            await server.transfer(f"right-{number}", source, to, "0.79")
        else:
            with machine.in_use():
                await ahead.transfer(f"ahead-{number}", source, to, "0.79")
    assert server.balance(to) == 6 * 790_000


async def test_a_server_whose_clock_is_wrong_signs_nothing_until_it_is_corrected(
    servers: tuple[World, World], machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentpay_server")
    server, wrong = servers
    source, to = await server.account("20"), await server.outside()
    await server.policy(source, escalation_threshold=3)
    pending = await server.transfer("large", source, to, "3")
    session = await server.opened_session("session", source, to, "1")
    settled = await server.transfer("before", source, to, "0.5")
    assert (pending.status, settled.status) == (202, 200)
    seller = Seller(server.chain, server.runtime.context.signer, drive)
    await seller._open()
    payment = {
        "account_id": source.account_id,
        "idempotency_key": "payment",
        "origin": ORIGIN,
        **seller.ask(),
    }
    sent = len(server.chain.sent)
    machine.ahead_us = -11 * SECOND_US
    with machine.in_use():
        await wrong.runtime.context.clock_check.check()
        assert await not_ready(wrong) == ["clock"]
        refused = [
            await wrong.transfer("now", source, to, "0.5"),
            await wrong.request("POST", "/ext/v1/payments", payment),
            await wrong.open_session("another", source, to, "1"),
            await wrong.charge("charge", session, "0.1"),
            await wrong.close_session(session),
            await wrong.approve(pending.transfer_id or ""),
            await wrong.request("POST", "/v1/accounts", {"name": "another"}),
        ]
        for answer in refused:
            assert (answer.status, answer.error) == (503, "service_unavailable"), answer
            assert "clock" in answer.body["message"]
            assert answer.headers["retry-after"]
        assert len(server.chain.sent) == sent
        # What is decided already needs no clock, and a pause never waits.
        assert (await wrong.transfer("before", source, to, "0.5")).body == settled.body
        await wrong.policy(source, paused=True)
        await wrong.policy(source, paused=False)
        machine.ahead_us = 0
        await wrong.runtime.context.clock_check.check()
        assert await not_ready(wrong) == []
        done = [
            await wrong.transfer("now", source, to, "0.5"),
            await wrong.request("POST", "/ext/v1/payments", payment),
            await wrong.charge("charge", session, "0.1"),
            await wrong.close_session(session),
            await wrong.approve(pending.transfer_id or ""),
        ]
    assert [answer.status for answer in done] == [200, 201, 200, 200, 200], done
    lines = [str(record.msg) for record in caplog.records if str(record.msg).startswith("clock.")]
    assert [line.split()[0] for line in lines] == ["clock.differs", "clock.agrees"]


async def test_a_clock_that_is_set_while_a_server_runs_is_noticed_at_once(
    servers: tuple[World, World], machine: Machine
) -> None:
    server, other = servers
    source, to = await server.account("20"), await server.outside()
    with machine.in_use():
        assert (await other.transfer("before", source, to, "1")).status == 200
        machine.ahead_us = DAY_US
        # The database's clock has not been read again.
        assert (await other.transfer("after", source, to, "1")).error == "service_unavailable"
        assert await not_ready(other) == ["clock"]


async def test_what_was_signed_before_a_clock_went_wrong_is_posted_once_it_is_right(
    servers: tuple[World, World], machine: Machine
) -> None:
    server, other = servers
    source, to = await server.account("20"), await server.outside()
    await server.policy(source, max_daily_spend=5)
    assert (await server.transfer("first", source, to, "3")).status == 200
    is_sent = asyncio.Event()

    async def sends_and_loses_its_clock(raw: bytes, **more: bool) -> None:
        await send(raw, **more)
        machine.ahead_us = 25 * HOUR_US
        is_sent.set()

    with pytest.MonkeyPatch.context() as patch:
        send = other.chain.send
        patch.setattr(other.chain, "send", sends_and_loses_its_clock)
        with machine.in_use():
            paying = asyncio.ensure_future(other.transfer("second", source, to, "1.5"))
        await is_sent.wait()
    # If the payment were posted tomorrow, the window would no longer contain the first.
    assert (await server.transfer("third", source, to, "3")).error == "policy_violation"
    assert not paying.done()
    machine.ahead_us = 0
    with machine.in_use():
        await other.runtime.context.clock_check.check()
    assert (await paying).status == 200
    assert server.balance(to) == 4_500_000


async def test_a_server_that_starts_with_a_wrong_clock_is_not_ready(machine: Machine) -> None:
    machine.ahead_us = 11 * SECOND_US
    url = await stores.fresh_url()
    with machine.in_use():
        wrong = await started(url, None, None)
        try:
            assert await not_ready(wrong) == ["clock"]
            assert (await wrong.request("POST", "/v1/accounts", {"name": "a"})).error == "service_unavailable"
        finally:
            await wrong.stop()
    stores.run.free.append(url)


class Glitch:
    """A machine whose clock is 25 h ahead in one reading."""

    def __init__(self, at_reading: int) -> None:
        self._at_reading = at_reading
        self.readings = 0

    def now_us(self) -> int:
        self.readings += 1
        return machine_clock.now_us() + (25 * HOUR_US if self.readings == self._at_reading else 0)


async def at_each_reading(request: Callable[[], Awaitable[Answer]]) -> AsyncIterator[Answer]:
    """Repeat a request; at each time another one of its readings of the clock is wrong."""
    for number in itertools.count(1):
        glitch = Glitch(number)
        with machine_clock.of_tasks(glitch.now_us):
            answer = await request()
        assert answer.status < 500 or answer.status == 503, answer
        if glitch.readings < number:
            assert number > 1
            return
        yield answer


async def paid(server: World, seller: Seller, payer: Party) -> Answer:
    body = {"account_id": payer.account_id, "idempotency_key": "key", "origin": ORIGIN}
    answer = await server.request("POST", "/ext/v1/payments", {**body, **seller.ask("x402_v2", 1_000_000)})
    if answer.status == 201:
        await server.chain.send(seller.cosigned(answer.body["header"]))
        await server.runtime.services.built["payments"].watch.poll()
    return answer


async def used(server: World, payer: Party, to: Party) -> Answer:
    answer = await server.open_session("key", payer, to, "1")
    if answer.status == 201 and answer.body["status"] == "open":
        session_id = answer.body["session_id"]
        assert (await server.charge("charge", session_id, "1")).status == 200
        assert (await server.close_session(session_id)).status == 200
    return answer


@pytest.mark.parametrize("by", ["operator", "agent"])
@pytest.mark.parametrize("spend", ["transfer", "payment", "session"])
async def test_a_key_that_one_wrong_reading_of_the_clock_shows_as_expired_pays_once(
    servers: tuple[World, World], spend: str, by: str
) -> None:
    server, _ = servers
    payer, to = await server.account("100"), await server.account()
    seller = Seller(server.chain, server.runtime.context.signer, drive)
    await seller._open()
    if by == "agent":
        server.http.headers.update(await server.agent_of(payer))
    request = {
        "transfer": lambda: server.transfer("key", payer, to, "1"),
        "payment": lambda: paid(server, seller, payer),
        "session": lambda: used(server, payer, to),
    }[spend]
    assert (await request()).status in {200, 201}
    assert server.balance(payer) == 99_000_000
    async for _ in at_each_reading(request):
        assert server.balance(payer) == 99_000_000


async def test_one_wrong_reading_of_the_clock_passes_no_daily_limit(servers: tuple[World, World]) -> None:
    server, _ = servers
    payer, to = await server.account("100"), await server.account()
    await server.policy(payer, max_daily_spend=1)
    assert (await server.transfer("first", payer, to, "1")).status == 200
    keys = itertools.count()
    async for _ in at_each_reading(lambda: server.transfer(f"key {next(keys)}", payer, to, "1")):
        assert server.balance(to) == 1_000_000


@pytest.mark.parametrize("servers", [{"fee_budget_sol": "0.00005", "max_accounts_per_day": 2}], indirect=True)
async def test_one_wrong_reading_of_the_clock_passes_no_limit_of_what_the_treasury_pays(
    servers: tuple[World, World],
) -> None:
    server, _ = servers
    payer, to = await server.account("100"), await server.account()
    for number in range(2):
        session = await server.opened_session(f"session {number}", payer, to, "1")
        assert (await server.close_session(session)).status == 200
    for request, error in (
        (lambda: server.open_session("another", payer, to, "1"), "fee_budget_exceeded"),
        (lambda: server.request("POST", "/v1/accounts", {"name": "another"}), "rate_limited"),
    ):
        async for answer in at_each_reading(request):
            assert answer.error in {error, "service_unavailable"}, answer


class Receiver:
    """The receiver of a webhook, which two servers post to. It is slow until it is told to respond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, servers: tuple[World, World], status: int) -> None:
        self.posts = 0
        self._status = status
        self._may_respond = asyncio.Event()
        self._servers = servers
        for server in servers:
            # Nothing is posted but by the test.
            server.runtime.context.tasks.end_loops()
            monkeypatch.setattr(server.runtime.services.built["webhooks"].poster, "post", self._post)

    async def _post(self, *_: object, **__: object) -> Any:
        self.posts += 1
        await self._may_respond.wait()
        return SimpleNamespace(status_code=self._status, error=None, duration_ms=1)

    async def expect(self, payer: Party) -> None:
        """Let an event be due."""
        server, _ = self._servers
        webhook = {"url": "https://receiver.invalid", "events": ["transfer.settled"]}
        assert (await server.request("POST", "/v1/webhooks", webhook)).status == 201
        assert (await server.transfer("key", payer, await server.outside(), "1")).status == 200

    async def respond(self) -> None:
        """Respond to the attempts that have begun, and wait until their results are stored."""
        self._may_respond.set()
        for server in self._servers:
            await asyncio.gather(*server.runtime.services.built["webhooks"].sender._attempts)


@pytest.mark.parametrize("is_attempted", [False, True], ids=["in progress", "to be repeated"])
async def test_a_server_whose_clock_is_ahead_posts_no_attempt_of_another(
    servers: tuple[World, World], machine: Machine, monkeypatch: pytest.MonkeyPatch, is_attempted: bool
) -> None:
    server, ahead = servers
    receiver = Receiver(monkeypatch, servers, 500)
    await receiver.expect(await server.account("1"))
    await server.runtime.services.built["webhooks"].sender.run_due()
    if is_attempted:
        await receiver.respond()
    # Set between the schedule's check and the claim.
    machine.ahead_us = HOUR_US
    with machine.in_use():
        await ahead.runtime.services.built["webhooks"].sender.run_due()
    await receiver.respond()
    assert receiver.posts == 1


async def test_a_server_whose_clock_is_ahead_ends_nothing_before_its_time(
    servers: tuple[World, World], machine: Machine
) -> None:
    server, wrong = servers
    for each in servers:
        each.runtime.context.tasks.end_loops()
    payer, to = await server.account("10"), await server.account()
    session = await server.opened_session("session", payer, to, "1")
    await server.policy(payer, escalation_threshold=2)
    pending = await server.transfer("pending", payer, to, "2")
    # Set between the schedule's check and the claim.
    machine.ahead_us = 25 * HOUR_US
    services = wrong.runtime.services
    for work in (services.built["sessions"].schedule, services.built["transfers"].approvals):
        with machine.in_use(), suppress(machine_clock.REFUSED):
            await work.run_due()
    assert (await server.get_session(session))["status"] == "open"
    assert (await server.charge("charge", session, "1")).status == 200
    assert (await server.approve(pending.transfer_id or "")).status == 200


async def test_a_server_whose_clock_is_ahead_closes_no_channel_before_its_time(
    servers: tuple[World, World], machine: Machine
) -> None:
    server, wrong = servers
    for each in servers:
        each.runtime.context.tasks.end_loops()
    loop, payer = asyncio.get_running_loop(), await server.account("10")
    seller = UptoSeller(
        server.chain,
        server.runtime.context.signer,
        lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(),
    )
    await seller._open()
    body = {"account_id": payer.account_id, "idempotency_key": "answer", "origin": ORIGIN}
    paid = await server.request("POST", "/ext/v1/payments", {**body, "headers": seller.ask_upto()})
    await asyncio.to_thread(seller.open_channel, paid.body["header"])
    path = f"/ext/v1/payments/{paid.body['transfer_id']}"
    assert (await server.request("GET", path)).body["status"] == "submitted"
    (before,) = await server.rows("channels")
    assert before["status"] == "open"

    machine.ahead_us = 25 * HOUR_US
    with machine.in_use(), suppress(machine_clock.REFUSED):
        await wrong.runtime.services.built["sessions"].schedule.run_due()
    with machine.in_use():
        assert (await wrong.request("GET", path)).body["status"] == "submitted"
    assert await server.rows("channels") == [before]


async def test_requests_with_one_wrong_reading_of_the_clock_are_done_or_can_be_repeated(
    servers: tuple[World, World],
) -> None:
    server, _ = servers
    payer, escalating, to = await server.account("100"), await server.account("100"), await server.account()
    await server.policy(escalating, escalation_threshold=1)
    sessions = [await server.opened_session(f"session {number}", payer, to, "1") for number in range(MOST)]
    pending = [await server.transfer(f"large {number}", escalating, to, "1") for number in range(MOST)]
    # Nothing is done but by the requests.
    server.runtime.context.tasks.end_loops()
    requests: list[Callable[[int], Awaitable[Answer]]] = [
        lambda number: server.transfer(f"small {number}", payer, to, "1"),
        lambda number: server.approve(pending[number].transfer_id or ""),
        lambda number: server.charge("charge", sessions[number], "1"),
        lambda number: server.close_session(sessions[number]),
    ]
    done = [0, 0, 0, 0]
    for place, request in enumerate(requests):
        numbers = itertools.count()
        async for _ in at_each_reading(lambda request=request, numbers=numbers: request(next(numbers))):
            done[place] += 1
    for row in await server.rows("sessions"):
        # No other server has to wait for tomorrow.
        assert (row["closes_us"] or 0) < machine_clock.now_us() + 2 * HOUR_US, row
    for count, request in zip(done, requests, strict=True):
        for number in range(count + 1):
            again = await request(number)
            assert again.status == 200 or again.error == "not_pending", again
    transferred, approved, charged, closed = (count + 1 for count in done)
    assert server.balance(to) == (transferred + approved + min(charged, closed)) * 1_000_000
