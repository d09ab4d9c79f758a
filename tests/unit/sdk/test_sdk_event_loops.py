"""One async client on many event loops: every loop has separate connections, which end with it."""

import asyncio
import gc
import threading

import anyio
import httpx
import pytest
from sdk_world import BACKENDS, KEY

from agentpay import AgentPay, AsyncAgentPay, errors

pytestmark = pytest.mark.unmeasured

PAYMENT = {"from_": "acct_a", "to": "acct_b", "amount": "1"}


def client_of(service, **options):
    return AsyncAgentPay(api_key=KEY, base_url=service.base_url, **options)


def pay(client, key):
    return client.transfers.create(**PAYMENT, idempotency_key=key)


@pytest.mark.parametrize("backends", [*((each,) for each in BACKENDS), BACKENDS])
def test_a_client_works_on_several_event_loops_in_sequence(service, backends):
    client = client_of(service, max_retries=0)
    for number in range(20):
        backend = backends[number % len(backends)]
        transfer = anyio.run(pay, client, f"key-{number}", backend=backend)
        assert transfer.idempotency_key == f"key-{number}"
    assert service.paid == [f"key-{number}" for number in range(20)], "each was asked for once"
    anyio.run(client.close, backend=backends[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_connections_of_a_loop_are_reused_and_closed_when_it_or_the_client_ends(service, backend):
    client = client_of(service)

    async def pay_often():
        async with client_of(service) as closed:
            for number in range(3):
                await pay(closed, f"first-{number}")
        assert service.accepted == 1
        await anyio.to_thread.run_sync(service.wait_until_nobody_is_connected)
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(pay, client, f"key-{number}")

    anyio.run(pay_often, backend=backend)
    service.wait_until_nobody_is_connected()


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_loops_in_two_threads_use_one_client_concurrently(service, backend):
    client = client_of(service, max_retries=0)
    failures = []

    async def pay_often(name):
        for number in range(25):
            transfer = await pay(client, f"{name}-{number}")
            assert transfer.idempotency_key == f"{name}-{number}"

    def run(name):
        try:
            anyio.run(pay_often, name, backend=backend)
        except errors.AgentPayError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(service.paid) == len(set(service.paid)) == 100


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_loop_closed_without_shutdown_does_not_affect_later_loops(service):
    client = client_of(service, max_retries=0)
    for number in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(pay(client, f"key-{number}"))
        loop.close()  # not `asyncio.run`, which would finalize asynchronous generators first
    asyncio.run(client.close())
    gc.collect()
    assert service.paid == ["key-0", "key-1", "key-2"]
    service.wait_until_nobody_is_connected()


def test_closing_on_another_loop_raises_nothing(service):
    client = client_of(service)
    asyncio.run(pay(client, "key-1"))
    asyncio.run(client.close())
    with pytest.raises(errors.ClosedClientError):
        asyncio.run(pay(client, "key-2"))
    service.wait_until_nobody_is_connected()


def test_a_garbage_collected_client_leaves_no_connection_open(service):
    async def pay_and_forget():
        client = client_of(service)
        await pay(client, "key-1")
        del client
        gc.collect()
        await anyio.to_thread.run_sync(service.wait_until_nobody_is_connected)

    asyncio.run(pay_and_forget())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_given_http_client_on_another_loop_raises_outcome_unknown(service):
    """Its connections are its own business; what they raise must not hide that it may have been paid."""
    client = client_of(service, http_client=httpx.AsyncClient(), max_retries=0)
    asyncio.run(pay(client, "key-1"))
    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        asyncio.run(pay(client, "key-2"))
    assert caught.value.idempotency_key == "key-2"
    assert isinstance(caught.value.__cause__, errors.APIConnectionError)
    assert "Event loop is closed" in str(caught.value.__cause__)
    del client, caught
    gc.collect()


def test_without_an_event_loop_a_call_is_refused_unsent(service):
    step = pay(client_of(service), "key-1")
    with pytest.raises(errors.ConfigurationError, match="runs on asyncio or trio"):
        step.send(None)
    assert not service.asked


def test_the_sync_client_works_inside_an_event_loop(service):
    async def main():
        with AgentPay(api_key=KEY, base_url=service.base_url) as client:
            return client.accounts.balance("acct_a")

    assert asyncio.run(main()).account_id == "acct_a"
