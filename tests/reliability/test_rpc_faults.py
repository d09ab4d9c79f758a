"""The RPC chain behind a faulty network (P8): correct or unavailable, in time, and self-healing.

What becomes of payments, `test_rpc_service_faults.py` states.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import json_rpc_server
import pytest
import rpc_proxy
import rpc_trouble
import rpc_world
from rpc_proxy import RpcProxy
from rpc_world import RpcWorld
from surfpool import Surfpool

from agentpay_server.chain.protocol import ChainUnreachableError

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured, pytest.mark.plugin("cluster")]

TIMEOUT_SECONDS = 2.0
FAULTS = {**rpc_trouble.FAULTS, "delayed beyond the bound": rpc_proxy.delayed(TIMEOUT_SECONDS * 1.5)}


@pytest.fixture
def anyio_backend() -> str:
    """Real sockets need real time."""
    return "asyncio"


@pytest.fixture
async def world(surfpool: Surfpool, proxy: RpcProxy) -> AsyncIterator[RpcWorld]:
    async with rpc_world.world(surfpool, url=proxy.url, timeout_seconds=TIMEOUT_SECONDS) as running:
        yield running


HARMLESS = {"delivered twice", "delayed"}
TOO_LATE = {"silent", "delayed beyond the bound"}


async def recovered(operation: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result once the chain is available again, without anybody doing anything for it."""
    async with asyncio.timeout(120):
        while True:
            try:
                return await operation()
            except ChainUnreachableError:
                await asyncio.sleep(0.05)


# --- Reading


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_read_with_a_fault_is_correct_or_unavailable_in_time(
    world: RpcWorld, proxy: RpcProxy, fault: str
) -> None:
    address = await world.account(1, 25)
    landed = await world.transfer(1, address, 1)
    await world.send(landed)
    chain = world.chain
    held = await chain.token_accounts([address])
    readings: dict[str, tuple[Callable[[], Awaitable[Any]], Callable[[Any], bool]]] = {
        "getMultipleAccounts": (lambda: chain.token_accounts([address]), lambda value: value == held),
        "getSignatureStatuses": (
            lambda: chain.signature_status(landed.signature),
            lambda value: value.is_final and value.failure is None,
        ),
        "getMinimumBalanceForRentExemption": (
            lambda: chain.rent_exemption(77),
            lambda value: value > 890_880,
        ),
    }
    for method, (operation, is_true) in readings.items():
        proxy.next(method, FAULTS[fault])
        try:
            assert is_true(await operation())
            assert fault not in TOO_LATE
        except ChainUnreachableError:
            assert fault not in HARMLESS
        proxy.clear()
        assert is_true(await recovered(operation))


async def test_reads_fail_while_the_chain_is_down_and_succeed_once_it_is_back(
    world: RpcWorld, proxy: RpcProxy
) -> None:
    proxy.always("*", rpc_proxy.request_lost)
    for _ in range(3):
        with pytest.raises(ChainUnreachableError):
            await world.chain.account_size(world.owner(1))
    proxy.clear()
    assert await world.chain.account_size(world.owner(1)) is None


async def test_a_hundred_callers_of_a_silent_chain_wait_no_longer_than_one(
    world: RpcWorld, proxy: RpcProxy
) -> None:
    proxy.always("*", rpc_proxy.silent)
    started = time.monotonic()
    calls = [world.chain.token_accounts([world.token_address(n)]) for n in range(1, 101)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, ChainUnreachableError) for outcome in outcomes)
    assert time.monotonic() - started < 50 * TIMEOUT_SECONDS, "each waited for the one before"


# --- Sending


async def test_a_failed_transaction_reports_its_reason_despite_network_faults(
    world: RpcWorld, proxy: RpcProxy
) -> None:
    recipient = await world.account(2)
    await world.account(1, 10)
    signed = await world.transfer(1, recipient, 11)
    proxy.next("getTransaction", rpc_proxy.reply_lost, rpc_proxy.garbled)
    await world.send(signed)
    failure = (await world.end(signed)).failure
    assert failure is not None
    assert failure.reason == "insufficient_funds"


# --- Lagging nodes


async def test_a_lagging_node_without_the_signature_proves_nothing(world: RpcWorld, proxy: RpcProxy) -> None:
    signed = await world.provision(1)
    await world.send(signed)
    await world.chain.block_height()
    proxy.next("getSignatureStatuses", rpc_proxy.unknown)
    with pytest.raises(ChainUnreachableError, match="lags behind"):
        await world.chain.signature_status(signed.signature)
    assert (await world.end(signed)).failure is None


async def test_another_cluster_at_the_same_url_is_refused(world: RpcWorld, proxy: RpcProxy) -> None:
    async def another(forward: rpc_proxy.Forward) -> Any:
        return json_rpc_server.result(world.owner(1))

    address = await world.account(1, 5)
    proxy.next("getMultipleAccounts", rpc_proxy.request_lost)  # A restart, seen from here.
    proxy.always("getGenesisHash", another)
    for _ in range(3):
        with pytest.raises(ChainUnreachableError):
            await world.balance(address)
    proxy.clear()
    assert await world.balance(address) == 5
