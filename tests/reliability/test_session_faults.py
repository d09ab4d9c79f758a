"""Sessions on a chain that loses requests, loses replies, lets transactions expire, or is away (P8, P10)."""

import asyncio
from functools import partial
from typing import Any

import another
import chains
import pytest
import signed
import worlds
from chains import TROUBLE
from outsiders import Wallet
from worlds import Answer, Party, World

pytestmark = pytest.mark.anyio


async def pair(world: World, funds: str = "100") -> tuple[Party, Party]:
    return await world.account(funds), await world.account()


async def books(world: World, party: Party) -> dict[str, Any]:
    (row,) = await world.rows("accounts", account_id=party.account_id)
    return row


async def assert_settled(world: World, source: Party, to: Party, closed: Answer, charged: int) -> None:
    """Assert that one session of 10 USDC was opened and settled, once each, on chain and in the books."""
    assert (closed.status, closed.body["status"]) == (200, "settled"), closed
    assert worlds.micro(closed.body["settled_usdc"]) == charged
    assert world.balance(to) == charged
    assert world.balance(source) == 100_000_000 - charged
    assert world.attempts(closed.body["session_id"]).count("landed") == 2
    row = await books(world, source)
    assert (row["in_flight"], row["cap_holds"], row["spent_total"]) == (0, 0, charged)
    for party in (source, to):
        assert (await books(world, party))["balance"] == world.balance(party)
    types = [event["type"] for event in await world.events()]
    assert (types.count("session.opened"), types.count("session.settled")) == (1, 1)


@pytest.mark.parametrize("trouble", TROUBLE.values(), ids=TROUBLE)
@pytest.mark.parametrize("at", ["opening", "settlement"])
async def test_a_session_with_a_chain_fault_funds_one_escrow_and_pays_once(
    world: World, at: str, trouble: chains.Act
) -> None:
    source, to = await pair(world)
    if at == "opening":
        world.chain.next("send", trouble)
    session_id = await world.opened_session("s", source, to, "10")
    assert world.balance(source) == 90_000_000
    await world.charge("k", session_id, "4")
    if at == "settlement":
        world.chain.next("send", trouble)
    await assert_settled(world, source, to, await world.close_session(session_id), 4_000_000)


async def test_an_opening_whose_outcome_is_unknown_is_resumed_by_its_key(world: World) -> None:
    source, to = await pair(world)
    world.chain.next("send", chains.goes_down_after)
    unknown = await world.open_session("s", source, to, "10")
    assert (unknown.status, unknown.error, unknown.body["status"]) == (503, "chain_unavailable", "opening")
    assert unknown.headers["retry-after"]
    session_id = unknown.body["session_id"]
    early = await world.charge("k", session_id, "1")
    assert (early.status, early.error, early.body.get("session_id")) == (503, "chain_unavailable", None)
    assert (await world.close_session(session_id)).status == 503
    world.chain.is_down = False
    world.chain.at(2, chains.goes_down)
    detail = await world.detail(source)
    assert (detail["spent_usdc"], detail["reserved_usdc"]) == ("10.000000", "10.000000")
    world.chain.clear()
    assert await world.opened_session("s", source, to, "10") == session_id
    await assert_settled(world, source, to, await world.close_session(session_id), 0)


async def test_an_opening_while_the_chain_is_down_stores_nothing(world: World) -> None:
    source, to = await pair(world)
    world.chain.is_down = True
    answer = await world.open_session("s", source, to, "10")
    assert (answer.status, answer.error) == (503, "chain_unavailable")
    assert "session_id" not in answer.body
    assert await world.rows("sessions") == []


async def test_a_close_while_the_chain_is_down_stops_charges_and_settles_later(world: World) -> None:
    source, to = await pair(world)
    session_id = await world.opened_session("s", source, to, "10")
    await world.charge("k", session_id, "4")
    world.chain.is_down = True
    away = await world.close_session(session_id)
    assert (away.status, away.body["status"], away.body["session_id"]) == (503, "closing", session_id)
    assert (await world.charge("l", session_id, "1")).error == "session_closed"
    world.chain.clear()
    await assert_settled(world, source, to, await world.close_session(session_id), 4_000_000)


async def test_an_opening_that_expires_on_a_paused_account_fails(world: World) -> None:
    source, to = await pair(world)
    world.chain.black_holes.add("*")
    unknown = await world.open_session("s", source, to, "10")
    assert unknown.status == 503
    await world.policy(source, paused=True)
    world.chain.inner.expire_blockhash()
    await world.rest()
    failed = await world.open_session("s", source, to, "10")
    assert (failed.status, failed.error, failed.body["status"]) == (402, "account_paused", "rejected")
    session = await world.get_session(unknown.body["session_id"])
    assert session["status"] == "failed"
    assert (await world.close_session(session["session_id"])).error == "session_closed"
    row = await books(world, source)
    assert (row["in_flight"], row["cap_holds"]) == (0, 0)
    world.chain.clear()
    await world.policy(source, paused=False)
    assert await world.opened_session("s", source, to, "10") != session["session_id"]
    assert world.balance(source) == 90_000_000


async def test_an_opening_refused_for_insufficient_balance_fails_and_its_key_can_open_another(
    world: World,
) -> None:
    source, to = await pair(world, "10")
    other = await world.account()
    world.chain.next("send", chains.before(lambda: world.drain(source, other, "5")))
    failed = await world.open_session("s", source, to, "10")
    assert (failed.status, failed.error, failed.body["status"]) == (402, "insufficient_balance", "failed")
    assert set(failed.body) == {"error", "message", "session_id", "status", "refusal"}
    row = await books(world, source)
    assert (row["in_flight"], row["cap_holds"]) == (0, 0)
    await world.fund(source.account_id, "5")
    assert await world.opened_session("s", source, to, "10") != failed.body["session_id"]


async def test_an_opening_refused_for_another_reason_fails_as_transfer_failed(world: World) -> None:
    source, to = await pair(world)
    world.chain.next("send", chains.before(lambda: world.freeze(source)))
    failed = await world.open_session("s", source, to, "10")
    assert (failed.error, failed.body["status"]) == ("transfer_failed", "failed")


@pytest.mark.parametrize("times", [1, 3])
async def test_a_deposit_to_the_escrow_just_before_settlement_is_posted(world: World, times: int) -> None:
    source, to = await pair(world)
    stranger = await world.account("1")
    session_id = await world.opened_session("s", source, to, "10")
    await world.charge("k", session_id, "4")
    escrow = (await world.get_session(session_id))["escrow_token_account"]
    for _ in range(times):
        dust = chains.before(lambda: world.drain(stranger, Party("", escrow), "0.000001"))
        world.chain.next("send", dust)
    closed = await world.close_session(session_id)
    assert (closed.status, closed.body["settled_usdc"]) == (200, "4.000000")
    assert (world.balance(to), world.balance(source)) == (4_000_000, 96_000_000 + times)
    entries = [entry for entry in await world.entries(source) if entry["counterparty"] == escrow]
    assert [entry["amount"] for entry in entries] == [times]
    assert (await books(world, source))["balance"] == 96_000_000 + times


@pytest.mark.parametrize("side", ["payee", "source"])
async def test_a_party_frozen_just_before_settlement_leaves_the_money_in_escrow(
    world: World, side: str
) -> None:
    source, to = await pair(world)
    frozen = to if side == "payee" else source
    session_id = await world.opened_session("s", source, to, "10")
    await world.charge("k", session_id, "4")
    world.chain.next("send", chains.before(lambda: world.freeze(frozen)))
    for _ in range(2):
        refused = await world.close_session(session_id)
        assert (refused.status, refused.error, refused.body["status"]) == (402, "transfer_failed", "closing")
    escrow = Party("", (await world.get_session(session_id))["escrow_token_account"])
    assert world.balance(escrow) == 10_000_000
    world.thaw(frozen)
    await assert_settled(world, source, to, await world.close_session(session_id), 4_000_000)


async def outside_payee(world: World, source: Party) -> tuple[Wallet, Party, str]:
    """Return a payee outside the service with an empty token account, and a session of 10 with 4 charged."""
    wallet = Wallet(world.chain.inner, world.runtime.context.signer)
    await wallet.open(0)
    payee = Party(wallet.token_account, wallet.token_account)
    session_id = await world.opened_session("s", source, payee, "10")
    await world.charge("k", session_id, "4")
    return wallet, payee, session_id


async def test_a_payee_that_closes_its_account_just_before_settlement_is_paid(
    world: World,
) -> None:
    source = await world.account("100")
    wallet, payee, session_id = await outside_payee(world, source)
    world.chain.next("send", chains.before(lambda: worlds.drive(wallet.close())))
    closed = await world.close_session(session_id)
    assert (closed.status, closed.body["closing_reason"]) == (200, None)
    assert (world.balance(payee), world.balance(source)) == (4_000_000, 96_000_000)
    # The opening, a settlement that the chain refused, and another.
    assert world.attempts(session_id) == ["landed", "lost", "landed"]


async def test_settlement_is_deferred_while_a_payee_repeatedly_closes_its_account(world: World) -> None:
    source = await world.account("100")
    wallet, payee, session_id = await outside_payee(world, source)
    for micro in (1, 2):
        # The look shows it, and the settlement does not find it.
        opens, closes = partial(wallet.open, micro), partial(_emptied, wallet, source, micro)
        world.chain.next("token_accounts", chains.before(lambda opens=opens: worlds.drive(opens())))
        world.chain.next("send", chains.before(lambda closes=closes: worlds.drive(closes())))
    refused = await world.close_session(session_id)
    assert (refused.status, refused.error, refused.body["status"]) == (402, "transfer_failed", "closing")
    assert (await world.get_session(session_id))["closing_reason"] == "settlement_refused"
    await world.advance(60)
    assert (await world.get_session(session_id))["status"] == "settled"
    assert world.balance(payee) == 4_000_000


async def _emptied(wallet: Wallet, source: Party, micro: int) -> None:
    await wallet.pay((source.token_account, micro))
    await wallet.close()


async def test_an_expired_settlement_that_recreates_the_payee_account_pays_once(
    world: World,
) -> None:
    source = await world.account("100")
    wallet, payee, session_id = await outside_payee(world, source)
    await wallet.close()
    world.chain.next("send", chains.expiring)
    # It is back by the time that the settlement is signed again.
    world.chain.next("token_accounts", chains.passed, chains.before(lambda: worlds.drive(wallet.open(1))))
    closed = await world.close_session(session_id)
    assert (closed.status, closed.body["settled_usdc"]) == (200, "4.000000")
    assert (world.balance(payee), world.balance(source)) == (4_000_001, 96_000_000)


async def test_a_charge_after_a_session_was_found_idle_keeps_it_open() -> None:
    async with worlds.world(session_idle_seconds=60) as world:
        source, to = await pair(world)
        session_id = await world.opened_session("s", source, to, "10")
        await world.charge("k", session_id, "4")
        # As if another server had found it due just before the charge.
        session = await another.closed(world, session_id)
        assert session.status == "open"
        assert (await world.charge("l", session_id, "1")).status == 200
        await world.advance(60)
        assert (await world.get_session(session_id))["closing_reason"] == "idle"


async def test_an_expired_settlement_is_signed_again_although_the_account_is_paused(world: World) -> None:
    source, to = await pair(world)
    session_id = await world.opened_session("s", source, to, "10")
    await world.policy(source, paused=True)
    await world.rest()
    world.chain.black_holes.add("*")
    assert (await world.close_session(session_id)).status == 503
    world.chain.black_holes.clear()
    world.chain.inner.expire_blockhash()
    await world.rest()
    assert (await world.get_session(session_id))["status"] == "settled"
    assert world.balance(source) == 100_000_000
    assert len(signed.expired(await world.rows("chain_transactions"))) == 1


async def test_an_escrow_that_a_node_does_not_show_is_not_settled_twice(world: World) -> None:
    source, to = await pair(world)
    session_id = await world.opened_session("s", source, to, "10")

    async def without_escrow(chain: chains.FaultyChain, proceed: chains.Proceed) -> Any:
        return [None, *(await proceed())[1:]]

    world.chain.next("token_accounts", *[without_escrow] * 3)
    await assert_settled(world, source, to, await world.close_session(session_id), 0)


async def test_a_close_claimed_while_the_chain_was_down_settles_without_another_request(
    world: World,
) -> None:
    source, to = await pair(world)
    session_id = await world.opened_session("s", source, to, "10")
    await world.charge("k", session_id, "4")
    world.chain.is_down = True
    assert (await world.close_session(session_id)).status == 503
    world.chain.clear()
    await world.advance()
    assert (await world.get_session(session_id))["status"] == "settled"
    assert world.balance(to) == 4_000_000


async def test_two_drivers_of_one_session_book_one_end(world: World) -> None:
    source, to = await pair(world)
    second_process = another.engine(world)

    world.chain.next("send", chains.goes_down)
    unknown = await world.open_session("s", source, to, "10")
    opening = await another.pending(world, "session_open", unknown.body["session_id"])
    other = second_process.drive(opening)
    world.chain.clear()
    world.chain.inner.expire_blockhash()
    session_id = await world.opened_session("s", source, to, "10")
    assert (await other).subject.status == "open"
    await world.charge("k", session_id, "4")

    world.chain.next("send", chains.goes_down)
    assert (await world.close_session(session_id)).status == 503
    other = second_process.drive(await another.pending(world, "session_close", session_id))
    world.chain.clear()
    world.chain.inner.expire_blockhash()
    closed = await world.close_session(session_id)
    assert (await other).subject.status == "settled"
    await assert_settled(world, source, to, closed, 4_000_000)
    assert (await another.closed(world, session_id, second_process)).status == "settled"


async def test_a_transfer_resolves_an_unknown_opening_before_checking_the_balance(world: World) -> None:
    source, to = await pair(world, "10")
    world.chain.next("send", chains.goes_down_after)
    assert (await world.open_session("s", source, to, "6")).status == 503
    world.chain.clear()
    # The cap is gone from the balance and in flight as well, until the opening is posted.
    assert (await world.transfer("t", source, to, "4")).status == 200
    assert (await world.get_session((await world.rows("sessions"))[0]["session_id"]))["status"] == "open"


async def test_closing_stops_charges_although_the_chain_hangs(world: World) -> None:
    source, to = await pair(world)
    session_id = await world.opened_session("s", source, to, "10")
    await world.charge("k", session_id, "4")
    asked, answering = asyncio.Event(), asyncio.Event()

    async def hanging(_: chains.FaultyChain, proceed: chains.Proceed) -> Any:
        asked.set()
        await answering.wait()
        return await proceed()

    world.chain.next("token_accounts", hanging)
    closing = asyncio.ensure_future(world.close_session(session_id))
    await asked.wait()
    assert (await world.charge("l", session_id, "5")).error == "session_closed"
    answering.set()
    await assert_settled(world, source, to, await closing, 4_000_000)


async def test_a_settlement_deferred_by_a_concurrent_close_leaves_no_retry_due(
    world: World,
) -> None:
    source, to = await pair(world)
    session_id = await world.opened_session("s", source, to, "10")
    await world.charge("k", session_id, "4")
    asked, answering = asyncio.Event(), asyncio.Event()

    async def slow(_: chains.FaultyChain, proceed: chains.Proceed) -> Any:
        seen = await proceed()
        asked.set()
        await answering.wait()
        return seen

    world.chain.next("token_accounts", slow)
    closing = asyncio.ensure_future(world.close_session(session_id))
    await asked.wait()
    world.freeze(to)
    assert (await world.close_session(session_id)).error == "transfer_failed"
    world.thaw(to)
    answering.set()
    await assert_settled(world, source, to, await closing, 4_000_000)
    (row,) = await world.rows("sessions", session_id=session_id)
    assert (row["closes_us"], row["error"]) == (None, None)
    # Nothing is due any more: an advance would never end otherwise.
    await asyncio.wait_for(world.advance(24 * 3600), 120)


async def test_sessions_waiting_for_the_chain_write_nothing(world: World) -> None:
    source, to = await pair(world)
    sessions = [await world.opened_session(f"s{number}", source, to, "10") for number in range(3)]
    world.chain.is_down = True
    answers = [await world.close_session(session_id) for session_id in sessions]
    assert {answer.status for answer in answers} == {503}
    await world.advance()
    database = world.runtime.context.database
    written = []
    run = database.run

    async def noted(unit: Any, *args: Any, **kwargs: Any) -> Any:
        written.append(unit)
        return await run(unit, *args, **kwargs)

    database.run = noted  # type: ignore[method-assign]
    looks = world.chain.calls.count("token_accounts")
    await asyncio.sleep(60)
    assert world.chain.calls.count("token_accounts") > looks
    assert written == []
    world.chain.clear()
    await world.rest()
    assert {(await world.get_session(session_id))["status"] for session_id in sessions} == {"settled"}


async def test_a_frozen_escrow_is_not_settled_until_it_is_thawed(world: World) -> None:
    source, to = await pair(world)
    session_id = await world.opened_session("s", source, to, "10")
    await world.charge("k", session_id, "4")
    escrow = Party("", (await world.get_session(session_id))["escrow_token_account"])
    world.freeze(escrow)
    refused = await world.close_session(session_id)
    assert (refused.status, refused.error) == (402, "transfer_failed")
    assert escrow.token_account in refused.body["message"]
    assert world.attempts(session_id) == ["landed"]
    world.thaw(escrow)
    await assert_settled(world, source, to, await world.close_session(session_id), 4_000_000)


async def test_a_charge_cancelled_during_its_commit_still_wakes_event_delivery() -> None:
    async with worlds.world(interrupted=3) as world:
        source, to = await pair(world)
        wakeup = world.runtime.context.wakeup
        wake, told = wakeup.set, []
        charged = 0
        for steps in range(20):
            session_id = await world.opened_session(f"s{steps}", source, to, "1")
            told.clear()
            wakeup.set = lambda: (told.append(True), wake())  # type: ignore[method-assign, assignment, func-returns-value]
            charging = asyncio.ensure_future(world.charge("c", session_id, "1"))
            for _ in range(steps):
                await asyncio.sleep(0)
            charging.cancel()
            await asyncio.gather(charging, return_exceptions=True)
            await world.rest()
            wakeup.set = wake  # type: ignore[method-assign]
            is_charged = bool(await world.rows("session_charges", session_id=session_id))
            assert bool(told) == is_charged
            charged += is_charged
        assert 0 < charged < 20


async def test_a_charge_that_violates_a_constraint_is_not_tried_again_and_again(world: World) -> None:
    source, to = await world.account("10"), await world.account()
    session_id = await world.opened_session("s", source, to, "3")
    database: Any = world.runtime.context.database
    database.violations = 5
    assert (await world.charge("a", session_id, "1")).status == 500
    assert database.violations == 4
    database.violations = 0
    charged = await world.charge("a", session_id, "1")
    assert (charged.status, charged.body["running_total_usdc"]) == (200, "1.000000")
