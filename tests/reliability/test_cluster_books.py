"""The books of a server on a cluster: what is resent, reserved and told while nodes are wrong or behind."""

import asyncio
from collections.abc import AsyncIterator

import cluster_worlds
import pytest
import signed
from cluster_worlds import ClusterWorld
from clusters import shifted
from worlds import Party

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClusterWorld]:
    async with cluster_worlds.serving(monkeypatch) as running:
        yield running


async def seconds_until_settled(world: ClusterWorld, source: Party, to: Party, amount: str = "1") -> float:
    start = asyncio.get_running_loop().time()
    await world.settled(f"{start}", source, to, amount)
    return asyncio.get_running_loop().time() - start


# --- Sending again


@pytest.mark.parametrize("by", [200, 10_000, 2**40])
@pytest.mark.parametrize("is_known", [True, False], ids=["pace known", "new server"])
async def test_one_slot_that_is_too_high_delays_no_resend(
    world: ClusterWorld, by: int, is_known: bool
) -> None:
    source, to = await world.account("10"), await world.account()
    if is_known:
        for _ in range(30):
            await world.runtime.context.chain.block_height()
            await asyncio.sleep(1)
    await asyncio.sleep(5)
    world.cluster.drops = 2
    world.cluster.tell("getEpochInfo", shifted("absoluteSlot", by))
    assert await seconds_until_settled(world, source, to) < 10
    assert len(signed.expired(await world.rows("chain_transactions"))) == 0


@pytest.mark.parametrize("slot_seconds", [0.4, 0.25, 0.1])
async def test_waits_scale_with_the_slot_time_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, slot_seconds: float
) -> None:
    cluster = cluster_worlds.new_cluster(slot_seconds=slot_seconds)
    async with cluster_worlds.serving(monkeypatch, cluster) as world:
        chain = world.runtime.context.chain
        for _ in range(40):
            await chain.block_height()
            await asyncio.sleep(1)
        # A tenth of the slots has no block.
        assert chain.landing_seconds == pytest.approx(slot_seconds / 0.9, rel=0.15)
        assert chain.blockhash_life_seconds == pytest.approx(150 * slot_seconds / 0.9 * 1.2, rel=0.15)
        # Twice as fast from now on: learned within a few intervals.
        cluster.set_slot_seconds(slot_seconds / 2)
        for _ in range(60):
            await chain.block_height()
            await asyncio.sleep(1)
        assert chain.landing_seconds == pytest.approx(slot_seconds / 1.8, rel=0.15)


# --- What has vanished


async def reserved(world: ClusterWorld, account: Party) -> str:
    return str((await world.detail(account))["reserved_usdc"])


@pytest.mark.unmeasured
async def test_a_vanished_transfer_stays_reserved_until_it_is_final_again(world: ClusterWorld) -> None:
    source, to = await world.account("10"), await world.account()
    transfer_id = await world.settled("key", source, to, "7")
    assert await reserved(world, source) == "0.000000"
    (signature,) = world.cluster.payments(transfer_id)
    world.cluster.delays.append(30.0)
    world.cluster.undo(signature)
    await asyncio.sleep(8)
    # The money is back on chain for a while, and is not there to be spent.
    assert world.balance(source) == 10_000_000
    assert await reserved(world, source) == "7.000000"
    assert (await world.get_transfer(transfer_id))["status"] == "settled"
    refused = await world.transfer("too much", source, to, "4")
    assert (refused.status, refused.error) == (402, "insufficient_balance")
    assert (await world.transfer("rest", source, to, "3")).status == 200
    await world.rest()
    assert world.balance(source) == 0
    assert await reserved(world, source) == "0.000000"
    (account,) = await world.rows("accounts", account_id=source.account_id)
    assert (account["balance"], account["in_flight"]) == (0, 0)
    assert signed.in_state(await world.rows("chain_transactions"), "confirmed") == []


@pytest.mark.unmeasured
async def test_a_vanished_session_opening_reserves_its_cap_once(world: ClusterWorld) -> None:
    source, to = await world.account("10"), await world.account()
    session_id = await world.opened_session("key", source, to, "7")
    (signature,) = world.cluster.payments(session_id)
    world.cluster.delays.append(30.0)
    world.cluster.undo(signature)
    await asyncio.sleep(8)
    assert await reserved(world, source) == "7.000000"
    assert (await world.transfer("too much", source, to, "4")).error == "insufficient_balance"
    await world.rest()
    assert await reserved(world, source) == "7.000000"
    (account,) = await world.rows("accounts", account_id=source.account_id)
    assert (account["balance"], account["in_flight"]) == (3_000_000, 0)


@pytest.mark.unmeasured
async def test_a_vanished_transfer_that_expired_releases_its_reservation(world: ClusterWorld) -> None:
    source, to = await world.account("10"), await world.account()
    transfer_id = await world.settled("key", source, to, "7")
    (signature,) = world.cluster.payments(transfer_id)
    world.cluster.delays.append(1_000.0)
    world.cluster.undo(signature)
    await asyncio.sleep(8)
    assert await reserved(world, source) == "7.000000"
    await world.rest()
    assert await reserved(world, source) == "0.000000"
    assert (await world.get_transfer(transfer_id))["status"] == "settled"


# --- Low balances


async def low(world: ClusterWorld) -> list[str]:
    events = [event for event in await world.events() if event["type"] == "balance.low_threshold"]
    return [event["data"]["balance_usdc"] for event in events]


@pytest.fixture
async def threshold(world: ClusterWorld) -> None:
    """Have it told when a balance falls below 50."""
    hook = {"url": "http://receiver.invalid", "events": ["balance.low_threshold"]}
    answer = await world.request("POST", "/v1/webhooks", {**hook, "low_balance_threshold_usdc": 50})
    assert answer.status == 201, answer


async def test_the_low_balance_event_fires_when_the_balance_crosses_the_threshold(
    world: ClusterWorld, threshold: None
) -> None:
    source, to = await world.account("100"), await world.account()
    await world.settled("a", source, to, "50")
    assert await low(world) == []
    await world.settled("b", source, to, "1")
    assert await low(world) == ["49.000000"]
    await world.settled("c", source, to, "1")
    await world.rest()
    assert await low(world) == ["49.000000"]


async def test_the_low_balance_event_waits_for_unposted_deposits(
    world: ClusterWorld, threshold: None
) -> None:
    source, to = await world.account("100"), await world.account()
    await world.mint(source, "50")
    await world.settled("a", source, to, "60")
    (account,) = await world.rows("accounts", account_id=source.account_id)
    assert (account["balance"], world.balance(source)) == (40_000_000, 90_000_000)
    await world.rest()
    assert await low(world) == []
    # It is armed as before.
    await world.settled("b", source, to, "41")
    assert await low(world) == ["49.000000"]


async def test_the_low_balance_event_fires_after_pending_deposits_are_posted(
    world: ClusterWorld, threshold: None
) -> None:
    source, to = await world.account("100"), await world.account()
    await world.mint(source, "50")
    await world.settled("a", source, to, "60")
    await world.settled("b", source, to, "50")
    assert await low(world) == []
    await world.rest()
    assert await low(world) == ["40.000000"]
    (account,) = await world.rows("accounts", account_id=source.account_id)
    assert account["unjudged_spend"] == 0


async def test_opening_a_session_fires_the_low_balance_event_in_the_same_way(
    world: ClusterWorld, threshold: None
) -> None:
    source, to = await world.account("100"), await world.account()
    await world.mint(source, "50")
    await world.opened_session("a", source, to, "60")
    assert await low(world) == []
    await world.rest()
    assert await low(world) == []
    await world.opened_session("b", source, to, "41")
    assert await low(world) == ["49.000000"]
