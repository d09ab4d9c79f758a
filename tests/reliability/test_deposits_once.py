"""Deposits are posted once, for any number of watchers, crashes and repeated reports of the chain (P3).

The watcher is led through every order in which it and a settling transfer can come to the same money.
"""

import asyncio
import random
from typing import Any

import another
import bounds
import chains
import machine_clock
import pytest
import stores
import two_servers
import worlds
from chains import FaultyChain, Proceed
from lives import Lives
from outsiders import Wallet
from worlds import Party, World

from agentpay.contract import codec
from agentpay.contract.events import BalanceLowThresholdData
from agentpay_server.chain.protocol import ChainUnreachableError, Deposit, DepositBatch

pytestmark = pytest.mark.anyio

SECOND_US = 1_000_000
RETRY_US = bounds.value("deposits_retry_us")


@pytest.fixture
async def lives() -> Any:
    made = Lives()
    yield made
    await made.end()
    await made.disk.destroy()


async def stranger(world: World, number: int = 1) -> Wallet:
    made = Wallet(world.chain.inner, world.runtime.context.signer, number)
    await made.open(10**9)
    return made


async def assert_posted(world: World, account: Party, *expected: int) -> None:
    """Assert that these micro-USDC are the deposits of an account, and its balance what the chain shows."""
    entries = [entry for entry in await world.entries(account) if entry["type"] == "deposit"]
    assert [entry["amount"] for entry in entries] == list(expected)
    assert len({entry["tx_signature"] for entry in entries}) == len(entries)
    (row,) = await world.rows("accounts", account_id=account.account_id)
    (held,) = await world.chain.inner.token_accounts([account.token_account])
    assert held is not None
    assert row["balance"] == held.amount_micro


# --- Who comes first


async def test_the_watcher_leaves_a_transfer_to_its_settling_commit(world: World) -> None:
    """On a chain that reports everything, also the service's own transfers, before and after booking."""
    source, to = await world.account("10"), await world.account()
    world.chain.black_holes.add("*")
    answer = asyncio.ensure_future(world.transfer("key", source, to, "4"))
    await asyncio.sleep(1)
    signature = world.chain.sent[-1][0]
    own = Deposit(
        signature=signature,
        token_account=to.token_account,
        amount_micro=4_000_000,
        senders=(source.token_account,),
    )

    async def tells(chain: FaultyChain, proceed: Proceed) -> list[DepositBatch]:
        return [DepositBatch(deposits=(own,), cursor="1")]

    async def tells_again(chain: FaultyChain, proceed: Proceed) -> list[DepositBatch]:
        return [DepositBatch(deposits=(own,), cursor="2")]

    world.chain.next("deposits", tells)
    await another.deposits(world).poll(to.token_account)
    assert await world.entries(to) == []
    world.chain.black_holes.clear()
    assert (await answer).status == 200
    await assert_posted(world, to, 4_000_000)
    world.chain.next("deposits", tells_again)
    await another.deposits(world).poll(to.token_account)
    await assert_posted(world, to, 4_000_000)
    (row,) = await world.rows("accounts", account_id=to.account_id)
    assert row["deposit_cursor"] == "2"


async def test_a_transfer_in_flight_to_an_account_created_later_is_posted_as_a_deposit(world: World) -> None:
    """The token account that it pays was no account's yet when the transfer was accepted."""
    source, to = await world.account("10"), await world.account()
    world.chain.black_holes.add("*")
    answer = asyncio.ensure_future(world.transfer("key", source, to, "4"))
    await asyncio.sleep(1)
    signature = world.chain.sent[-1][0]
    for account, is_its_own in ((to, True), (source, False)):
        assert await another.is_credited(world, signature, account) is is_its_own
    world.chain.black_holes.clear()
    assert (await answer).status == 200


async def test_a_transfer_driven_by_another_process_is_not_posted_as_a_deposit(world: World) -> None:
    """The journal reports a payment that a third party submitted for the service; it is not a deposit."""
    source, to = await world.account("10"), await world.account()
    world.chain.black_holes.add("*")
    answer = asyncio.ensure_future(world.transfer("key", source, to, "4"))
    await asyncio.sleep(1)
    world.runtime.services.settlement._driven_signatures.clear()
    await world.chain.inner.send(world.chain.sent[-1][1])
    await world.advance()
    assert world.chain.calls.count("deposits") == 2  # One for the funding, one for the new report.
    world.chain.black_holes.clear()
    assert (await answer).status == 200
    await assert_posted(world, to, 4_000_000)
    await world.advance()
    await assert_posted(world, to, 4_000_000)


async def test_many_deposits_to_one_account_are_posted_in_bounded_batches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds.shorten(monkeypatch, posted_batches_of_deposits=2)
    account, looking = await world.account(), another.deposits(world)
    flood = [
        DepositBatch(
            deposits=(
                Deposit(
                    signature=f"dust {number}",
                    token_account=account.token_account,
                    amount_micro=1,
                    senders=(),
                ),
            ),
            cursor=str(number),
        )
        for number in range(1, 6)
    ]

    async def tells(chain: FaultyChain, proceed: Proceed) -> list[DepositBatch]:
        (row,) = await world.rows("accounts", account_id=account.account_id)
        return flood[int(row["deposit_cursor"] or 0) :]

    looking._arrivals.is_anywhere = False
    # What the chain holds is not compared: it has none of these deposits.
    looking._compared.add(account.token_account)
    posted = []
    for _ in range(4):
        world.chain.next("deposits", tells)
        await looking.poll(account.token_account)
        posted.append((len(await world.entries(account)), looking.is_any_due))
    assert posted == [(2, True), (4, True), (5, False), (5, False)]


@pytest.mark.parametrize("seed", range(5))
async def test_racing_watchers_and_transfers_book_everything_once(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        wallet, source, to = await stranger(world), await world.account("10"), await world.account()
        others = [another.deposits(world) for _ in range(3)]
        for _ in range(3):
            await wallet.pay((to.token_account, 5), (source.token_account, 7))
        looks = [other.poll(account.token_account) for other in others for account in (to, source)]
        sends = [world.transfer(f"key{number}", source, to, "1") for number in range(3)]
        found = await asyncio.gather(*looks, *sends, *(other.poll_everywhere() for other in others))
        assert [answer.status for answer in found if answer is not None] == [200, 200, 200]
        await world.advance()
        assert sorted(entry["amount"] for entry in await world.entries(to)) == [5, 5, 5, *[10**6] * 3]
        (row,) = await world.rows("accounts", account_id=to.account_id)
        assert row["balance"] == world.balance(to) == 3 * 10**6 + 15
        (row,) = await world.rows("accounts", account_id=source.account_id)
        assert row["balance"] == world.balance(source) == 7 * 10**6 + 21


async def test_watchers_of_two_servers_on_one_database_book_everything_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores.run, "kind", "postgres")
    async with worlds.world(interrupted=1) as world:
        context: Any = world.runtime.context
        database = two_servers.postgres(context.database._inner._url)
        beside = worlds.InterruptedDatabase(database, random.Random(2))
        other = another.deposits(world, database=beside)
        wallet, accounts = await stranger(world), [await world.account() for _ in range(3)]
        for micro in range(1, 6):
            await wallet.pay(*((account.token_account, micro) for account in accounts))
            looks = (
                watch.poll_everywhere()
                for watch in (world.runtime.services.built["accounts"].deposits, other)
            )
            await asyncio.gather(*looks)
        for account in accounts:
            await assert_posted(world, account, 1, 2, 3, 4, 5)
        await database.close()


async def test_an_overtaken_watcher_continues_from_the_cursor_of_the_other(world: World) -> None:
    wallet, account = await stranger(world), await world.account()
    await wallet.pay((account.token_account, 5))

    async def overtaken(chain: FaultyChain, proceed: Proceed) -> Any:
        found = await proceed()
        await another.deposits(world).poll(account.token_account)
        await wallet.pay((account.token_account, 6))
        return found

    world.chain.next("deposits", overtaken)
    await world.runtime.services.built["accounts"].deposits.poll(account.token_account)
    await assert_posted(world, account, 5, 6)


async def test_a_funding_posted_by_another_watcher_is_still_audited(world: World) -> None:
    account = await world.account()

    async def overtaken(chain: FaultyChain, proceed: Proceed) -> Any:
        await another.deposits(world).poll(account.token_account)
        return await proceed()

    world.chain.next("signature_status", overtaken)
    await world.fund(account.account_id, "5")
    await assert_posted(world, account, 5_000_000)
    assert len(await world.rows("audit", action="sandbox.accounts.fund")) == 1


# --- What ends in the middle


@pytest.mark.parametrize("look", ["token_accounts", "deposits"])
async def test_a_failed_look_is_retried(world: World, look: str) -> None:
    wallet, account = await stranger(world), await world.account()
    await wallet.pay((account.token_account, 5))
    world.runtime.services.built["accounts"].deposits.arrived(None)
    world.chain.next(look, chains.down)
    await world.advance()
    await assert_entries(world, account)
    await world.advance(RETRY_US / SECOND_US)
    await assert_posted(world, account, 5)
    assert not world.runtime.services.built["accounts"].deposits.is_any_due


async def test_spending_an_unposted_deposit_never_reports_a_negative_balance(
    world: World,
) -> None:
    wallet, account, to = await stranger(world), await world.account("60"), await world.account()
    hook = {
        "url": "https://receiver.example/",
        "events": ["balance.low_threshold"],
        "low_balance_threshold_usdc": 50,
    }
    assert (await world.request("POST", "/v1/webhooks", hook)).status == 201
    world.chain.inner._listener = None
    await wallet.pay((account.token_account, 100_000_000))
    assert (await world.transfer("key", account, to, "120")).status == 200
    (event,) = await world.rows("events", type="balance.low_threshold")
    data = codec.parse_json(event["body"].encode())["data"]
    assert codec.structure(data, BalanceLowThresholdData).balance_usdc == 0


@pytest.mark.parametrize("is_named", [True, False])
async def test_an_unreadable_deposit_blocks_neither_other_deposits_nor_spending(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_named: bool
) -> None:
    # Since the start the history of the first was read once, as before any first signature.
    wallet, first, second = await stranger(world), await world.account("0.000001"), await world.account()
    if not is_named:
        world.chain.inner._listener = None
        world.runtime.services.built["accounts"].deposits.arrived(None)
    await wallet.pay((first.token_account, 5))
    await wallet.pay((second.token_account, 6))
    told = world.chain.deposits

    async def unreadable(token_account: str, *, after: str | None, **_: Any) -> Any:
        if token_account == first.token_account:
            raise ChainUnreachableError("scripted: no node has that transaction")
        async for batch in told(token_account, after=after):
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(world.chain, "deposits", unreadable)
        await world.advance()
        await assert_posted(world, second, 6)
        await assert_entries(world, first, 1)
        await world.advance(RETRY_US / SECOND_US)
        (told_of,) = [record for record in caplog.records if "deposits.unread" in record.getMessage()]
        assert first.token_account in told_of.getMessage()
        assert (await world.transfer("key", first, second, "0.000004")).status == 200
        opened = await world.open_session("session", first, second, "0.000001")
        assert opened.status == 201, opened
    await world.advance(RETRY_US / SECOND_US)
    (row,) = await world.rows("accounts", account_id=first.account_id)
    assert row["balance"] == world.balance(first) == 1
    assert not world.runtime.services.built["accounts"].deposits.is_any_due


async def assert_entries(world: World, account: Party, *amounts: int) -> None:
    assert [entry["amount"] for entry in await world.entries(account)] == list(amounts)


async def test_an_unposted_deposit_is_posted_by_the_next_server(lives: Lives) -> None:
    world = await lives.start()
    wallet, account, idle = await stranger(world), await world.account("3"), await world.account()
    await wallet.pay((account.token_account, 5))
    world = await lives.restart()
    await assert_posted(world, account, 3_000_000, 5)
    # The last is the comparison with the books, once per start.
    assert world.chain.calls == ["token_accounts", "deposits", "token_accounts"]
    world = await lives.restart()
    await assert_posted(world, account, 3_000_000, 5)
    # The books agree with the chain: no account is worth more than the one look at all.
    assert world.chain.calls == ["token_accounts"]
    await assert_entries(world, idle)


async def test_a_deposit_equal_to_a_transfer_in_flight_is_found(lives: Lives) -> None:
    """A deposit equals the amount in flight, so the balance does not reveal it."""
    world = await lives.start()
    wallet, source, to = await stranger(world), await world.account("9"), await world.account()
    world.chain.next("signature_status", chains.goes_down_after)
    await lives.ended_in(world.transfer("key", source, to, "4"))
    wallet = Wallet(world.chain.inner, world.runtime.context.signer)
    await wallet.pay((source.token_account, 4_000_000))
    world = await lives.start(is_down=True)
    (row,) = await world.rows("accounts", account_id=source.account_id)
    assert (row["balance"], row["in_flight"]) == (9_000_000, 4_000_000)
    assert world.balance(source) == 9_000_000
    world.chain.is_down = False
    await world.advance(RETRY_US / SECOND_US)
    await world.rest()
    await assert_posted(world, source, 9_000_000, 4_000_000)
    await assert_posted(world, to, 4_000_000)


@pytest.mark.parametrize("point", ["before", "after"])
async def test_an_interrupted_funding_is_posted_if_it_was_executed(lives: Lives, point: str) -> None:
    world = await lives.start()
    account = await world.account()

    async def hangs(chain: FaultyChain, proceed: Proceed) -> None:
        if point == "after":
            await proceed()
        await asyncio.Event().wait()

    world.chain.next("send", hangs)
    await lives.ended_in(world.fund(account.account_id, "5"))
    world = await lives.start()
    await assert_posted(world, account, *([5_000_000] if point == "after" else []))
    audited = [row["action"] for row in await world.rows("audit")]
    # The caller died with the process; the deposit did not.
    assert audited.count("sandbox.accounts.fund") == 0


async def test_a_deposit_whose_write_reply_was_lost_is_found(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await lives.start()
    wallet, account = await stranger(world), await world.account()
    ledger = world.chain.inner._ledger
    write, losses = ledger.write, [True]

    async def reply_lost(page: Any) -> None:
        await write(page)
        if losses:
            losses.pop()
            raise OSError("scripted: the connection was lost")

    monkeypatch.setattr(ledger, "write", reply_lost)
    with pytest.raises(ChainUnreachableError):
        await wallet.pay((account.token_account, 5))
    await world.chain.inner.block_height()
    await world.advance()
    await assert_posted(world, account, 5)


async def test_an_unreadable_journal_is_read_again_later(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await lives.start()
    wallet, account = await stranger(world), await world.account()
    await wallet.pay((account.token_account, 5))

    async def unreadable(*_: object, **__: object) -> None:
        raise OSError("scripted: no disk")

    with monkeypatch.context() as patch:
        patch.setattr(world.chain.inner._ledger, "credits", unreadable)
        await world.advance()
        await assert_entries(world, account)
    await world.advance(RETRY_US / SECOND_US)
    await assert_posted(world, account, 5)


# --- A chain that does not tell


async def test_a_chain_without_a_listener_is_polled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wallet, account = await stranger(world), await world.account()
    real_us = 0
    machine_clock.pace(monkeypatch, lambda: real_us / SECOND_US)
    world.chain.inner._listener = None
    clock = machine_clock.Running(lambda: real_us)
    worker = another.deposits(world, every_seconds=5, clock=clock)
    assert await worker.next_due_us() == 0
    assert await worker.run_due()
    assert await worker.next_due_us() == 5 * SECOND_US
    assert not await worker.run_due()
    await wallet.pay((account.token_account, 5))
    real_us = 5 * SECOND_US
    world.chain.next("token_accounts", chains.down)
    assert await worker.run_due()
    assert await worker.next_due_us() == real_us + RETRY_US
    assert not await worker.run_due()
    real_us += RETRY_US
    assert await worker.run_due()
    await assert_posted(world, account, 5)
    assert await worker.next_due_us() == real_us + 5 * SECOND_US


async def test_advancing_a_manual_clock_does_not_poll_earlier(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_us = 0
    machine_clock.pace(monkeypatch, lambda: real_us / SECOND_US)
    clock = world.runtime.context.clock
    worker = another.deposits(world, every_seconds=5)
    assert await worker.next_due_us() == clock.now_us()
    assert await worker.run_due()
    assert await worker.next_due_us() is None
    real_us = 5 * SECOND_US
    assert await worker.next_due_us() == clock.now_us()
