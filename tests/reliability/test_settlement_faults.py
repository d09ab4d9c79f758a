"""Money moves exactly once, whatever the chain loses, repeats, delays or forgets on the way (P8)."""

import asyncio
from collections.abc import Callable
from typing import Any

import another
import chains
import pytest
import signed
import worlds
from attrs import evolve
from chains import FAULTS
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import Answer, Party, World

from agentpay_server.chain.protocol import Blockhash

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

ORDER_OF_CALLS = ["token_accounts", "latest_blockhash", "send", "signature_status"]

SITES = range(1, 9)
"""Counted from the first call of a transfer: its four calls, and the next four of the loop."""


async def transferred_in_the_end(world: World, source: Party, to: Party, seen: list[Answer]) -> Answer:
    """Send one key until the response is not a 503; after the first response the trouble ends."""
    for _ in range(4):
        answer = await world.transfer("key", source, to, "7")
        seen.append(answer)
        world.chain.clear()
        if answer.status != 503:
            return answer
        await world.rest()
    raise AssertionError(f"no end in sight: {seen}")


async def pending(world: World, transfer_id: str) -> Any:
    """Return the transaction of a transfer that is in flight."""
    return evolve(await another.pending(world, "transfer", transfer_id), leased_until_us=0)


async def assert_moved_once(world: World, source: Party, to: Party, seen: list[Answer]) -> None:
    final = seen[-1]
    assert final.status == 200, final
    # Every reported transfer is the one that settled.
    assert {answer.transfer_id for answer in seen} <= {None, final.transfer_id}
    assert world.balance(source) == 93_000_000
    assert world.balance(to) == 7_000_000
    (transfer,) = await world.rows("transfers")
    assert (transfer["status"], transfer["transfer_id"]) == ("settled", final.transfer_id)
    assert transfer["tx_signature"] in world.chain.landed()
    attempts = world.attempts(final.transfer_id)
    assert attempts == ["lost"] * (len(attempts) - 1) + ["landed"]
    assert await world.event_types(transfer["transfer_id"]) == ["transfer.initiated", "transfer.settled"]
    assert [entry["type"] for entry in await world.entries(source)] == ["deposit", "transfer"]
    assert [entry["type"] for entry in await world.entries(to)] == ["deposit"]
    detail = await world.detail(source)
    assert (detail["spent_usdc"], detail["reserved_usdc"]) == ("7.000000", "0.000000")


async def test_an_undisturbed_transfer_makes_four_chain_calls(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    before = len(world.chain.calls)
    assert (await world.transfer("key", source, to, "7")).status == 200
    assert world.chain.calls[before:] == ORDER_OF_CALLS


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_one_fault_at_any_call_moves_the_money_once(world: World, site: int, fault: str) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.at(site, FAULTS[fault])
    seen: list[Answer] = []
    await transferred_in_the_end(world, source, to, seen)
    await assert_moved_once(world, source, to, seen)


@settings(deadline=None)
@given(
    faults=st.dictionaries(st.integers(1, 14), st.sampled_from(sorted(FAULTS)), min_size=2, max_size=5),
    wait=st.sampled_from([0.01, 0.5, 20.0]),
    interrupted=st.none() | st.integers(0, 99),
)
def test_any_combination_of_faults_moves_the_money_once(
    faults: dict[int, str], wait: float, interrupted: int | None
) -> None:
    async def test() -> None:
        async with worlds.world(settlement_wait_seconds=wait, interrupted=interrupted) as world:
            source, to = await world.account("100"), await world.account()
            for site, fault in faults.items():
                world.chain.at(site, FAULTS[fault])
            seen: list[Answer] = []
            await transferred_in_the_end(world, source, to, seen)
            await assert_moved_once(world, source, to, seen)

    worlds.run(test)


async def test_a_transfer_refused_because_the_chain_is_down_stores_nothing(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.is_down = True
    answer = await world.transfer("key", source, to, "7")
    assert (answer.status, answer.error) == (503, "chain_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert set(answer.body) == {"error", "message", "request_id"}
    assert await world.rows("transfers") == []
    assert signed.spends(await world.rows("chain_transactions")) == []
    assert await world.rows("events") == []
    world.chain.is_down = False
    await world.rest()
    assert world.balance(to) == 0


async def test_an_unknown_outcome_names_the_transfer_and_its_key_resumes_it(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.goes_down_after)
    unknown = await world.transfer("key", source, to, "7")
    assert (unknown.status, unknown.error) == (503, "chain_unavailable")
    assert unknown.headers["retry-after"] == "1"
    assert set(unknown.body) == {"error", "message", "request_id", "transfer_id", "status"}
    assert unknown.body["status"] == "submitted"
    shown = await world.get_transfer(unknown.body["transfer_id"])
    assert (shown["status"], shown["settled_at"]) == ("submitted", None)
    # No request is repeated, and still the transfer ends.
    world.chain.is_down = False
    await world.rest()
    assert (await world.get_transfer(unknown.body["transfer_id"]))["status"] == "settled"
    again = await world.transfer("key", source, to, "7")
    assert (again.status, again.transfer_id) == (200, unknown.transfer_id)
    await assert_moved_once(world, source, to, [unknown, again])


async def test_a_retry_while_the_outcome_is_unknown_starts_no_second_transfer(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.goes_down)
    answers = [await world.transfer("key", source, to, "7") for _ in range(3)]
    assert [answer.status for answer in answers] == [503, 503, 503]
    assert len({answer.transfer_id for answer in answers}) == 1
    assert world.attempts(answers[0].transfer_id) == ["lost"]
    world.chain.is_down = False
    seen = [*answers, await world.transfer("key", source, to, "7")]
    await assert_moved_once(world, source, to, seen)


async def test_a_lost_transaction_is_resent_as_the_same_bytes(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.dropped, chains.dropped, chains.dropped)
    before = len(world.chain.sent)
    answer = await world.transfer("key", source, to, "7")
    sent = world.chain.sent[before:]
    assert len(sent) == 4
    assert len(set(sent)) == 1
    await assert_moved_once(world, source, to, [answer])


async def test_an_expired_transaction_is_signed_again_under_the_same_transfer(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.expiring)
    before = len(world.chain.sent)
    answer = await world.transfer("key", source, to, "7")
    (first, _), (second, _) = world.chain.sent[before:]
    assert first != second
    assert answer.body["tx_signature"] == second
    assert world.attempts(answer.transfer_id) == ["lost", "landed"]
    await assert_moved_once(world, source, to, [answer])


async def test_a_transaction_that_landed_is_never_treated_as_expired(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    # It lands, its answer is lost, and every blockhash expires before the first look.
    world.chain.next("send", chains.reply_lost)
    world.chain.next("block_height", chains.expiring)
    answer = await world.transfer("key", source, to, "7")
    assert world.attempts(answer.transfer_id) == ["landed"]
    await assert_moved_once(world, source, to, [answer])


@pytest.mark.parametrize("too_high", [0, 200])
async def test_a_new_attempt_is_never_signed_under_the_blockhash_that_expired(
    world: World, too_high: int, caplog: pytest.LogCaptureFixture
) -> None:
    source, to = await world.account("100"), await world.account()
    stale: list[Blockhash] = []

    async def remembered(chain: chains.FaultyChain, proceed: chains.Proceed) -> object:
        blockhash = await proceed()
        assert isinstance(blockhash, Blockhash)
        stale.append(blockhash)
        return blockhash

    async def lagging_behind(chain: chains.FaultyChain, proceed: chains.Proceed) -> object:
        # Its last valid height may be wrong too: the bytes would equal the expired ones.
        return evolve(stale[0], last_valid_block_height=stale[0].last_valid_block_height + too_high)

    world.chain.next("latest_blockhash", remembered, lagging_behind, lagging_behind)
    world.chain.next("send", chains.expiring)
    answer = await world.transfer("key", source, to, "7")
    await assert_moved_once(world, source, to, [answer])
    assert "driver.repeats" not in caplog.text


async def test_a_transfer_awaiting_finality_is_submitted_and_has_emitted_initiated(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.not_final(10**6)
    unknown = await world.transfer("key", source, to, "7")
    assert unknown.status == 503
    transfer_id = unknown.body["transfer_id"]
    assert await world.event_types(transfer_id) == ["transfer.initiated"]
    (initiated,) = await world.events(transfer_id)
    assert initiated["data"] == {
        "transfer_id": transfer_id,
        "account_id": source.account_id,
        "to": to.account_id,
        "amount_usdc": "7.000000",
        "tx_signature": (await world.get_transfer(transfer_id))["tx_signature"],
    }
    assert (await world.detail(source))["reserved_usdc"] == "7.000000"
    world.chain.clear()
    again = await world.transfer("key", source, to, "7")
    await assert_moved_once(world, source, to, [unknown, again])


async def test_the_initiated_event_names_the_transaction_that_was_sent(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    # The first attempt never leaves, for want of a chain, and expires; the second does, and is slow.
    world.chain.next("send", chains.down)
    world.chain.next("block_height", chains.expiring)
    world.chain.not_final(3)
    answer = await world.transfer("key", source, to, "7")
    initiated, settled = await world.events(answer.body["transfer_id"])
    assert initiated["data"]["tx_signature"] == settled["data"]["tx_signature"] == answer.body["tx_signature"]
    await assert_moved_once(world, source, to, [answer])


async def test_an_expired_transfer_is_not_signed_again_for_a_paused_account(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    await world.policy(source, max_daily_spend=10)
    await world.rest()
    world.chain.next("send", chains.goes_down)
    unknown = await world.transfer("key", source, to, "7")
    transfer_id = unknown.body["transfer_id"]
    await world.policy(source, paused=True)
    world.chain.clear()
    world.chain.inner.expire_blockhash()
    await world.rest()

    shown = await world.get_transfer(transfer_id)
    assert (shown["status"], shown["error"], shown["settled_at"]) == ("failed", "account_paused", None)
    assert "paused is true" in shown["message"]
    assert world.attempts(transfer_id) == ["lost"]
    assert await world.event_types(transfer_id) == ["transfer.initiated", "transfer.rejected"]
    assert world.balance(source) == 100_000_000
    assert world.balance(to) == 0
    detail = await world.detail(source)
    assert (detail["spent_usdc"], detail["reserved_usdc"]) == ("0.000000", "0.000000")
    assert [entry["type"] for entry in await world.entries(source)] == ["deposit", "rejection"]

    # `failed` is not a policy rejection: the key may be tried again, and now it is one.
    refused = await world.transfer("key", source, to, "7")
    assert (refused.status, refused.error, refused.body["status"]) == (402, "account_paused", "rejected")
    assert refused.transfer_id != transfer_id
    await world.policy(source, paused=False)
    assert (await world.transfer("key", source, to, "7")).body == refused.body
    assert (await world.transfer("another key", source, to, "10")).status == 200


async def test_a_transfer_that_landed_settles_although_its_account_was_paused_later(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.goes_down_after)
    unknown = await world.transfer("key", source, to, "7")
    await world.policy(source, paused=True)
    world.chain.clear()
    world.chain.inner.expire_blockhash()
    again = await world.transfer("key", source, to, "7")
    await assert_moved_once(world, source, to, [unknown, again])


Ruin = Callable[[World, Party, Party, Party], None]
Recovery = Callable[[World, Party, Party], None]

RUINS = {
    "source drained": (
        lambda world, source, to, thief: world.drain(source, thief, "95"),
        lambda world, source, to: None,
        "insufficient_balance",
    ),
    "source frozen": (
        lambda world, source, to, thief: world.freeze(source),
        lambda world, source, to: world.thaw(source),
        "transfer_failed",
    ),
    "recipient frozen": (
        lambda world, source, to, thief: world.freeze(to),
        lambda world, source, to: world.thaw(to),
        "transfer_failed",
    ),
}


@pytest.mark.parametrize(("ruin", "recover", "error"), RUINS.values(), ids=RUINS)
async def test_a_transfer_whose_transaction_fails_on_chain_is_failed(
    world: World, ruin: Ruin, recover: Recovery, error: str
) -> None:
    source, to, thief = await world.account("100"), await world.account(), await world.outside()
    world.chain.next("send", chains.before(lambda: ruin(world, source, to, thief)))
    failed = await world.transfer("key", source, to, "7")
    assert (failed.status, failed.error, failed.body["status"]) == (402, error, "failed")
    assert set(failed.body) - {"refusal"} == {"error", "message", "transfer_id", "status"}
    transfer_id = failed.body["transfer_id"]
    shown = await world.get_transfer(transfer_id)
    assert (shown["status"], shown["error"], shown["message"]) == ("failed", error, failed.body["message"])
    assert world.balance(to) == 0
    initiated, rejected = await world.events(transfer_id)
    assert (initiated["type"], rejected["type"]) == ("transfer.initiated", "transfer.rejected")
    assert rejected["data"] == {
        "account_id": source.account_id,
        "rejection_reason": error,
        "transfer_id": transfer_id,
        "to": to.account_id,
        "amount_usdc": "7.000000",
        "message": failed.body["message"],
    }
    entry = (await world.entries(source))[-1]
    assert (entry["type"], entry["status"], entry["rejection_reason"]) == ("rejection", "rejected", error)
    detail = await world.detail(source)
    assert (detail["spent_usdc"], detail["reserved_usdc"]) == ("0.000000", "0.000000")

    # The reason gone, the same key makes a new transfer.
    recover(world, source, to)
    if error == "insufficient_balance":
        await world.fund(source.account_id, "95")
    again = await world.transfer("key", source, to, "7")
    assert (again.status, again.body["status"]) == (200, "settled")
    assert again.transfer_id != transfer_id
    assert world.balance(to) == 7_000_000
    assert (await world.get_transfer(transfer_id))["status"] == "failed"


async def test_a_transfer_in_flight_stays_reserved_until_it_is_proved_lost(world: World) -> None:
    source, to = await world.account("10"), await world.account()
    await world.policy(source, max_daily_spend=10)
    await world.rest()
    world.chain.next("send", chains.after(lambda: world.chain.black_holes.add(world.chain.sent[-1][0])))
    world.chain.black_holes.add("*")
    unknown = await world.transfer("first", source, to, "7")
    assert unknown.status == 503
    world.chain.black_holes.discard("*")

    # The first transaction may still land: its amount counts against the balance and against the limit.
    assert (await world.transfer("second", source, to, "3.000001")).error == "policy_violation"
    await world.policy(source, max_daily_spend=None)
    over = await world.transfer("third", source, to, "3.000001")
    assert (over.error, over.body["status"]) == ("insufficient_balance", "rejected")
    assert (await world.transfer("fourth", source, to, "3")).status == 200

    # Proved lost, on an account that is paused by then, it is given back.
    await world.policy(source, paused=True, max_daily_spend=10)
    world.chain.inner.expire_blockhash()
    await world.rest()
    assert (await world.get_transfer(unknown.body["transfer_id"]))["status"] == "failed"
    await world.policy(source, paused=False)
    assert (await world.transfer("fifth", source, to, "7")).status == 200
    assert world.balance(to) == 10_000_000


async def test_two_drivers_of_one_transfer_book_one_end(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.goes_down)
    unknown = await world.transfer("key", source, to, "7")
    other = another.engine(world).drive(await pending(world, unknown.body["transfer_id"]))
    world.chain.clear()
    world.chain.inner.expire_blockhash()
    again = await world.transfer("key", source, to, "7")
    assert (await other).subject.status == "settled"
    await assert_moved_once(world, source, to, [unknown, again])


async def test_a_late_driver_follows_the_attempt_that_another_driver_signed(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", chains.goes_down)
    unknown = await world.transfer("key", source, to, "7")
    first = await pending(world, unknown.body["transfer_id"])
    world.chain.black_holes.add(first.subject_id)
    world.chain.is_down = False
    world.chain.inner.expire_blockhash()
    await world.rest()
    second = await pending(world, unknown.body["transfer_id"])
    assert second.signed != first.signed

    async def newer(chain: chains.FaultyChain, proceed: chains.Proceed) -> Blockhash:
        # Where several blockhashes are valid at a time, the late driver reads another one than the first did.
        current: Blockhash = await proceed()
        return Blockhash(value="9" * 43, last_valid_block_height=current.last_valid_block_height + 1)

    # Signing a third time while the second may land would pay twice.
    world.chain.next("latest_blockhash", newer)
    late = another.engine(world).drive(first)
    await asyncio.sleep(10)
    assert await pending(world, first.subject_id) == second
    world.chain.clear()
    assert (await late).subject.status == "settled"
    again = await world.transfer("key", source, to, "7")
    await assert_moved_once(world, source, to, [unknown, again])
