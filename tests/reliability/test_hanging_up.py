"""A caller who goes away stops nothing, and finds the transfer again by its key (P13)."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import chains
import httpx
import pytest
import worlds
from worlds import Party, World

from agentpay.errors import TransferOutcomeUnknownError

T = TypeVar("T")

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]


async def hung_up_after(steps: int, call: Coroutine[Any, Any, object]) -> bool:
    """Cancel a call after a number of wake-ups; return whether it was still in progress."""
    task = asyncio.ensure_future(call)
    for step in range(1, steps + 1):
        await asyncio.sleep(0)
        # A database that is at work elsewhere is one step, during which the last one may come.
        while step < steps and worlds.is_at_work():  # noqa: ASYNC110 - nobody says when, by design
            await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def assert_key_makes_one_transfer(world: World, key: str, source: Party, to: Party) -> None:
    """Send the key again, and find that one transfer of 1 USDC was made under it in all."""
    before = world.balance(to)
    stored = await world.rows("transfers", idempotency_key=key)
    answer = await world.transfer(key, source, to, "1")
    assert (answer.status, answer.body["status"]) == (200, "settled")
    (row,) = await world.rows("transfers", idempotency_key=key)
    assert row["transfer_id"] == answer.transfer_id
    # Work decided before the caller disconnected has been carried out.
    assert [row["status"] for row in stored] == ["settled"] * len(stored)
    assert world.balance(to) == before + (0 if stored else 1_000_000)
    assert world.attempts(answer.transfer_id)[-1] == "landed"


@pytest.mark.parametrize("interrupted", [1, 2])
async def test_a_request_can_be_cancelled_at_any_await(interrupted: int) -> None:
    async with worlds.world(interrupted=interrupted) as world:
        source, to = await world.account("1000"), await world.account()
        was_under_way = []
        for steps in range(90):
            key = f"key-{steps}"
            was_under_way.append(await hung_up_after(steps, world.transfer(key, source, to, "1")))
            await world.rest()
            await assert_key_makes_one_transfer(world, key, source, to)
        assert was_under_way[0]
        assert not was_under_way[-1]
        assert world.balance(to) == 90_000_000
        assert (await world.detail(source))["reserved_usdc"] == "0.000000"


async def test_an_sdk_call_can_be_cancelled_at_any_await() -> None:
    async with worlds.world(interrupted=3) as world:
        source, to = await world.account("1000"), await world.account()
        client = world.sdk()
        steps, was_under_way = 0, True
        while was_under_way:
            key = f"key-{steps}"
            call = client.transfers.create(
                from_=source.account_id, to=to.account_id, amount=1, idempotency_key=key
            )
            was_under_way = await hung_up_after(steps, call)
            await world.rest()
            transfer = await client.transfers.create(
                from_=source.account_id, to=to.account_id, amount=1, idempotency_key=key
            )
            assert transfer.status == "settled"
            steps += 1
        # Every await of the call was the last one once.
        assert steps > 15
        assert world.balance(to) == steps * 1_000_000


async def test_a_cancelled_sdk_call_reports_its_generated_key(world: World) -> None:
    source, to = await world.account("10"), await world.account()
    world.chain.not_final(10**6)
    client = world.sdk()
    call = asyncio.ensure_future(client.transfers.create(from_=source.account_id, to=to.account_id, amount=1))
    await asyncio.sleep(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await call
    (row,) = await world.rows("transfers")
    assert row["idempotency_key"] in "".join(caught.value.__notes__)
    world.chain.clear()
    await world.rest()
    assert (await world.get_transfer(row["transfer_id"]))["status"] == "settled"
    assert world.balance(to) == 1_000_000


async def test_cancelled_waiters_do_not_cancel_the_others(world: World) -> None:
    source, to = await world.account("10"), await world.account()
    world.chain.not_final(5)
    calls = [asyncio.ensure_future(world.transfer("one", source, to, "1")) for _ in range(10)]
    await asyncio.sleep(0.05)
    for call in calls[::2]:
        call.cancel()
    left = await asyncio.gather(*calls[1::2])
    assert {answer.status for answer in left} == {200}
    assert world.balance(to) == 1_000_000
    await asyncio.gather(*calls[::2], return_exceptions=True)


class Impatient(httpx.AsyncBaseTransport):
    """A transport that gives up on a response after the read timeout, while the server works on."""

    def __init__(self, world: World) -> None:
        self._application = world._application

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = asyncio.ensure_future(self._application.handle_async_request(request))
        done, _ = await asyncio.wait([asked], timeout=request.extensions["timeout"]["read"])
        if not done:
            raise httpx.ReadTimeout("scripted", request=request)
        return await asked


async def test_a_transport_timeout_reports_a_key_that_resumes_the_transfer(world: World) -> None:
    source, to = await world.account("10"), await world.account()
    client = worlds.AsyncAgentPay(
        api_key=world.runtime.operator.key,
        base_url=worlds.BASE_URL,
        transport=Impatient(world),
        max_retries=0,
    )
    world.chain.not_final(10**6)
    with pytest.raises(TransferOutcomeUnknownError) as caught:
        await client.transfers.create(from_=source.account_id, to=to.account_id, amount=1, timeout=0.5)
    world.chain.clear()
    transfer = await client.transfers.create(
        from_=source.account_id, to=to.account_id, amount=1, idempotency_key=caught.value.idempotency_key
    )
    assert transfer.status == "settled"
    assert world.balance(to) == 1_000_000
    assert len(await world.rows("transfers")) == 1


async def test_the_sdk_retries_through_an_outage_under_one_key(world: World) -> None:
    source, to = await world.account("10"), await world.account()
    world.chain.next("send", chains.goes_down_after)
    client = world.sdk(max_retries=8)
    call = asyncio.ensure_future(client.transfers.create(from_=source.account_id, to=to.account_id, amount=1))
    await asyncio.sleep(60)
    world.chain.is_down = False
    transfer = await call
    assert transfer.status == "settled"
    assert world.balance(to) == 1_000_000
    assert len(await world.rows("transfers")) == 1


async def test_a_transfer_with_unknown_outcome_has_its_signed_bytes_stored() -> None:
    async with worlds.world() as world:
        source, to = await world.account("10"), await world.account()
        world.chain.next("send", chains.goes_down)
        unknown = await world.transfer("key", source, to, "1")
        (row,) = await world.rows("transfers")
        assert (row["status"], row["transfer_id"]) == ("submitted", unknown.transfer_id)
        (tx,) = await world.rows("chain_transactions", state="pending")
        assert world.chain.sent[-1] == (row["tx_signature"], tx["raw"]) == (tx["signature"], tx["raw"])


async def test_signed_bytes_are_stored_before_they_are_sent(world: World) -> None:
    source, to = await world.account("10"), await world.account()
    stored: list[bool] = []

    async def looks(chain: chains.FaultyChain, proceed: chains.Proceed) -> object:
        rows = await world.rows("chain_transactions", state="pending")
        stored.append(chain.sent[-1] in {(row["signature"], row["raw"]) for row in rows})
        (account,) = await world.rows("accounts", account_id=source.account_id)
        stored.append(account["in_flight"] == 1_000_000)
        return await proceed()

    async def looks_and_expires(chain: chains.FaultyChain, proceed: chains.Proceed) -> object:
        chain.inner.expire_blockhash()
        return await looks(chain, proceed)

    world.chain.next("send", looks_and_expires, looks)
    assert (await world.transfer("key", source, to, "1")).status == 200
    assert stored == [True] * 4
