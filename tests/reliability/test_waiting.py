"""Waiting for a transfer through the SDK returns its end, whatever the chain does before (interface T4)."""

import asyncio

import chains
import pytest
from worlds import World

from agentpay.errors import TransferOutcomeUnknownError, WaitTimeoutError

pytestmark = pytest.mark.anyio


def waiting_client(world: World):
    client = world.sdk(max_retries=0)
    client._http.monotonic = asyncio.get_running_loop().time  # the pauses are of this loop too
    return client


async def unknown_transfer(world: World, client, source, to) -> str:
    with pytest.raises(TransferOutcomeUnknownError) as unknown:
        await client.transfers.create(from_=source.account_id, to=to.account_id, amount=7)
    assert unknown.value.transfer_id is not None
    return unknown.value.transfer_id


async def test_waiting_for_a_transfer_with_unknown_outcome_ends_when_it_settles(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    client = waiting_client(world)
    world.chain.not_final(10**6)
    transfer_id = await unknown_transfer(world, client, source, to)
    with pytest.raises(WaitTimeoutError, match="is submitted after 30 s") as late:
        await client.transfers.wait(transfer_id, total_timeout=30)
    assert late.value.transfer is not None
    assert late.value.transfer.status == "submitted"

    waiting = asyncio.ensure_future(client.transfers.wait(transfer_id))
    await asyncio.sleep(10)
    assert not waiting.done()
    world.chain.clear()
    settled = await waiting
    assert (settled.status, settled.transfer_id) == ("settled", transfer_id)
    assert world.balance(to) == 7_000_000


async def test_a_transfer_that_fails_is_returned_as_failed(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    client = waiting_client(world)
    world.chain.next("send", chains.goes_down)
    transfer_id = await unknown_transfer(world, client, source, to)
    waiting = asyncio.ensure_future(client.transfers.wait(transfer_id, total_timeout=None))
    await asyncio.sleep(10)
    await world.policy(source, paused=True)
    world.chain.clear()
    world.chain.inner.expire_blockhash()
    failed = await waiting
    assert (failed.status, failed.error) == ("failed", "account_paused")
    assert world.balance(to) == 0
