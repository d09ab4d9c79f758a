"""`PaymentAuth(session_cap=…)`: an ordinary client pays by session, with one opening and one close.

The chain is the judge: what the account paid is what the seller settled, to the unit.
"""

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any

import anyio
import httpx
import pytest
from attrs import frozen

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.contract.ext.sessions import Session
from agentpay.errors import AgentPayError, PaidNotDeliveredError, SessionCapExceededError
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall, SessionMode

pytestmark = [pytest.mark.embedded_chain("the seller lives on its chain"), pytest.mark.plugin("paywall")]

PRICE = Decimal("0.001")


@frozen
class World:
    """A payer with 10 USDC, and a seller that sells calls by session."""

    server: AgentPayServer
    client: AgentPay
    account: Account
    shop: Paywall
    seller: httpx.Client
    auth: PaymentAuth

    def call(self, http: httpx.Client | None = None, **options: Any) -> httpx.Response:
        return (http or self.seller).get("/call", **{"auth": self.auth, **options})

    def paid(self, **options: Any) -> Any:
        """Call, and return the voucher that paid it."""
        response = self.call(**options)
        assert response.status_code == 200
        return response.extensions["payment"].session

    def capped(self, cap: str) -> PaymentAuth:
        account_id = self.account.account_id
        return PaymentAuth(self.client, account_id=account_id, session_cap=cap, seller_client=self.seller)

    @property
    def sessions(self) -> list[Session]:
        return list(self.client.sessions.list(account_id=self.account.account_id))

    def is_settled_with(self, amount: Decimal) -> bool:
        """Whether the only session has ended with an amount, in the books, on chain and at the seller."""
        (session,) = self.sessions
        spent = 10 - self.client.accounts.balance(self.account.account_id).balance_usdc
        assert session.settled_usdc + session.returned_usdc == session.cap_usdc
        assert spent == self.shop.received_usdc == session.settled_usdc
        return (session.status, spent) == ("settled", amount)


@pytest.fixture
def world(server: AgentPayServer, client: AgentPay, account: Account) -> Iterator[World]:
    with (
        Paywall(server, {}) as shop,
        httpx.Client(transport=shop.transport(), base_url=shop.base_url) as seller,
    ):
        shop.sell_by_session("/call", "0.001")
        auth = PaymentAuth(client, account_id=account.account_id, session_cap="1.00", seller_client=seller)
        yield World(server, client, account, shop, seller, auth)


def is_refused_by_its_seller(session: Session) -> bool:
    return (session.status, session.closing_reason) == ("closing", "payee_refuses")


def test_a_loop_of_requests_opens_and_closes_one_session(world: World) -> None:
    with world.auth:
        for number in range(20):
            assert world.paid().running_total_usdc == PRICE * (number + 1)
    world.server.sandbox.clock.advance(1)
    assert world.is_settled_with(20 * PRICE)


def test_a_key_pays_once(world: World) -> None:
    world.paid()
    first, again = [world.paid(extensions={"payment_key": "call-7"}) for _ in range(2)]
    assert (again.charge_id, again.is_replay) == (first.charge_id, True)


def test_the_cap_raises_and_opens_no_second_channel(world: World) -> None:
    auth = world.capped("0.01")
    for _ in range(10):
        world.paid(auth=auth)
    with pytest.raises(SessionCapExceededError):
        world.call(auth=auth)
    assert len(world.sessions) == 1
    auth.close()
    world.paid(auth=auth)
    assert len(world.sessions) == 2


def test_threads_share_one_session(world: World) -> None:
    totals: list[Decimal] = []

    def call() -> None:
        totals.extend(world.paid().running_total_usdc for _ in range(3))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(totals) == [PRICE * (number + 1) for number in range(12)]
    assert len(world.sessions) == 1


@pytest.mark.parametrize("mode", list(SessionMode))
def test_no_mode_takes_more_than_the_vouchers(world: World, mode: SessionMode) -> None:
    world.shop.sell_by_session("/call", "0.001", mode=mode)
    with contextlib.suppress(httpx.TransportError, AgentPayError):
        world.call()
    (session,) = world.sessions
    assert session.running_total_usdc == PRICE
    world.auth.close()
    # The grace period, and what comes before and after it.
    world.server.sandbox.clock.advance(60)
    world.server.sandbox.clock.advance(1_000)
    assert world.is_settled_with(Decimal(0)) or world.is_settled_with(PRICE)


def test_a_seller_that_steals_vouchers_gets_two(world: World) -> None:
    world.paid()
    world.shop.sell_by_session("/call", "0.001", mode="steal_voucher")
    calls = [world.call(params={"number": number}) for number in range(2)]
    assert [each.status_code for each in calls] == [503, 503]
    (session,) = world.sessions
    assert is_refused_by_its_seller(session)
    assert session.running_total_usdc == 3 * PRICE


class Endless(httpx.SyncByteStream):
    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        while self.taken < 100_000:
            self.taken += 1
            yield b"x" * 1024


def test_the_endless_bodies_of_a_seller_are_read_only_up_to_the_limit(world: World) -> None:
    """To vouchers, which are presented twice."""
    world.paid()
    bodies: list[Endless] = []

    def refuses(request: httpx.Request) -> httpx.Response:
        response = world.shop.transport().handle_request(request)
        bodies.append(Endless())
        is_first_402 = response.status_code == 402 and len(bodies) == 1
        return response if is_first_402 else httpx.Response(402, stream=bodies[-1])

    transport = httpx.MockTransport(refuses)
    with (
        httpx.Client(transport=transport, base_url=world.shop.base_url) as http,
        pytest.raises(PaidNotDeliveredError),
    ):
        world.call(http)
    assert len(bodies) == 3
    assert all(body.taken < 40 for body in bodies)


# --- Closing


def test_another_process_closes_a_session_at_its_seller(world: World) -> None:
    world.shop.listen()
    auth = PaymentAuth(world.client, account_id=world.account.account_id, session_cap="1")
    with httpx.Client(base_url=world.shop.base_url) as seller:
        assert world.call(seller, auth=auth, params={"city": "Oslo"}).status_code == 200
    # It knows only the session's identifier.
    with world.server.agent_client(world.account.account_id) as another:
        assert another.sessions.close(next(iter(auth._payer.sessions))).status == "closing"
    world.server.sandbox.clock.advance(1)
    assert world.is_settled_with(PRICE)
    (channel,) = world.shop.channels
    assert (channel.status, channel.settled_usdc) == ("settled", PRICE)


def test_a_close_that_cannot_be_presented_is_forced(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def unreachable(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route", request=request)

    world.paid()
    (session_id,) = world.auth._payer.sessions
    with httpx.Client(transport=httpx.MockTransport(unreachable)) as offline:
        assert world.client.sessions.close(session_id, seller_client=offline).status == "closing"
    assert "the close of session" in caplog.text
    world.server.sandbox.clock.advance(60 + 3600)
    assert world.is_settled_with(PRICE)


# --- Responses that do not come, and async clients


def lose(request: httpx.Request) -> None:
    """Lose the response to a voucher."""
    record = request.extensions.get("payment")
    if record is not None and record.session.charge_id is not None:
        raise httpx.ReadTimeout("no response", request=request)


@pytest.mark.anyio
@pytest.mark.parametrize("is_async", [False, True])
async def test_two_requests_without_a_response_close_the_session(world: World, is_async: bool) -> None:
    inner, ainner = world.shop.transport(), world.shop.async_transport()

    def deaf(request: httpx.Request) -> httpx.Response:
        response = inner.handle_request(request)
        lose(request)
        return response

    async def adeaf(request: httpx.Request) -> httpx.Response:
        response = await ainner.handle_async_request(request)
        lose(request)
        return response

    url, numbers = world.shop.base_url, ({"number": number} for number in range(2))
    if is_async:
        async with (
            world.server.async_client() as client,
            httpx.AsyncClient(transport=httpx.MockTransport(adeaf), base_url=url) as broken,
        ):
            auth = PaymentAuth(client, account_id=world.account.account_id, session_cap="1")
            for number in numbers:
                with pytest.raises(httpx.ReadTimeout):
                    await broken.get("/call", auth=auth, params=number)
    else:
        with httpx.Client(transport=httpx.MockTransport(deaf), base_url=url) as http:
            for number in numbers:
                with pytest.raises(httpx.ReadTimeout):
                    world.call(http, params=number)
    (session,) = world.sessions
    assert is_refused_by_its_seller(session)


@pytest.mark.anyio
async def test_an_async_client_pays_by_session(world: World) -> None:
    async with (
        world.server.async_client() as client,
        httpx.AsyncClient(transport=world.shop.async_transport(), base_url=world.shop.base_url) as http,
    ):
        account_id = world.account.account_id
        async with PaymentAuth(client, account_id=account_id, session_cap="1", seller_client=http) as auth:
            for _ in range(3):
                assert (await http.get("/call", auth=auth)).status_code == 200
    (session,) = world.sessions
    assert session.running_total_usdc == 3 * PRICE


@pytest.mark.anyio
async def test_a_caller_that_gives_up_on_a_refusal_keeps_no_voucher_in_flight(world: World) -> None:
    """Its body has no end, so the voucher is not shown again yet."""
    inner, reached = world.shop.async_transport(), anyio.Event()

    class Silent(httpx.AsyncByteStream):
        """A body that says that it is read, and never arrives."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"wait"
            reached.set()
            await anyio.sleep_forever()

    async def refuses(request: httpx.Request) -> httpx.Response:
        response = await inner.handle_async_request(request)
        if request.url.query and "authorization" in request.headers:
            await response.aread()
            return httpx.Response(402, stream=Silent())
        return response

    async with (
        world.server.async_client() as client,
        httpx.AsyncClient(transport=httpx.MockTransport(refuses), base_url=world.shop.base_url) as http,
        anyio.create_task_group() as tasks,
    ):
        auth = PaymentAuth(client, account_id=world.account.account_id, session_cap="1")
        await http.get("/call", auth=auth)

        async def give_up() -> None:
            await http.get("/call", auth=auth, params={"number": 1})

        tasks.start_soon(give_up)
        await reached.wait()
        tasks.cancel_scope.cancel()
    assert world.server.requests[-1].path.endswith("/outcome")
