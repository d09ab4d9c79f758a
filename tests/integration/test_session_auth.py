"""`PaymentAuth(session_cap=…)`: an ordinary client pays by session, with one opening and one close."""

import threading
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any

import anyio
import httpx
import pytest

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.errors import PaidNotDeliveredError, SessionCapExceededError
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall

pytestmark = [pytest.mark.embedded_chain("the seller lives on its chain"), pytest.mark.plugin("paywall")]


@pytest.fixture
def shop(server: AgentPayServer) -> Iterator[Paywall]:
    with Paywall(server, {}) as paywall:
        paywall.sell_by_session("/call", "0.001")
        yield paywall


@pytest.fixture
def seller(shop: Paywall) -> Iterator[httpx.Client]:
    with httpx.Client(transport=shop.transport(), base_url=shop.base_url) as http:
        yield http


@pytest.fixture
def auth(client: AgentPay, account: Account, seller: httpx.Client) -> PaymentAuth:
    return PaymentAuth(client, account_id=account.account_id, session_cap="1.00", seller_client=seller)


def balance(client: AgentPay, account: Account) -> Decimal:
    return client.accounts.balance(account.account_id).balance_usdc


def test_a_loop_of_requests_opens_and_closes_one_session(
    client: AgentPay, server: AgentPayServer, account: Account, seller: httpx.Client, auth: PaymentAuth
) -> None:
    with auth:
        for number in range(20):
            response = seller.get("/call", auth=auth)
            assert response.status_code == 200
            step = response.extensions["payment"].session
            assert step.running_total_usdc == Decimal("0.001") * (number + 1)
    server.sandbox.clock.advance(1)
    (session,) = client.sessions.list(account_id=account.account_id)
    assert (session.status, session.settled_usdc) == ("settled", Decimal("0.020000"))
    assert balance(client, account) == Decimal("9.98")


def test_a_post_opens_the_channel_with_a_get(
    client: AgentPay, account: Account, seller: httpx.Client, auth: PaymentAuth
) -> None:
    response = seller.post("/call", auth=auth, json={"question": 1})
    assert response.status_code == 200
    assert response.extensions["payment"].session.running_total_usdc == Decimal("0.001")
    assert response.request.method == "POST"


def test_a_key_pays_once(seller: httpx.Client, auth: PaymentAuth) -> None:
    seller.get("/call", auth=auth)
    vouchers = [
        seller.get("/call", auth=auth, extensions={"payment_key": "call-7"}).extensions["payment"].session
        for _ in range(2)
    ]
    assert vouchers[0].charge_id == vouchers[1].charge_id
    assert vouchers[1].is_replay


def test_the_cap_raises_and_opens_no_second_channel(
    client: AgentPay, account: Account, seller: httpx.Client
) -> None:
    auth = PaymentAuth(client, account_id=account.account_id, session_cap="0.01", seller_client=seller)
    for _ in range(10):
        assert seller.get("/call", auth=auth).status_code == 200
    with pytest.raises(SessionCapExceededError):
        seller.get("/call", auth=auth)
    assert len(list(client.sessions.list(account_id=account.account_id))) == 1
    auth.close()
    assert seller.get("/call", auth=auth).status_code == 200
    assert len(list(client.sessions.list(account_id=account.account_id))) == 2


def test_threads_share_one_session(
    client: AgentPay, account: Account, seller: httpx.Client, auth: PaymentAuth
) -> None:
    totals: list[Decimal] = []

    def call() -> None:
        for _ in range(3):
            step = seller.get("/call", auth=auth).extensions["payment"].session
            totals.append(step.running_total_usdc)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(totals) == [Decimal("0.001") * (number + 1) for number in range(12)]
    assert len(list(client.sessions.list(account_id=account.account_id))) == 1


def test_a_seller_that_steals_vouchers_gets_two(
    client: AgentPay, account: Account, shop: Paywall, seller: httpx.Client, auth: PaymentAuth
) -> None:
    seller.get("/call", auth=auth)
    shop.sell_by_session("/call", "0.001", mode="steal_voucher")
    calls = [seller.get("/call", auth=auth, params={"number": number}) for number in range(2)]
    assert [each.status_code for each in calls] == [503, 503]
    (session,) = client.sessions.list(account_id=account.account_id)
    assert (session.status, session.closing_reason) == ("closing", "payee_refuses")
    assert session.running_total_usdc == Decimal("0.003")


def test_the_endless_bodies_of_a_seller_are_read_only_up_to_the_limit(
    shop: Paywall, seller: httpx.Client, auth: PaymentAuth
) -> None:
    """To vouchers, which are presented twice."""
    seller.get("/call", auth=auth)
    bodies = []

    def refuses(request: httpx.Request) -> httpx.Response:
        response = shop.transport().handle_request(request)
        if response.status_code == 402 and not bodies:
            bodies.append(Endless())
            return response
        bodies.append(Endless())
        return httpx.Response(402, stream=bodies[-1])

    transport = httpx.MockTransport(refuses)
    with (
        httpx.Client(transport=transport, base_url=shop.base_url) as http,
        pytest.raises(PaidNotDeliveredError),
    ):
        http.get("/call", auth=auth)
    assert len(bodies) == 3
    assert all(body.taken < 40 for body in bodies)


class Endless(httpx.SyncByteStream):
    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        while self.taken < 100_000:
            self.taken += 1
            yield b"x" * 1024


def test_another_process_closes_a_session_at_its_seller(
    server: AgentPayServer, client: AgentPay, account: Account, shop: Paywall
) -> None:
    shop.listen()
    auth = PaymentAuth(client, account_id=account.account_id, session_cap="1")
    with httpx.Client(base_url=shop.base_url) as seller:
        assert seller.get("/call", auth=auth, params={"city": "Oslo"}).status_code == 200
    session_id = next(iter(auth._payer.sessions))
    # It knows only the session's identifier.
    with server.agent_client(account.account_id) as another:
        assert another.sessions.close(session_id).status == "closing"
    server.sandbox.clock.advance(1)
    session = client.sessions.get(session_id)
    assert (session.status, session.settled_usdc) == ("settled", Decimal("0.001"))
    (channel,) = shop.channels
    assert (channel.status, channel.settled_usdc) == ("settled", Decimal("0.001"))


def test_a_close_that_cannot_be_presented_is_forced(
    server: AgentPayServer,
    client: AgentPay,
    account: Account,
    seller: httpx.Client,
    auth: PaymentAuth,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seller.get("/call", auth=auth)
    (session_id,) = auth._payer.sessions
    with httpx.Client(transport=httpx.MockTransport(_unreachable)) as offline:
        assert client.sessions.close(session_id, seller_client=offline).status == "closing"
    assert "the close of session" in caplog.text
    server.sandbox.clock.advance(60 + 3600)
    session = client.sessions.get(session_id)
    assert (session.status, session.settled_usdc) == ("settled", Decimal("0.001"))


def test_two_requests_without_a_response_close_the_session(
    client: AgentPay, account: Account, seller: httpx.Client, auth: PaymentAuth, shop: Paywall
) -> None:
    seller.get("/call", auth=auth)
    with httpx.Client(transport=_Deaf(shop.transport()), base_url=shop.base_url) as broken:
        for number in range(2):
            with pytest.raises(httpx.ReadTimeout):
                broken.get("/call", auth=auth, params={"number": number})
    (session,) = client.sessions.list(account_id=account.account_id)
    assert (session.status, session.closing_reason) == ("closing", "payee_refuses")


@pytest.mark.anyio
async def test_two_requests_without_a_response_close_the_session_of_an_async_client(
    server: AgentPayServer, account: Account, shop: Paywall
) -> None:
    async with (
        server.async_client() as client,
        httpx.AsyncClient(transport=_Deaf(shop.async_transport()), base_url=shop.base_url) as broken,
    ):
        auth = PaymentAuth(client, account_id=account.account_id, session_cap="1", seller_client=broken)
        for number in range(2):
            with pytest.raises(httpx.ReadTimeout):
                await broken.get("/call", auth=auth, params={"number": number})
        (session,) = [each async for each in client.sessions.list(account_id=account.account_id)]
        assert (session.status, session.closing_reason) == ("closing", "payee_refuses")


@pytest.mark.anyio
async def test_a_caller_that_gives_up_on_a_refusal_keeps_no_voucher_in_flight(
    server: AgentPayServer, account: Account, shop: Paywall
) -> None:
    """Its body has no end, so the voucher is not shown again yet."""
    inner, reached = shop.async_transport(), anyio.Event()

    async def refuses(request: httpx.Request) -> httpx.Response:
        response = await inner.handle_async_request(request)
        if request.url.query and "authorization" in request.headers:
            await response.aread()
            return httpx.Response(402, stream=_Silent(reached))
        return response

    async with (
        server.async_client() as client,
        httpx.AsyncClient(transport=httpx.MockTransport(refuses), base_url=shop.base_url) as http,
        anyio.create_task_group() as tasks,
    ):
        auth = PaymentAuth(client, account_id=account.account_id, session_cap="1")
        await http.get("/call", auth=auth)

        async def give_up() -> None:
            await http.get("/call", auth=auth, params={"number": 1})

        tasks.start_soon(give_up)
        await reached.wait()
        tasks.cancel_scope.cancel()
    assert server.requests[-1].path.endswith("/outcome")


class _Silent(httpx.AsyncByteStream):
    """A body that says that it is read, and never arrives."""

    def __init__(self, reached: anyio.Event) -> None:
        self._reached = reached

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"wait"
        self._reached.set()
        await anyio.sleep_forever()


class _Deaf(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A way to a seller that loses the responses to vouchers."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = self._inner.handle_request(request)
        self._lose(request)
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = await self._inner.handle_async_request(request)
        self._lose(request)
        return response

    @staticmethod
    def _lose(request: httpx.Request) -> None:
        record = request.extensions.get("payment")
        if record is not None and record.session.charge_id is not None:
            raise httpx.ReadTimeout("no response", request=request)


def _unreachable(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("no route", request=request)


@pytest.mark.anyio
async def test_an_async_client_pays_by_session(
    server: AgentPayServer, account: Account, shop: Paywall
) -> None:
    async with (
        server.async_client() as client,
        httpx.AsyncClient(transport=shop.async_transport(), base_url=shop.base_url) as http,
    ):
        auth = PaymentAuth(client, account_id=account.account_id, session_cap="1", seller_client=http)
        async with auth:
            for _ in range(3):
                assert (await http.get("/call", auth=auth)).status_code == 200
        (session,) = [each async for each in client.sessions.list(account_id=account.account_id)]
        assert session.running_total_usdc == Decimal("0.003")
