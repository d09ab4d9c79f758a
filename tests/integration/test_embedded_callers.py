"""The callers of a server in process: threads, event loops, forked children, and callers at its close."""

import asyncio
import concurrent.futures
import logging
import os
import select
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal, localcontext

import anyio
import bounds
import pytest
from server_world import START, server_threads

from agentpay import AgentPay, APIConnectionError, APITimeoutError, AsyncAgentPay
from agentpay_server import AgentPayServer

# --- Threads ----------------------------------------------------------------------------------------------


OWN_THREAD = pytest.raises((RuntimeError, APIConnectionError), match="wait for its own thread")
CLOSED = "this server is closed; create a new one"


def test_a_sync_call_from_the_servers_own_thread_raises_at_once(server: AgentPayServer):
    owner = server._running._owner

    async def inside():
        for call in (
            lambda: server.client().accounts.create(name="a"),
            lambda: server.sandbox.clock.advance(1),
            lambda: server.console.details("acct_x"),
            owner.stop,
        ):
            with OWN_THREAD:
                call()
        return await server.async_client().accounts.create(name="a")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert owner.call(inside()).name == "a"


def test_a_server_is_used_from_any_thread_and_event_loop(server: AgentPayServer):
    client, aclient = server.client(), server.async_client()

    async def create(number):
        accounts = [aclient.accounts.create(name=f"{number}-{each}") for each in range(3)]
        return await asyncio.gather(*accounts)

    def work(number):
        account, *_ = asyncio.run(create(number))
        server.sandbox.fund(account.account_id, number + 1)
        return client.accounts.get(account.account_id).balance_usdc

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [number + 1 for number in range(16)]
    assert len({account.account_id for account in client.accounts.list()}) == 48


# --- Async ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_async_tests_use_a_server_its_inbox_and_its_port_on_each_event_loop(backend):
    before = len(server_threads())

    async def pay():
        async with AgentPayServer(clock=START) as server, AgentPayServer() as receiver:
            client = server.async_client()
            assert isinstance(client, AsyncAgentPay)
            payer, payee = [(await client.accounts.create(name=name)).account_id for name in ("a", "b")]
            await server.async_sandbox.fund(payer, 1)
            url = f"{receiver.listen()}/healthz"
            webhook = await client.webhooks.create(url=url, events=["transfer.settled"])
            inbox = server.webhook_inbox(events=["transfer.settled"])
            transfer = await client.transfers.create(from_=payer, to=payee, amount=1)
            event = await inbox.wait_for_async("transfer.settled")
            assert event.data.transfer_id == transfer.transfer_id
            await inbox.drain_async()
            assert (await inbox.send_again_async(inbox.receipts[0])).status_code == 200
            assert await server.async_sandbox.clock.advance(60) == START + timedelta(minutes=1)
            (posted,) = (each for each in server.deliveries.list() if each.webhook_id == webhook.webhook_id)
            # An HTTP response: the path accepts only GET.
            assert posted.attempts[0].status_code == 405
        return server

    assert not anyio.run(pay, backend=backend).is_running
    assert len(server_threads()) == before


def test_amounts_are_exact_whatever_the_decimal_context_of_the_caller():
    with localcontext() as context, AgentPayServer() as server:
        context.prec = 3
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("a", "b"))
        server.sandbox.fund(payer, "12345.678901")
        client.policies.update(payer, max_daily_spend=Decimal("1234.567891"))
        assert (
            str(client.transfers.create(from_=payer, to=payee, amount="123.456789").amount_usdc)
            == "123.456789"
        )
        assert str(client.accounts.balance(payer).balance_usdc) == "12222.222112"
        assert str(client.accounts.budget(payer).remaining_usdc) == "1111.111102"
        assert server.requests.one(path="/v1/transfers").body["amount"] == "123.456789"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_block_closes_its_server_and_disarms_its_fault(backend):
    async def cancelled():
        with anyio.CancelScope() as scope:
            async with AgentPayServer() as server:
                with anyio.CancelScope() as inner:
                    async with server.async_sandbox.fault("chain_down"):
                        inner.cancel()
                        await anyio.sleep_forever()
                faults = await server.async_sandbox.faults()
                scope.cancel()
                await anyio.sleep_forever()
        return server.is_running, faults.data

    assert anyio.run(cancelled, backend=backend) == (False, ())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_the_servers_thread_and_can_start_its_own(server: AgentPayServer):
    client = server.client()

    def child() -> str:
        with pytest.raises(APIConnectionError, match="create a server here"):
            client.with_options(max_retries=0).accounts.list()
        with pytest.raises(RuntimeError, match="create a server here"):
            _ = server.events
        server.close()
        with AgentPayServer() as own:
            return own.client().accounts.create(name="of the child").name

    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, child().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        is_answered = select.select([pipe], [], [], 30)[0]
        if not is_answered:
            os.kill(pid, signal.SIGKILL)
        assert (pipe.read(), os.waitpid(pid, 0)[1]) == ("of the child", 0)
    assert client.accounts.list().data == ()


@pytest.mark.anyio
async def test_a_disconnecting_caller_cancels_nothing(server: AgentPayServer):
    client, sync = server.async_client(), server.client()
    payer, payee = sync.accounts.create(name="a"), sync.accounts.create(name="b")
    server.sandbox.fund(payer.account_id, 100)

    for steps in range(12):
        key = f"key-{steps}"
        call = asyncio.ensure_future(
            client.transfers.create(
                from_=payer.account_id, to=payee.account_id, amount="1", idempotency_key=key
            )
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call

        # Whatever became of it, the key is all that is needed to go on: once, and once only.
        again = await client.transfers.create(
            from_=payer.account_id, to=payee.account_id, amount="1", idempotency_key=key
        )
        assert again.status == "settled"

    assert sync.accounts.get(payee.account_id).balance_usdc == 12


# --- Closing while others call ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_during_close_finish_or_raise(caplog: pytest.LogCaptureFixture, is_async: bool):
    server = AgentPayServer().start()
    client, async_client, ends = server.client(), server.async_client(), []
    begun = threading.Barrier(7)

    async def create_until_the_end():
        while await async_client.accounts.create(name="a"):
            pass

    def call_until_the_end():
        begun.wait()
        try:
            if is_async:
                asyncio.run(create_until_the_end())
            while client.accounts.list().data is not None:
                pass
        except (RuntimeError, APIConnectionError) as error:
            ends.append(CLOSED in str(error))

    callers = [threading.Thread(target=call_until_the_end, daemon=True) for _ in range(6)]
    for caller in callers:
        caller.start()
    begun.wait()
    client.accounts.create(name="a")
    server.close()
    for caller in callers:
        caller.join(120)

    assert ends == [True] * 6
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# --- Slow responses ---------------------------------------------------------------------------------------


@pytest.fixture
def slow(server: AgentPayServer, monkeypatch: pytest.MonkeyPatch) -> AgentPayServer:
    """A server that never responds to the list of accounts."""

    async def never(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(server._running.server.services.built["accounts"].accounts, "list", never)
    return server


def listed(client: AgentPay | AsyncAgentPay, **options) -> None:
    """List accounts, which takes for ever."""
    lists = client.with_options(**options).accounts.list

    async def alisted():
        await lists()

    if isinstance(client, AsyncAgentPay):
        asyncio.run(alisted())
    else:
        _ = lists().data


CLIENTS = pytest.mark.parametrize("client_of", [AgentPayServer.client, AgentPayServer.async_client])


@CLIENTS
def test_a_slow_call_times_out_and_the_server_continues(slow: AgentPayServer, client_of):
    with pytest.raises(APITimeoutError):
        listed(client_of(slow), timeout=0.02, max_retries=0)
    assert slow.client().accounts.create(name="a").name == "a"


@CLIENTS
def test_endless_calls_are_cancelled_by_the_close(
    slow: AgentPayServer, monkeypatch: pytest.MonkeyPatch, client_of
):
    bounds.shorten(monkeypatch, embedded_last_calls_seconds=0.02)
    client, ends, under_way = client_of(slow), [], threading.Event()

    def call():
        under_way.set()
        try:
            listed(client)
        except (RuntimeError, APIConnectionError) as error:
            ends.append(CLOSED in str(error))

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    under_way.wait()
    slow.close()
    caller.join(120)

    assert ends == [True]


def test_close_does_not_wait_for_a_cancelled_call(slow: AgentPayServer):
    call = slow._running._owner._submit(asyncio.sleep(3600))
    assert call.cancel()
    assert concurrent.futures.wait({call}, timeout=60).not_done == set()
