"""The fee budget under faults, races and deaths: it counts what the treasury lost, to the lamport (P24)."""

import asyncio
from collections import Counter
from pathlib import Path

import chains
import fee_books
import pytest
import signed
import worlds
from chains import TROUBLE
from outsiders import Wallet
from worlds import Answer, Party, World

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

TRANSFER = 10_000
OPENING, CLOSE = 15_000, 10_000
CYCLE = OPENING + CLOSE
SEEDS = range(4)

UNITS = range(1, 16)
"""Before the first of them nothing is signed; after the last the session is settled."""


def sol(lamports: int) -> str:
    return f"{lamports / 10**9:.9f}"


async def treasury(world: World) -> int:
    found = await world.chain.inner.account_size(world.treasury)
    assert found is not None
    return found[0]


async def counted(world: World, account: Party) -> tuple[int, int]:
    """Return the lamports that an account has burned, and those that its unfinished work may burn."""
    return await fee_books.counted(world.runtime.context, account.account_id)


async def pair(world: World, funds: str = "100") -> tuple[Party, Party]:
    return await world.account(funds), await world.account()


def over(answer: Answer) -> bool:
    return (answer.status, answer.error) == (429, "fee_budget_exceeded")


# --- Faults


@pytest.mark.parametrize("trouble", TROUBLE.values(), ids=TROUBLE)
@pytest.mark.parametrize("at", ["opening", "close"])
async def test_an_uncharged_session_burns_what_the_treasury_lost(
    world: World, at: str, trouble: chains.Act
) -> None:
    source, to = await pair(world)
    before = await treasury(world)
    if at == "opening":
        world.chain.next("send", trouble)
    session_id = await world.opened_session("s", source, to, "10")
    assert await counted(world, source) == (0, CYCLE)
    if at == "close":
        world.chain.next("send", trouble)
    assert (await world.close_session(session_id)).status == 200
    assert before - await treasury(world) == CYCLE
    assert await counted(world, source) == (CYCLE, 0)


@pytest.mark.parametrize("trouble", TROUBLE.values(), ids=TROUBLE)
async def test_a_settled_transfer_burns_nothing(world: World, trouble: chains.Act) -> None:
    source, to = await pair(world)
    world.chain.next("send", trouble)
    assert (await world.transfer("t", source, to, "1")).status == 200
    assert await counted(world, source) == (0, 0)


async def test_failed_transfers_burn_their_fees_until_the_budget_is_used_up() -> None:
    async with worlds.world(fee_budget_sol=sol(2 * TRANSFER)) as world:
        source, to = await pair(world)
        for key in ("first", "second"):
            world.chain.next_payment(chains.before(lambda: world.freeze(to)))
            assert (await world.transfer(key, source, to, "1")).error == "transfer_failed"
            world.thaw(to)
        assert await counted(world, source) == (2 * TRANSFER, 0)
        refused = await world.transfer("third", source, to, "1")
        assert over(refused)
        assert int(refused.headers["retry-after"]) == 24 * 3600
        # The key of a failed transfer makes a new attempt, which needs the budget as well.
        assert over(await world.transfer("first", source, to, "1"))
        assert len(await world.rows("transfers")) == 2
        await world.advance(24 * 3600)
        assert (await world.transfer("first", source, to, "1")).status == 200
        assert await counted(world, source) == (0, 0)


async def test_what_expires_without_landing_is_given_back(world: World) -> None:
    source, to = await pair(world)
    before = await treasury(world)
    world.chain.black_holes.add("*")
    waiting = await asyncio.gather(
        world.open_session("s", source, to, "10"), world.transfer("t", source, to, "1")
    )
    assert [answer.status for answer in waiting] == [503, 503]
    assert await counted(world, source) == (0, CYCLE + TRANSFER)
    await world.policy(source, paused=True)
    world.chain.inner.expire_blockhash()
    await world.rest()
    assert {row["status"] for row in await world.rows("sessions")} == {"failed"}
    assert {row["status"] for row in await world.rows("transfers")} == {"failed"}
    assert await counted(world, source) == (0, 0)
    assert before == await treasury(world)


async def test_a_failed_opening_burns_its_fee_and_reserves_no_close(world: World) -> None:
    source, to = await pair(world)
    world.chain.next("send", chains.before(lambda: world.freeze(source)))
    assert (await world.open_session("s", source, to, "10")).error == "transfer_failed"
    assert await counted(world, source) == (OPENING, 0)


@pytest.mark.parametrize("charge", ["0", "4"])
async def test_each_failed_settlement_burns_its_fee(world: World, charge: str) -> None:
    source, to = await pair(world)
    stranger = await world.account("1")
    session_id = await world.opened_session("s", source, to, "10")
    if charge != "0":
        await world.charge("k", session_id, charge)
    escrow = (await world.get_session(session_id))["escrow_token_account"]
    for _ in range(3):
        dust = chains.before(lambda: world.drain(stranger, Party("", escrow), "0.000001"))
        world.chain.next("send", dust)
    assert (await world.close_session(session_id)).status == 200
    assert await counted(world, source) == (3 * CLOSE + (CYCLE if charge == "0" else 0), 0)


async def test_a_close_waits_for_a_payee_with_its_fee_reserved(world: World) -> None:
    source, to = await pair(world)
    session_id = await world.opened_session("s", source, to, "10")
    await world.charge("k", session_id, "4")
    world.freeze(to)
    assert (await world.close_session(session_id)).error == "transfer_failed"
    assert await counted(world, source) == (0, CYCLE)
    world.thaw(to)
    assert (await world.close_session(session_id)).status == 200
    assert await counted(world, source) == (0, 0)


async def test_the_rent_of_a_new_token_account_is_reserved_only_while_it_may_be_created(
    world: World,
) -> None:
    source = await world.account("100")
    wallet = Wallet(world.chain.inner, world.runtime.context.signer, 3)
    await wallet.open(0)
    session_id = await world.opened_session("s", source, Party(wallet.token_account, ""), "10")
    await world.charge("k", session_id, "4")
    await wallet.close()
    world.chain.next("send", chains.goes_down)
    assert (await world.close_session(session_id)).status == 503
    rent = await world.chain.inner.rent_exemption(165)
    assert await counted(world, source) == (0, CYCLE + rent)
    world.chain.clear()
    await world.rest()
    assert (await world.close_session(session_id)).status == 200
    assert await counted(world, source) == (rent, 0)


# --- Races


@pytest.mark.parametrize("seed", SEEDS)
async def test_racing_openings_and_transfers_reach_the_budget_and_do_not_exceed_it(seed: int) -> None:
    budget = 10 * CYCLE + TRANSFER - 1
    async with worlds.world(interrupted=seed, fee_budget_sol=sol(budget)) as world:
        source, to = await pair(world)
        before = await treasury(world)
        answers = await asyncio.gather(
            *(world.open_session(f"s{number}", source, to, "0.1") for number in range(40))
        )
        opened = [answer for answer in answers if answer.status == 201]
        assert len(opened) == 10
        assert all(over(answer) for answer in answers if answer.status != 201)
        assert over(await world.transfer("t", source, to, "1"))
        closed = await asyncio.gather(
            *(world.close_session(answer.body["session_id"]) for answer in opened),
            *(world.open_session(f"t{number}", source, to, "0.1") for number in range(10)),
        )
        assert [answer.status for answer in closed[:10]] == [200] * 10
        assert all(over(answer) for answer in closed[10:])
        assert before - await treasury(world) == 10 * CYCLE
        assert await counted(world, source) == (10 * CYCLE, 0)


@pytest.mark.parametrize("seed", SEEDS)
async def test_accounts_created_together_stop_at_the_limit_of_their_operator(seed: int) -> None:
    async with worlds.world(interrupted=seed, max_accounts_per_day=7) as world:
        answers = await asyncio.gather(
            *(world.request("POST", "/v1/accounts", {"name": f"{number}"}) for number in range(20))
        )
        assert Counter((answer.status, answer.error) for answer in answers) == {
            (201, None): 7,
            (429, "rate_limited"): 13,
        }
        assert len(await world.rows("accounts")) == 7


# --- Deaths


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("at", ["opening", "close"])
async def test_a_server_that_dies_counts_what_the_treasury_lost(tmp_path: Path, at: str, units: int) -> None:
    budget = sol(CYCLE)
    first = await worlds.started(data_dir=tmp_path, fee_budget_sol=budget)
    source, to = await pair(first)
    before = await treasury(first)
    if at == "opening":
        await first.cut_off(first.open_session("s", source, to, "10"), units)
    else:
        session_id = await first.opened_session("s", source, to, "10")
        await first.cut_off(first.close_session(session_id), units)
    second = await worlds.started(data_dir=tmp_path, after=first, fee_budget_sol=budget)
    try:
        # The key finds what is stored: a session that exists is never refused.
        opened = await second.open_session("s", source, to, "10")
        assert opened.status == 201, opened
        burned, reserved = await counted(second, source)
        assert burned + reserved == CYCLE
        assert over(await second.open_session("another", source, to, "10"))
        assert (await second.close_session(opened.body["session_id"])).status == 200
        assert await counted(second, source) == (CYCLE, 0)
        assert before - await treasury(second) == CYCLE
        assert signed.in_state(await second.rows("chain_transactions"), "pending") == []
        assert over(await second.open_session("another", source, to, "10"))
    finally:
        await second.stop()
