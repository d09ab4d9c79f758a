"""Approvals that race each other, and everything else that decides about them: one outcome.

See interface AP1 to AP5; P1, P9.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import chains
import pytest
import signed
import stores
import two_servers as serving
import worlds
from worlds import START, Answer, InterruptedDatabase, Party, World

from agentpay_server import Settings

SEEDS = range(6)
DAY_SECONDS = 24 * 3600
KEY = bytes(range(32))

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]


async def waiting(world: World, amount: str = "7") -> tuple[Party, Party, str]:
    """Return an account with 100 USDC, a recipient, and a transfer between them that waits."""
    source, to = await world.account("100"), await world.account()
    await world.policy(source, escalation_threshold=1)
    return source, to, await asked(world, source, to, amount, "key")


async def asked(world: World, source: Party, to: Party, amount: str, key: str) -> str:
    answer = await world.transfer(key, source, to, amount)
    assert (answer.status, answer.body["status"]) == (202, "pending_approval"), answer
    return str(answer.transfer_id)


async def assert_one_end(world: World, source: Party, to: Party, transfer_id: str) -> str:
    """Assert that a transfer of 7 USDC is settled once or rejected once, everywhere; return which."""
    await world.rest()
    shown = await world.get_transfer(transfer_id)
    (row,) = await world.rows("transfers", transfer_id=transfer_id)
    is_settled = shown["status"] == "settled"
    assert world.balance(to) == (7_000_000 if is_settled else 0)
    assert world.attempts(transfer_id).count("landed") == is_settled
    ends = ["transfer.initiated", "transfer.settled"] if is_settled else ["transfer.rejected"]
    assert await world.event_types(transfer_id) == ["escalation.required", *ends]
    entries = [entry["type"] for entry in await world.entries(source)]
    assert entries == ["deposit", "transfer" if is_settled else "rejection"]
    detail = await world.detail(source)
    assert detail["reserved_usdc"] == "0.000000"
    assert detail["spent_usdc"] == ("7.000000" if is_settled else "0.000000")
    assert row["key_expires_us"] is not None
    assert signed.in_state(await world.rows("chain_transactions"), "pending") == []
    assert is_settled or row["tx_signature"] is None
    decisions = [row["action"] for row in await world.rows("audit", subject=transfer_id)]
    assert len(decisions) <= 2
    return str(shown["error"] if shown["status"] == "rejected" else shown["status"])


@pytest.mark.parametrize("seed", SEEDS)
async def test_concurrent_approvals_pay_once(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to, transfer_id = await waiting(world)
        answers = await asyncio.gather(*(world.approve(transfer_id) for _ in range(20)))
        counted = Counter((answer.status, answer.error) for answer in answers)
        assert counted == {(200, None): 1, (409, "not_pending"): 19}
        assert await assert_one_end(world, source, to, transfer_id) == "settled"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", [chains.reply_lost, chains.dropped, chains.expiring, chains.repeated])
async def test_concurrent_approvals_with_a_chain_fault_pay_once(seed: int, fault: chains.Act) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to, transfer_id = await waiting(world)
        world.chain.next_payment(fault)
        answers = await asyncio.gather(*(world.approve(transfer_id) for _ in range(3)))
        assert sorted(answer.status for answer in answers) == [200, 409, 409]
        assert await assert_one_end(world, source, to, transfer_id) == "settled"


@pytest.mark.parametrize("seed", SEEDS)
async def test_concurrent_approval_and_rejection_have_one_outcome(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to, transfer_id = await waiting(world)
        # An approval looks at the chain first: the rejections start from later and later.
        calls = [world.approve(transfer_id), *(_after(n, world.reject, transfer_id) for n in range(0, 60, 7))]
        approved, *rejected = await asyncio.gather(*calls)
        end = await assert_one_end(world, source, to, transfer_id)
        if end == "settled":
            assert (approved.status, approved.body["status"]) == (200, "settled")
            assert {answer.error for answer in rejected} == {"not_pending"}
        else:
            assert end == "escalation_rejected"
            assert (approved.status, approved.error) == (409, "not_pending")
            assert Counter(answer.status for answer in rejected) == {200: 1, 409: len(rejected) - 1}


async def _after(turns: int, call: Callable[..., Any], *args: Any) -> Answer:
    for _ in range(turns):
        await asyncio.sleep(0)
    answer: Answer = await call(*args)
    return answer


@pytest.mark.parametrize("turns", range(0, 60, 6))
@pytest.mark.parametrize(
    ("change", "error"),
    [({"paused": True}, "account_paused"), ({"max_single_transfer": 6}, "policy_violation")],
)
async def test_an_approval_after_a_policy_change_returned_obeys_the_new_policy(
    turns: int, change: dict[str, Any], error: str
) -> None:
    async with worlds.world(interrupted=turns) as world:
        source, to, transfer_id = await waiting(world)
        approval = asyncio.ensure_future(world.approve(transfer_id))
        for _ in range(turns):
            await asyncio.sleep(0)
        await world.policy(source, **change)
        was_spent = bool(signed.spends(await world.rows("chain_transactions")))
        answer = await approval
        assert bool(signed.spends(await world.rows("chain_transactions"))) == was_spent
        end = await assert_one_end(world, source, to, transfer_id)
        assert end == ("settled" if was_spent else error)
        assert (answer.status, answer.error) == ((200, None) if was_spent else (402, error))


@pytest.mark.parametrize("seed", SEEDS)
async def test_concurrent_approvals_and_transfers_stay_within_the_daily_limit(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("100"), await world.account()
        await world.policy(source, escalation_threshold=2)
        made = [await asked(world, source, to, "2", f"big-{number}") for number in range(10)]
        await world.policy(source, escalation_threshold=2, max_daily_spend=10.999999)
        answers = await asyncio.gather(
            *(world.approve(transfer_id) for transfer_id in made),
            *(world.transfer(f"small-{number}", source, to, "1") for number in range(10)),
        )
        assert {answer.error for answer in answers} == {None, "policy_violation"}
        spent = world.balance(to)
        assert spent == sum(2_000_000 for answer in answers[:10] if answer.status == 200) + sum(
            1_000_000 for answer in answers[10:] if answer.status == 200
        )
        # At least nothing that would have fitted was refused: no more than a big one is left.
        assert 9_000_000 <= spent <= 10_000_000
        assert (await world.detail(source))["spent_usdc"] == f"{spent / 10**6:.6f}"


@pytest.mark.parametrize("seed", SEEDS)
async def test_concurrent_approvals_spend_the_balance_and_the_rest_stay_pending(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to = await world.account("10.999999"), await world.account()
        await world.policy(source, escalation_threshold=1)
        made = [await asked(world, source, to, "2", f"key-{number}") for number in range(10)]
        answers = await asyncio.gather(*(world.approve(transfer_id) for transfer_id in made))
        counted = Counter((answer.status, answer.error, answer.body["status"]) for answer in answers)
        assert counted == {
            (200, None, "settled"): 5,
            (402, "insufficient_balance", "pending_approval"): 5,
        }
        await world.fund(source.account_id, "10")
        left = [answer.transfer_id for answer in answers if answer.status == 402]
        again = await asyncio.gather(*(world.approve(str(transfer_id)) for transfer_id in left))
        assert {answer.status for answer in again} == {200}
        assert (world.balance(source), world.balance(to)) == (999_999, 20_000_000)


@pytest.mark.parametrize("seed", SEEDS)
async def test_expiry_approval_and_rejection_at_the_same_moment_have_one_outcome(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to, transfer_id = await waiting(world)
        await world.advance(DAY_SECONDS - 0.000001)
        _, approved, rejected = await asyncio.gather(
            world.advance(0.000001), world.approve(transfer_id), world.reject(transfer_id)
        )
        end = await assert_one_end(world, source, to, transfer_id)
        assert (approved.status, rejected.status) == {
            "settled": (200, 409),
            "escalation_rejected": (409, 200),
            "escalation_expired": (409, 409),
        }[end]
        assert (await world.transfer("key", source, to, "7")).status == (200 if end == "settled" else 402)


@pytest.mark.parametrize("verb", ["approve", "reject"])
async def test_a_decision_at_expiry_time_is_refused_as_not_pending(world: World, verb: str) -> None:
    source, to, transfer_id = await waiting(world)
    clock: Any = world.runtime.context.clock
    clock.move_to(clock.now_us() + DAY_SECONDS * 10**6)
    answer = await getattr(world, verb)(transfer_id)
    assert (answer.status, answer.error) == (409, "not_pending")
    assert "rejected" in answer.body["message"]
    await world.advance()
    assert await assert_one_end(world, source, to, transfer_id) == "escalation_expired"


@pytest.mark.parametrize("seed", SEEDS)
async def test_replaying_the_key_during_an_approval_pays_once(seed: int) -> None:
    async with worlds.world(interrupted=seed) as world:
        source, to, transfer_id = await waiting(world)
        resubmitted = [_after(n, world.transfer, "key", source, to, "7") for n in range(0, 80, 8)]
        approved, *again = await asyncio.gather(world.approve(transfer_id), *resubmitted)
        assert approved.status == 200
        assert {answer.transfer_id for answer in again} == {transfer_id}
        assert {answer.status for answer in again} <= {200, 202}
        assert await assert_one_end(world, source, to, transfer_id) == "settled"


async def test_an_approval_with_unknown_outcome_returns_503_and_settles_later(world: World) -> None:
    source, to, transfer_id = await waiting(world)
    world.chain.next_payment(chains.goes_down_after)
    answer = await world.approve(transfer_id)
    assert (answer.status, answer.error) == (503, "chain_unavailable")
    assert (answer.transfer_id, answer.body["status"]) == (transfer_id, "submitted")
    assert (await world.approve(transfer_id)).error == "not_pending"
    assert (await world.reject(transfer_id)).error == "not_pending"
    # Its time to be approved in is over, and that is nothing to it any more.
    await world.advance(2 * DAY_SECONDS)
    assert (await world.get_transfer(transfer_id))["status"] == "submitted"
    world.chain.clear()
    assert (await world.transfer("key", source, to, "7")).status == 200
    await world.rest()
    assert world.attempts(transfer_id) == ["landed"]
    assert world.balance(to) == 7_000_000


async def test_disconnecting_during_an_approval_does_not_cancel_it(world: World) -> None:
    source, to, transfer_id = await waiting(world)
    world.chain.next_payment(chains.lagging)
    caller = asyncio.ensure_future(world.approve(transfer_id))
    while not signed.spends(await world.rows("chain_transactions")):  # noqa: ASYNC110 - as soon as it is committed
        await asyncio.sleep(0)
    caller.cancel()
    assert await assert_one_end(world, source, to, transfer_id) == "settled"


async def test_a_transfer_that_failed_after_approval_is_pending_again_under_its_key(world: World) -> None:
    source, to, transfer_id = await waiting(world)
    world.chain.next_payment(chains.before(lambda: world.freeze(to)))
    answer = await world.approve(transfer_id)
    assert (answer.status, answer.error, answer.body["status"]) == (402, "transfer_failed", "failed")
    assert await world.event_types(transfer_id) == [
        "escalation.required",
        "transfer.initiated",
        "transfer.rejected",
    ]
    world.thaw(to)
    again = await asked(world, source, to, "7", "key")
    assert again != transfer_id
    assert (await world.approve(again)).status == 200
    assert world.balance(to) == 7_000_000


async def test_an_approved_transfer_that_expired_on_chain_is_not_signed_again_for_a_paused_account(
    world: World,
) -> None:
    source, to, transfer_id = await waiting(world)
    world.chain.next_payment(chains.goes_down)
    assert (await world.approve(transfer_id)).status == 503
    await world.policy(source, paused=True)
    world.chain.clear()
    world.chain.inner.expire_blockhash()
    await world.rest()
    shown = await world.get_transfer(transfer_id)
    assert (shown["status"], shown["error"]) == ("failed", "account_paused")
    assert (await world.detail(source))["spent_usdc"] == "0.000000"
    assert world.balance(to) == 0


# --- Two servers on one PostgreSQL ------------------------------------------------------------------------


@asynccontextmanager
async def two_servers(seed: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[World, World]]:
    """Two servers with separate connections to one PostgreSQL, over one chain."""
    chance = random.Random(seed)
    with worlds._real_time():
        url = await stores.fresh_url()
    made: list[World] = []
    try:
        for number in range(2):
            world = await serving.started_on(
                InterruptedDatabase(serving.postgres(url), chance),
                chain=made[0].chain if made else None,
                has_ledger=False,
                start=START,
                is_alone=True,
                settings=Settings(encryption_key=KEY),
                seed=7 + number,
                operator_key=made[0].runtime.operator.key if made else None,
            )
            world.chain._chance = chance
            serving.accept_any_chain(monkeypatch)
            made.append(world)
            made[-1].http.headers["Authorization"] = f"Bearer {made[0].runtime.operator.key}"
        yield made[0], made[1]
    finally:
        for world in made:
            await world.http.aclose()
            await world.runtime.stop()
        stores.run.free.append(url)


@pytest.mark.parametrize("seed", range(3))
async def test_two_servers_on_one_database_approve_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_servers(seed, monkeypatch) as (one, other):
        source, to, transfer_id = await waiting(one)
        answers = await asyncio.gather(*(world.approve(transfer_id) for world in (one, other) * 5))
        counted = Counter((answer.status, answer.error) for answer in answers)
        assert counted == {(200, None): 1, (409, "not_pending"): 9}
        assert await assert_one_end(other, source, to, transfer_id) == "settled"


@pytest.mark.parametrize("seed", range(3))
async def test_two_servers_on_one_database_approve_and_reject_with_one_outcome(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_servers(seed, monkeypatch) as (one, other):
        source, to, transfer_id = await waiting(one)
        approved, rejected, paused = await asyncio.gather(
            one.approve(transfer_id),
            _after(seed * 20, other.reject, transfer_id),
            _after(seed * 10, other.policy, source),
        )
        assert paused.status == 200
        end = await assert_one_end(one, source, to, transfer_id)
        assert (approved.status, rejected.status) == ((200, 409) if end == "settled" else (409, 200))


@pytest.mark.parametrize("seed", range(3))
async def test_two_servers_on_one_database_expire_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_servers(seed, monkeypatch) as (one, other):
        source, to, transfer_id = await waiting(one)
        await asyncio.gather(one.advance(DAY_SECONDS), other.advance(DAY_SECONDS))
        assert await assert_one_end(one, source, to, transfer_id) == "escalation_expired"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("limits", "most", "beyond"),
    [({"max_total_usdc": "7"}, 7, (402, "policy_violation")), ({}, 20, (429, "rate_limited"))],
    ids=["total", "pending"],
)
async def test_an_agents_key_asks_two_servers_for_no_more_than_its_limits(
    seed: int,
    limits: dict[str, str],
    most: int,
    beyond: tuple[int, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One key made 400 approvals within seconds."""
    async with two_servers(seed, monkeypatch) as servers:
        source, to = await servers[0].account("100"), await servers[0].account()
        await servers[0].policy(source, escalation_threshold=1)
        agent = await servers[0].agent_of(source, **limits)
        body = {"from": source.account_id, "to": to.account_id, "amount": "1"}
        answers = await asyncio.gather(
            *(
                servers[number % 2].request(
                    "POST", "/v1/transfers", {**body, "idempotency_key": f"{number}"}, agent
                )
                for number in range(30)
            )
        )
        counted = Counter((answer.status, answer.error) for answer in answers)
        assert counted == {(202, None): most, beyond: 30 - most}
        rows = await servers[1].rows("transfers", status="pending_approval")
        assert len(rows) == most
        # A refusal by the policy is stored, one by the limit of approvals is not.
        assert len(await servers[1].rows("transfers")) == (30 if limits else 20)
