"""The parts of a world: time that jumps, lives that end at once, a chain that can be undone."""

import asyncio
import contextvars
import random
from types import SimpleNamespace

import pytest
from solders.keypair import Keypair
from solders.message import to_bytes_versioned
from solders.transaction import VersionedTransaction

from agentpay.errors import APIError
from agentpay_lab.simulation import final_checks
from agentpay_lab.simulation.agents import OperatorWorker
from agentpay_lab.simulation.chance import ACTOR, Chance, CodeOwner
from agentpay_lab.simulation.cluster import Described, LandedTransaction, SimulatedCluster
from agentpay_lab.simulation.faults import FaultInjector
from agentpay_lab.simulation.loop import SimulatedLoop, StuckError
from agentpay_lab.simulation.plan import Plan, Skew
from agentpay_lab.simulation.sellers import second_signature
from agentpay_lab.simulation.timeline import Timeline
from agentpay_lab.simulation.world import KnownSecrets, SimulatedWorld


def new_loop() -> SimulatedLoop:
    return SimulatedLoop(Chance(1).stream("order"))


def test_sleeping_advances_virtual_time_at_once() -> None:
    loop = new_loop()

    async def story() -> list[float]:
        times = []
        for seconds in (86_400, 0.5, 0):
            await asyncio.sleep(seconds)
            times.append(asyncio.get_running_loop().time())
        return times

    assert loop.run_until_complete(story()) == [86_400, 86_400.5, 86_400.5]


def test_waiting_for_an_impossible_event_raises_stuck() -> None:
    loop = new_loop()
    with pytest.raises(StuckError, match="never happen"):
        loop.run_until_complete(loop.create_future())


def test_looping_without_advancing_time_raises_stuck(monkeypatch) -> None:
    monkeypatch.setattr("agentpay_lab.simulation.loop._MOST_TURNS_AT_ONE_TIME", 2_000)
    loop = new_loop()

    async def spin() -> None:
        while True:
            loop.call_later(0, lambda: None)
            await asyncio.sleep(0)

    work = spin()
    with pytest.raises(StuckError, match="2000 callbacks ran without virtual time"):
        loop.run_until_complete(work)


@pytest.mark.parametrize("ask", ["thread", "name"])
def test_threads_and_name_lookups_are_refused(ask: str) -> None:
    loop = new_loop()

    async def story() -> None:
        if ask == "thread":
            await asyncio.to_thread(int)
        else:
            await loop.getaddrinfo("example.com", 80)

    with pytest.raises((RuntimeError, OSError), match="simulation has no"):
        loop.run_until_complete(story())


def orders(names: str, seed: int) -> list[str]:
    """Return in which order callbacks of actors run that are ready at one time."""
    chance, loop, ran = Chance(seed), new_loop(), []
    for name in names:
        context = contextvars.Context()
        context.run(ACTOR.set, CodeOwner(name, chance))
        loop.call_soon(ran.append, name, context=context)

    async def rest() -> None:
        await asyncio.sleep(1)

    loop.run_until_complete(rest())
    return ran


def test_a_seed_decides_the_order_and_removing_an_actor_keeps_it() -> None:
    found = {"".join(orders("abcd", seed)) for seed in range(20)}
    assert len(found) > 5
    for seed in range(20):
        whole = orders("abcd", seed)
        assert orders("abd", seed) == [name for name in whole if name != "c"]


def test_tasks_of_a_killed_actor_do_not_run() -> None:
    loop, actor, ran = new_loop(), CodeOwner("server", Chance(1)), []
    context = contextvars.Context()
    context.run(ACTOR.set, actor)

    async def serve() -> None:
        try:
            await asyncio.sleep(1)
            ran.append("continued")
        finally:
            ran.append("cleaned up")

    async def story() -> None:
        loop.create_task(serve(), context=context.copy())
        await asyncio.sleep(0.5)
        actor.is_dead = True
        await asyncio.sleep(10)
        assert ran == []

    loop.run_until_complete(story())


def test_a_random_stream_is_determined_by_seed_and_name() -> None:
    chance = Chance(7)
    first = [chance.stream("db", "s1").random() for _ in range(2)]
    assert first[0] == first[1] != chance.stream("db", "s2").random()
    assert Chance(8).stream("db", "s1").random() != first[0]


def test_removing_a_fault_does_not_move_the_others() -> None:
    def struck(*without: str) -> list[tuple[int, str]]:
        plan = Plan(seed=3, odds={"rpc.slow": 0.2, "db.slow": 0.2}, without=frozenset(without))
        faults = FaultInjector(plan, Chance(3), Timeline(lambda: 0.0))
        faults.are_on = True
        return [
            (turn, kind)
            for turn in range(200)
            for kind in ("rpc.slow", "db.slow")
            if faults.strike(kind, "s1") is not None
        ]

    whole = struck()
    assert {kind for _, kind in whole} == {"rpc.slow", "db.slow"}
    assert struck("rpc.slow") == [each for each in whole if each[1] == "db.slow"]
    second = [each for each in whole if each[1] == "rpc.slow"][1]
    assert struck("rpc.slow/s1/1") == [each for each in whole if each != second]


class Seen:
    def __init__(self) -> None:
        self.landed: list[LandedTransaction] = []

    def handed_over(self, about: Described, by: str) -> None:
        raise AssertionError("no transaction is handed over here")

    def in_block(self, landing: LandedTransaction) -> None:
        self.landed.append(landing)

    def undone(self, landing: LandedTransaction) -> None:
        self.landed.remove(landing)


@pytest.fixture
def cluster():
    plan, chance, loop = Plan(seed=1), Chance(1), new_loop()
    timeline = Timeline(loop.time)
    made = SimulatedCluster(
        plan, chance, loop, FaultInjector(plan, chance, timeline), timeline, wall_us=10**15, watcher=Seen()
    )
    made.furnish(treasury=str(Keypair().pubkey()), mint_authority=str(Keypair().pubkey()))
    yield made, loop
    made.close()


def test_a_block_can_be_undone_and_its_transactions_land_again(cluster) -> None:
    made, loop = cluster
    account = made.strangers_account

    async def story() -> None:
        await asyncio.sleep(30)
        made.pay_from_outside(account, 5)
        (signature,) = made.landings
        undone = made.roll_back(1, lambda _: 2.0)
        assert undone == 0, "its blockhash would be gone with the block"
        await asyncio.sleep(0.5)
        assert signature in made.landings

    loop.run_until_complete(story())


def test_a_vanished_transaction_can_land_after_further_forks(cluster) -> None:
    """A second fork took the block of its blockhash away, and a settled transfer was lost."""
    made, loop = cluster

    async def story() -> None:
        await asyncio.sleep(30)
        made.pay_from_outside(made.strangers_account, 5, slots_ago=14)
        await asyncio.sleep(0.5)
        made.pay_from_outside(made.strangers_account, 6, slots_ago=12)
        first, second = made.landings
        assert made.roll_back(1, lambda _: 4.0) == 1
        await asyncio.sleep(0.3)
        assert made.roll_back(20, lambda _: 9.0) == 1
        assert not made.landings
        assert made.owes
        await asyncio.sleep(10)
        assert not made.owes
        # In their order: nothing may depend on what has not landed yet.
        assert list(made.landings) == [first, second]

    loop.run_until_complete(story())


def test_a_message_lands_once_whichever_signature_its_fee_payer_makes(cluster) -> None:
    made, loop = cluster
    made._watcher.handed_over = lambda about, by: None

    async def story() -> None:
        await asyncio.sleep(30)
        made.pay_from_outside(made.strangers_account, 5)
        (first,) = made.landings.values()
        message = to_bytes_versioned(first.transaction.message)
        signature = second_signature(made.stranger, message, random.Random(1))
        other = VersionedTransaction.populate(first.transaction.message, [signature])
        assert other != first.transaction
        assert all(other.verify_with_results())
        made.submit(bytes(other), "shop1")
        await asyncio.sleep(30)
        assert list(made.landings.values()) == [first]

    loop.run_until_complete(story())


def test_slots_may_be_empty_and_heights_count_blocks() -> None:
    plan, chance, loop = Plan(seed=1, skew=Skew(skips_every=5)), Chance(1), new_loop()
    timeline = Timeline(loop.time)
    made = SimulatedCluster(
        plan, chance, loop, FaultInjector(plan, chance, timeline), timeline, wall_us=10**15, watcher=Seen()
    )
    first = made.first_slot + 100
    blocks = [slot for slot in range(first, first + 100) if made.has_block(slot)]
    assert len(blocks) == 80
    assert [made.height(slot) for slot in blocks] == list(
        range(made.height(blocks[0]), made.height(blocks[0]) + 80)
    )
    made.close()


@pytest.mark.parametrize(("status", "is_lost"), [(409, False), (503, True)])
def test_after_a_503_a_rotation_may_have_happened(status: int, is_lost: bool) -> None:
    """The check took it for a refusal, and posts under the new secret for unsigned ones."""
    world = SimulatedWorld(Plan(seed=1, servers=1))
    world.secrets["wh_1"] = KnownSecrets(["whsec_first"])
    operator = OperatorWorker(world, 1)

    async def refuse(webhook_id: str, *, overlap_seconds: int) -> str:
        raise APIError(f"no answer about {webhook_id} and {overlap_seconds} s", status_code=status)

    webhooks = SimpleNamespace(rotate_secret=refuse)
    operator._client = SimpleNamespace(webhooks=webhooks)
    try:
        with pytest.raises(APIError):
            world.loop.run_until_complete(operator._rotate(random.Random(1)))
    finally:
        world.cluster.close()
        world.database.close()
    assert world.secrets["wh_1"].is_lost == is_lost


def violations_of_coming_to_rest(
    monkeypatch: pytest.MonkeyPatch, *, closing: tuple[float, float], asks_for: float
) -> tuple[list[str], float]:
    """Return what is broken where one session is closing from one second to another, and how long it took.

    Args:
        monkeypatch: of the test.
        closing: from when to when, in seconds after the faults have stopped.
        asks_for: how long it takes to ask about every key.
    """
    world = SimulatedWorld(Plan(seed=1, servers=1))
    world.servers.clear()

    async def under_way(*_: object, **__: object) -> list[tuple[str, str]]:
        first, last = closing
        return [("sess_1", "closing")] if first <= world.loop.time() < last else []

    async def ask(*_: object) -> None:
        await asyncio.sleep(asks_for)

    monkeypatch.setattr(final_checks, "_under_way", under_way)
    monkeypatch.setattr(final_checks, "_resolve_keys", ask)
    try:
        world.loop.run_until_complete(final_checks.come_to_rest(world))
    finally:
        world.cluster.close()
        world.database.close()
    return [found.what for found in world.violations], world.loop.time()


def test_a_session_that_starts_closing_late_has_180_s_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking about every key took 285 s, and a session that its idle time had just closed was in flight."""
    broken, seconds = violations_of_coming_to_rest(monkeypatch, closing=(282, 287), asks_for=285)
    assert (broken, round(seconds)) == ([], 290)


@pytest.mark.parametrize("asks_for", [0, 60, 400])
def test_a_session_closing_for_more_than_180_s_breaks_a_rule(
    asks_for: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, seconds = violations_of_coming_to_rest(monkeypatch, closing=(0, 10**6), asks_for=asks_for)
    assert (broken, round(seconds)) == (["still in flight"], 185)
