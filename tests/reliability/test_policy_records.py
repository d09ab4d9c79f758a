"""The on-chain policy record comes to hold the newest policy, whatever the chain does meanwhile.

See interface PO12.
"""

import asyncio
import hashlib
import itertools

import another
import chains
import pytest
import worlds
from chains import FAULTS
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_on_chain import PolicyRecord, read_policy_record
from solders.pubkey import Pubkey
from worlds import Party, World

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]


async def record(world: World, account: Party) -> PolicyRecord | None:
    """Return what the chain itself holds."""
    rows = await world.rows("policy_records", account_id=account.account_id)
    found = world.chain.inner._svm.get_account(Pubkey.from_string(rows[0]["address"]))
    return None if found is None else read_policy_record(found.data)


async def assert_newest_is_on_chain(world: World, account: Party) -> None:
    (row,) = await world.rows("accounts", account_id=account.account_id)
    held = await record(world, account)
    assert held is not None
    assert held.policy_version == row["policy_version"]
    assert held.policy == row["policy"]
    assert held.policy_sha256 == hashlib.sha256(row["policy"].encode()).hexdigest()
    shown = (await world.detail(account))["policy_record"]
    assert shown["version"] == row["policy_version"]
    assert shown["tx_signature"] in world.chain.landed()


async def test_a_record_that_does_not_land_barely_delays_advancing_the_clock(world: World) -> None:
    account, loop = await world.account("10"), asyncio.get_running_loop()
    world.chain.next("send", chains.goes_down)
    await world.policy(account, paused=True)
    await world.rest()
    assert len(await world.rows("chain_transactions", state="pending")) == 1

    started = loop.time()
    await world.advance(3600)
    assert loop.time() - started < 60

    world.chain.is_down = False
    await world.rest()
    await assert_newest_is_on_chain(world, account)


async def test_pausing_an_account_does_not_wait_for_the_chain(world: World) -> None:
    account, to = await world.account("10"), await world.account()
    world.chain.is_down = True
    answer = await world.policy(account, paused=True)
    assert answer.body["paused"] is True
    assert (await world.transfer("key", account, to, "1")).error == "account_paused"
    await world.rest()
    assert await record(world, account) is None

    world.chain.is_down = False
    # As it is due again only later, nothing happens before the clock says so.
    await world.rest()
    assert await record(world, account) is None
    await world.advance(60)
    await assert_newest_is_on_chain(world, account)


async def test_writing_the_record_is_retried_with_backoff_while_the_chain_is_away(world: World) -> None:
    account = await world.account()
    world.chain.is_down = True
    await world.policy(account, paused=True)
    await world.rest()
    tries = []
    for _ in range(600):
        before = len(world.chain.calls)
        await world.advance(1)
        tries.append(len(world.chain.calls) > before)
    moments = [second for second, tried in enumerate(tries, start=1) if tried]
    distances = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert moments[0] == 1
    assert distances == sorted(distances)
    assert distances[-1] > 100
    world.chain.is_down = False
    await world.advance(300)
    await assert_newest_is_on_chain(world, account)


async def test_a_change_while_the_chain_is_away_is_written_with_the_next_change(world: World) -> None:
    account = await world.account()
    world.chain.is_down = True
    await world.policy(account, paused=True)
    await world.policy(account, max_single_transfer=1)
    await world.rest()
    world.chain.is_down = False
    await world.policy(account, max_daily_spend=2)
    await world.rest()
    await assert_newest_is_on_chain(world, account)


@pytest.mark.parametrize("site", range(1, 9))
@pytest.mark.parametrize("fault", FAULTS)
async def test_one_fault_at_any_call_leaves_the_newest_policy_on_chain(
    world: World, site: int, fault: str
) -> None:
    account = await world.account()
    await world.policy(account, require_memo=True)
    await world.rest()
    world.chain.at(site, FAULTS[fault])
    await world.policy(account, max_single_transfer=5)
    await world.rest()
    await world.policy(account, max_single_transfer=6)
    await world.rest()
    world.chain.clear()
    await world.rest()
    await world.advance(600)
    await assert_newest_is_on_chain(world, account)


@settings(max_examples=60, deadline=None)
@given(
    interrupted=st.integers(0, 10_000),
    delays=st.lists(st.integers(0, 60), min_size=2, max_size=6),
    faults=st.dictionaries(st.integers(1, 20), st.sampled_from(sorted(FAULTS)), max_size=3),
)
def test_after_concurrent_changes_the_newest_policy_is_on_chain(
    interrupted: int, delays: list[int], faults: dict[int, str]
) -> None:
    async def change(world: World, account: Party, delay: int, limit: int) -> None:
        for _ in range(delay):
            await asyncio.sleep(0)
        await world.policy(account, max_single_transfer=limit)

    async def test() -> None:
        async with worlds.world(interrupted=interrupted) as world:
            account = await world.account()
            for site, fault in faults.items():
                world.chain.at(site, FAULTS[fault])
            changes = (change(world, account, delay, limit) for limit, delay in enumerate(delays))
            await asyncio.gather(*changes)
            await world.rest()
            if faults:
                world.chain.clear()
                await world.rest()
                await world.advance(600)
            await assert_newest_is_on_chain(world, account)

    worlds.run(test)


@settings(max_examples=60, deadline=None)
@given(
    interrupted=st.integers(0, 10_000),
    delays=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=2, max_size=6),
)
def test_two_servers_never_write_an_older_policy_after_a_newer_one(
    interrupted: int, delays: list[tuple[int, int]]
) -> None:
    """Both write what is due, as two that share a database do; the order on chain is that of the versions."""
    versions: list[int] = []

    async def test() -> None:
        async with worlds.world(interrupted=interrupted) as world:
            other = another.policy_records(world)
            account = await world.account()

            async def noted(chain: chains.FaultyChain, proceed: chains.Proceed) -> None:
                await proceed()
                held = await record(world, account)
                versions.append(0 if held is None else held.policy_version)

            world.chain.next("send", *[noted] * 100)

            async def change(limit: int, delay: int, delay_of_other: int) -> None:
                for _ in range(delay):
                    await asyncio.sleep(0)
                await world.policy(account, max_single_transfer=limit)
                for _ in range(delay_of_other):
                    await asyncio.sleep(0)
                await other.write_soon(account.account_id)

            await asyncio.gather(*(change(limit, *pair) for limit, pair in enumerate(delays)))
            await world.rest()
            await world.advance(600)
            await assert_newest_is_on_chain(world, account)

    worlds.run(test)
    assert versions == sorted(versions)


async def test_an_older_policy_never_lands_after_a_newer_one(world: World) -> None:
    account = await world.account()
    await world.policy(account, max_single_transfer=1)
    await world.rest()
    # The write of the second version is lost on the way, for longer than anybody waits for it.
    world.chain.black_holes.add("*")
    await world.policy(account, max_single_transfer=2)
    await world.rest()
    await world.policy(account, max_single_transfer=3)
    await world.rest()
    world.chain.black_holes.clear()
    world.chain.inner.expire_blockhash()
    await world.rest()
    await assert_newest_is_on_chain(world, account)
    for raw in {raw for _, raw in world.chain.sent}:
        await world.chain.inner.send(raw)
    await assert_newest_is_on_chain(world, account)


async def test_a_writer_cancelled_before_it_starts_does_not_block_the_next(world: World) -> None:
    account = await world.account("10")
    records = world.runtime.services.built["accounts"].policies._records
    writer = records.write_soon(account.account_id)
    writer.cancel()
    await asyncio.wait({writer})
    await world.policy(account, paused=True)
    await world.rest()
    await assert_newest_is_on_chain(world, account)
