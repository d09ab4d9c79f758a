"""One key at a time, where every call of the chain and the database lets others in.

See interface I1 to I9; P4, P5, P7, P9.
"""

import asyncio
from collections import Counter

import chains
import pytest
import signed
import worlds
from worlds import Answer, Party, World

SEEDS = range(4)
DAY_SECONDS = 24 * 3600

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]


async def at_once(world: World, count: int, source: Party, to: Party, amount: str, key: str) -> list[Answer]:
    return await asyncio.gather(
        *(world.transfer(key.format(number), source, to, amount) for number in range(count))
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", [chains.reply_lost, chains.dropped, chains.expiring])
async def test_concurrent_requests_with_one_key_and_a_chain_fault_make_one_transaction(
    seed: int, fault: chains.Act
) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        world.chain.next("send", fault)
        answers = await at_once(world, 30, source, to, "0.5", "one")
        assert {answer.status for answer in answers} == {200}
        assert len({str(answer.body) for answer in answers}) == 1
        assert world.balance(to) == 500_000


@pytest.mark.parametrize("seed", SEEDS)
async def test_concurrent_requests_with_one_key_share_an_unknown_outcome(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        world.chain.next("send", chains.goes_down)
        answers = await at_once(world, 30, source, to, "0.5", "one")
        assert {answer.status for answer in answers} == {503}
        # Requests before the decision that could not read the chain report that they did nothing.
        assert len({answer.transfer_id for answer in answers} - {None}) == 1
        world.chain.clear()
        answers = await at_once(world, 30, source, to, "0.5", "one")
        assert {answer.status for answer in answers} == {200}
        assert world.balance(to) == 500_000


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_policy_rejection_under_one_key_is_made_once(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        await world.policy(source, max_single_transfer=0)
        answers = await at_once(world, 30, source, to, "0.5", "one")
        assert {answer.error for answer in answers} == {"policy_violation"}
        assert len({str(answer.body) for answer in answers}) == 1
        assert len(await world.events()) == 1
        assert len(await world.entries(source)) == 2


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_transfer_is_accepted_after_a_pause_returned(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        racing = [asyncio.ensure_future(world.transfer(f"key-{n}", source, to, "1")) for n in range(40)]
        await world.policy(source, paused=True)
        sent = len(signed.spends(await world.rows("chain_transactions")))
        answers = await asyncio.gather(*racing)
        assert len(signed.spends(await world.rows("chain_transactions"))) == sent
        assert Counter(answer.error for answer in answers) == Counter(
            {None: sent, "account_paused": 40 - sent}
        )
        assert world.balance(to) == sent * 1_000_000


async def test_an_unresolved_key_never_expires(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.goes_down_after)
    unknown = await world.transfer("key", source, to, "7")
    await world.advance(40 * DAY_SECONDS)
    conflict = await world.transfer("key", source, to, "8")
    assert (conflict.status, conflict.error) == (409, "idempotency_conflict")
    still = await world.transfer("key", source, to, "7")
    assert (still.status, still.transfer_id) == (503, unknown.transfer_id)
    world.chain.clear()
    resolved = await world.transfer("key", source, to, "7")
    assert (resolved.status, resolved.transfer_id) == (200, unknown.transfer_id)
    assert world.balance(to) == 7_000_000
    # Its 24 hours start now.
    await world.advance(DAY_SECONDS - 0.001)
    assert (await world.transfer("key", source, to, "7")).body == resolved.body
    await world.advance(0.001)
    assert (await world.transfer("key", source, to, "7")).transfer_id != resolved.transfer_id
    assert world.balance(to) == 14_000_000


async def test_reusing_the_key_of_a_failed_transfer_with_other_parameters_conflicts(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.before(lambda: world.freeze(to)))
    failed = await world.transfer("key", source, to, "7")
    assert failed.body["status"] == "failed"
    world.thaw(to)
    assert (await world.transfer("key", source, to, "8")).error == "idempotency_conflict"
    await world.advance(DAY_SECONDS)
    assert (await world.transfer("key", source, to, "8")).status == 200


async def test_a_replay_reads_neither_policy_nor_chain(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    settled = await world.transfer("settled", source, to, "7")
    await world.policy(source, max_single_transfer=1)
    refused = await world.transfer("refused", source, to, "7")
    await world.policy(source, paused=True)
    await world.rest()
    before = len(world.chain.calls)
    world.chain.is_down = True
    assert (await world.transfer("settled", source, to, "7")).body == settled.body
    assert (await world.transfer("refused", source, to, "7")).body == refused.body
    assert len(world.chain.calls) == before


async def test_a_transfer_from_a_paused_account_is_refused_without_reading_the_chain(world: World) -> None:
    source = await world.account("100")
    await world.policy(source, paused=True)
    await world.rest()
    world.chain.is_down = True
    assert (await world.transfer("key", source, "nobody", "7")).error == "account_paused"
