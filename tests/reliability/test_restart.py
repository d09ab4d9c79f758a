"""A server that dies in the middle of an operation, and another that resumes from the stored state.

The death is a cancellation of everything that the first server had in progress, so that it can come at any
await; `test_kill_matrix.py` kills real processes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import another
import chains
import machine_clock
import pytest
import worlds
from chains import FaultyChain, Proceed
from lives import Lives
from watched_database import refuse_inserts
from worlds import START, Party, World

from agentpay_server.chain.protocol import ChainUnreachableError

SECOND_US = 1_000_000

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]


async def hangs_before(chain: FaultyChain, proceed: Proceed) -> None:
    """The request has not left when the server ends."""
    await asyncio.Event().wait()


async def hangs_after(chain: FaultyChain, proceed: Proceed) -> None:
    """The request has arrived, and its answer has not when the server ends."""
    await proceed()
    await asyncio.Event().wait()


@pytest.fixture
async def lives() -> Any:
    made = Lives()
    yield made
    await made.end()
    await made.disk.destroy()


async def landed(world: World) -> set[str]:
    rows = await world.rows("chain_signatures")
    return {row["signature"] for row in rows if row["failure_reason"] is None}


async def balance(world: World, party: Party) -> int:
    (account,) = await world.chain.inner.token_accounts([party.token_account])
    assert account is not None
    return account.amount_micro


async def one_transfer(world: World) -> dict[str, Any]:
    (transfer,) = await world.rows("transfers")
    return transfer


async def assert_settled_once(world: World, source: Party, to: Party, before: set[str]) -> None:
    transfer = await one_transfer(world)
    assert transfer["status"] == "settled"
    assert await landed(world) - before == {transfer["tx_signature"]}
    assert (await balance(world, source), await balance(world, to)) == (93_000_000, 7_000_000)
    assert await world.event_types(transfer["transfer_id"]) == ["transfer.initiated", "transfer.settled"]
    assert [entry["type"] for entry in await world.entries(source)] == ["deposit", "transfer"]
    assert [entry["type"] for entry in await world.entries(to)] == ["deposit"]
    detail = await world.detail(source)
    assert (detail["spent_usdc"], detail["reserved_usdc"]) == ("7.000000", "0.000000")


# --- What stays


async def test_a_restart_keeps_money_keys_accounts_time_and_transfers(lives: Lives) -> None:
    world = await lives.start()
    source, to = await world.account("100"), await world.account()
    settled = await world.transfer("key", source, to, "7")
    await world.advance(3_600)
    now_us = world.runtime.context.clock.now_us()
    before = await landed(world)
    blockhash = await world.chain.latest_blockhash()
    listed = await world.request("GET", "/v1/accounts")

    world = await lives.restart()
    assert world.runtime.context.clock.now_us() == now_us
    assert (await world.request("GET", "/v1/accounts")).body == listed.body
    assert (await world.transfer("key", source, to, "7")).body == settled.body
    assert await landed(world) == before
    after = await world.chain.latest_blockhash()
    assert after.value != blockhash.value
    assert after.last_valid_block_height > blockhash.last_valid_block_height
    assert (await world.transfer("next", source, to, "3")).status == 200
    assert (await balance(world, source), await balance(world, to)) == (90_000_000, 10_000_000)


# --- Work in progress


async def a_minute_passes(world: World) -> None:
    """Let the blockhash of signed transactions expire, also in the ledger."""
    world.chain.inner.expire_blockhash()
    await world.chain.inner.block_height()


@pytest.mark.parametrize(
    ("hang", "has_expired"),
    [(hangs_before, False), (hangs_before, True), (hangs_after, False)],
    ids=["not sent", "not sent and expired", "executed and not posted"],
)
async def test_a_transfer_in_flight_at_a_restart_pays_once(
    lives: Lives, hang: Callable[..., Awaitable[None]], has_expired: bool
) -> None:
    world = await lives.start()
    source, to = await world.account("100"), await world.account()
    before = await landed(world)
    world.chain.next("send", hang)
    await lives.ended_in(
        world.transfer("key", source, to, "7"), just_before=a_minute_passes if has_expired else None
    )
    first = await one_transfer(world)
    is_executed = hang is hangs_after
    assert first["status"] == "submitted"
    assert await landed(world) - before == ({first["tx_signature"]} if is_executed else set())

    world = await lives.start()
    await world.rest()
    await assert_settled_once(world, source, to, before)
    # Its blockhash outlives the process: the same bytes are sent, and others once these can no longer land.
    assert ((await one_transfer(world))["tx_signature"] != first["tx_signature"]) == has_expired
    assert world.attempts(first["transfer_id"]) == ([] if is_executed else ["landed"])
    again = await world.transfer("key", source, to, "7")
    assert (again.status, again.transfer_id) == (200, first["transfer_id"])


async def test_an_unsent_transfer_is_not_signed_again_for_an_account_paused_before_the_restart(
    lives: Lives,
) -> None:
    world = await lives.start()
    source, to = await world.account("100"), await world.account()
    before = await landed(world)
    world.chain.next("send", hangs_before)
    caller = asyncio.ensure_future(world.transfer("key", source, to, "7"))
    await asyncio.sleep(1)
    await world.policy(source, paused=True)
    caller.cancel()
    await a_minute_passes(world)

    world = await lives.restart()
    await world.rest()
    transfer = await one_transfer(world)
    assert (transfer["status"], transfer["error"]) == ("failed", "account_paused")
    types = await world.event_types(transfer["transfer_id"])
    assert types == ["transfer.initiated", "transfer.rejected"]
    assert await balance(world, source) == 100_000_000
    detail = await world.detail(source)
    assert (detail["spent_usdc"], detail["reserved_usdc"]) == ("0.000000", "0.000000")
    # Nothing but the policy's record may have landed.
    records = await world.rows("policy_records")
    assert await landed(world) - before <= {record["tx_signature"] for record in records}
    assert (await world.transfer("key", source, to, "7")).error == "account_paused"


async def test_an_executed_transfer_settles_although_its_account_was_paused_before_the_restart(
    lives: Lives,
) -> None:
    world = await lives.start()
    source, to = await world.account("100"), await world.account()
    world.chain.next("send", hangs_after)
    caller = asyncio.ensure_future(world.transfer("key", source, to, "7"))
    await asyncio.sleep(1)
    await world.policy(source, paused=True)
    await world.rest()
    before = await landed(world) - {(await one_transfer(world))["tx_signature"]}
    caller.cancel()

    world = await lives.restart()
    await world.rest()
    await assert_settled_once(world, source, to, before)


async def test_reservations_are_kept_after_a_restart_while_the_chain_is_unavailable(lives: Lives) -> None:
    world = await lives.start()
    source, to = await world.account("100"), await world.account()
    before = await landed(world)
    world.chain.next("send", hangs_before)
    await lives.ended_in(world.transfer("key", source, to, "7"))

    world = await lives.start(is_down=True, settlement_wait_seconds=1)
    await world.rest()
    assert (await one_transfer(world))["status"] == "submitted"
    (row,) = await world.rows("accounts", account_id=source.account_id)
    assert row["in_flight"] == 7_000_000
    assert (await world.transfer("key", source, to, "7")).status == 503
    world.chain.clear()
    await world.rest()
    await assert_settled_once(world, source, to, before)


@pytest.mark.parametrize("hang", [hangs_before, hangs_after])
@pytest.mark.parametrize("ends", [1, 2, 3])
async def test_an_interrupted_recovery_is_resumed_by_the_next_start(
    lives: Lives, hang: Callable[..., Awaitable[None]], ends: int
) -> None:
    world = await lives.start()
    source, to = await world.account("100"), await world.account()
    before = await landed(world)
    world.chain.next("send", hang)
    await lives.ended_in(world.transfer("key", source, to, "7"))
    for _ in range(ends):
        world = await lives.start()
        world.chain.next("send", hang)
        await world.rest()
        await lives.end()
    world = await lives.start()
    await world.rest()
    await assert_settled_once(world, source, to, before)


async def test_recovery_resumes_more_transfers_than_one_batch(lives: Lives) -> None:
    world = await lives.start()
    source, to = await world.account("300"), await world.account()
    before = await landed(world)
    world.chain.next("send", *[hangs_before, hangs_after, chains.down] * 80)
    callers = [asyncio.ensure_future(world.transfer(f"key {n}", source, to, "1")) for n in range(240)]
    await asyncio.sleep(0.001)
    for caller in callers:
        caller.cancel()

    world = await lives.restart()
    await world.rest()
    transfers = await world.rows("transfers")
    assert {transfer["status"] for transfer in transfers} == {"settled"}
    assert len(transfers) > 200
    assert await landed(world) - before == {transfer["tx_signature"] for transfer in transfers}
    assert await balance(world, to) == len(transfers) * 1_000_000
    assert (await world.detail(source))["reserved_usdc"] == "0.000000"


# --- Who drives


async def test_a_transfer_whose_driver_failed_is_driven_again(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await lives.start()
    source, to = await world.account("100"), await world.account()
    before = await landed(world)

    with monkeypatch.context() as patch:
        refuse_inserts(patch, "entries", OSError("scripted: the disk is full"))
        answer = await world.transfer("key", source, to, "7")
    assert (answer.status, answer.body["status"]) == (503, "submitted")
    assert (await one_transfer(world))["transfer_id"] == answer.transfer_id
    await world.rest()
    await assert_settled_once(world, source, to, before)


async def test_a_process_does_not_drive_transfers_leased_by_another(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await lives.start(settlement_wait_seconds=0.01)
    source, to = await world.account("100"), await world.account()
    before = await landed(world)
    world.chain.next("send", chains.goes_down)
    assert (await world.transfer("key", source, to, "7")).status == 503

    first, second = world.runtime.services.settlement, another.engine(world, on_a_running_clock=True)
    (tx,) = await world.rows("chain_transactions", state="pending")
    start_us = tx["leased_until_us"] - 30 * SECOND_US

    def at(seconds: float) -> None:
        machine_clock.stands_at(monkeypatch, start_us + int(seconds * SECOND_US))

    at(10)
    assert await second.recover() == []
    at(20)
    assert await first.recover() == []  # It is driven there; its lease is renewed.
    at(49)
    assert not await second.is_any_abandoned()
    assert await second.recover() == []
    at(50)
    assert await second.is_any_abandoned()
    (driver,) = await second.recover()
    assert not await first.is_any_abandoned()
    # Both drive it now, and still it happens once.
    world.chain.clear()
    assert (await driver).subject.status == "settled"
    await world.rest()
    await assert_settled_once(world, source, to, before)


# --- The chain's ledger under the service


async def test_a_ledger_failure_during_a_transfer_costs_a_new_signature_and_no_money(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await lives.start()
    source, to = await world.account("100"), await world.account()
    before = await landed(world)
    ledger = world.chain.inner._ledger
    write, failures = ledger.write, [True, True]

    async def failing(page: Any) -> None:
        if failures:
            failures.pop()
            raise OSError("scripted: the disk is full")
        await write(page)

    monkeypatch.setattr(ledger, "write", failing)
    answer = await world.transfer("key", source, to, "7")
    assert answer.status == 200
    await assert_settled_once(world, source, to, before)
    assert world.attempts(answer.transfer_id)[:-1].count("landed") == 0
    failures.append(True)
    world.chain.inner.expire_blockhash()
    with pytest.raises(ChainUnreachableError):
        await world.chain.inner.block_height()


# --- The traps of the embedded machine, under a whole server in a directory


async def test_transactions_sent_before_a_restart_never_execute_again_after_it(tmp_path: Path) -> None:
    """The machine's blockhashes are the same at each start, and it forgets what it has executed."""
    world = await worlds.started(data_dir=tmp_path)
    source, to = await world.account("100"), await world.account()
    blockhashes = []
    for life in range(4):
        assert (await world.transfer(f"key-{life}", source, to, "1")).status == 200
        blockhashes.append(await world.chain.inner.latest_blockhash())
        await (world.kill() if life % 2 else world.stop())
        world = await worlds.started(data_dir=tmp_path, after=world)
        for _, raw in list(world.chain.sent):
            await world.chain.inner.send(raw)
        assert world.balance(to) == (life + 1) * 1_000_000
    assert len({blockhash.value for blockhash in blockhashes}) == 4
    heights = [blockhash.last_valid_block_height for blockhash in blockhashes]
    assert heights == sorted(set(heights))
    await world.stop()


async def test_after_a_restart_the_chain_clock_equals_the_server_clock(tmp_path: Path) -> None:
    world = await worlds.started(data_dir=tmp_path)
    await world.advance(3600.5)
    await world.stop()
    world = await worlds.started(data_dir=tmp_path, after=world)
    assert (await world.request("GET", "/ext/v1/sandbox/clock")).body == {"now": "2026-01-01T01:00:00.500Z"}
    assert world.chain.inner._svm.get_clock().unix_timestamp == int(START.timestamp()) + 3600
    await world.stop()
