"""Wrong numbers of a node cost time, not money: each key lands once, judged on the cluster itself (P8).

The worst case throughout: the first transaction is merely late, and lands in the last blocks in which it can.
If another is signed in its place before that, both land.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import cluster_worlds
import clusters
import pytest
import signed
from attrs import frozen
from cluster_worlds import ClusterWorld
from clusters import NEVER, Change, Cluster, ahead, both, shifted, stale
from worlds import Party

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

LATE_BLOCKS = 145
"""After how many blocks a late transaction lands; the blockhash was a little older than the signature."""


# --- What is done with money, and how often it has happened in the end


async def pay(world: ClusterWorld, source: Party, to: Party, key: str = "key") -> str:
    return await world.settled(key, source, to, "1")


async def open_and_close(world: ClusterWorld, source: Party, to: Party, key: str = "key") -> str:
    session_id = await open_session(world, source, to, key)
    await until_answered(lambda: world.charge(key, session_id, "1"))
    closed = await until_answered(lambda: world.close_session(session_id))
    assert closed.body["status"] == "settled", closed
    return session_id


async def open_session(world: ClusterWorld, source: Party, to: Party, key: str) -> str:
    opened = await until_answered(lambda: world.open_session(key, source, to, "3"))
    assert opened.body["status"] == "open", opened
    return str(opened.body["session_id"])


async def until_answered(request: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a request until its answer is no 503, as a client does."""
    for _ in range(300):
        answer = await request()
        if answer.status != 503:
            assert answer.status < 300, answer
            return answer
        await asyncio.sleep(1)
    raise AssertionError(f"no end in sight: {answer}")


async def change_policy(world: ClusterWorld, source: Party, to: Party) -> str:
    await world.policy(source, max_single_transfer=1)
    for _ in range(300):
        (record,) = await world.rows("policy_records")
        if record["due_us"] is None:
            return str(record["address"])
        await asyncio.sleep(1)
    raise AssertionError(f"no end in sight: {record}")


Operation = Callable[[ClusterWorld, Party, Party], Coroutine[Any, Any, str]]
OPERATIONS: dict[str, tuple[Operation, int, int]] = {
    # The operation, how many transactions of its subject land, and how much moves from source to payee.
    "transfer": (pay, 1, 1_000_000),
    "session": (open_and_close, 2, 1_000_000),
    "policy": (change_policy, 1, 0),
}


async def assert_happens_once(world: ClusterWorld, name: str, lie: Callable[[], None], after: float) -> None:
    """Run an operation while a node reports wrong numbers, and check what has landed once all is idle."""
    operation, landings, moved = OPERATIONS[name]
    source, to = await world.account("10"), await world.account()
    await world.rest()
    late = LATE_BLOCKS * world.cluster.slot_seconds / 0.9
    world.cluster.delays.extend([late] * 2 if name == "session" else [late])
    doing = asyncio.ensure_future(operation(world, source, to))
    await asyncio.sleep(after)
    lie()
    subject = await doing
    world.cluster.tell_the_truth()
    # In two minutes, whatever was signed lands, and whatever has expired is known to have.
    await world.rest()
    landed = [each for each in world.cluster.landings.values() if each.error is None]
    assert sum(subject in (each.about.subject, *each.undo) for each in landed) == landings
    assert (world.balance(source), world.balance(to)) == (10_000_000 - moved, moved)
    for table in ("transfers", "sessions"):
        assert {row["status"] for row in await world.rows(table)} <= {"settled"}
    (account,) = await world.rows("accounts", account_id=source.account_id)
    assert (account["balance"], account["in_flight"], account["cap_holds"]) == (
        10_000_000 - moved,
        0,
        0,
    )


# --- The two that were found


@pytest.mark.parametrize("genesis_hash", [clusters.OWN, clusters.DEVNET], ids=["own", "devnet"])
async def test_a_last_valid_height_that_is_too_low_pays_once_on_a_fast_cluster(
    monkeypatch: pytest.MonkeyPatch, genesis_hash: str
) -> None:
    cluster = cluster_worlds.new_cluster(genesis_hash=genesis_hash, slot_seconds=0.05)

    def tell() -> None:
        cluster.tell("getLatestBlockhash", shifted("value.lastValidBlockHeight", -200))

    async with cluster_worlds.serving(monkeypatch, cluster) as world:
        await assert_happens_once(world, "transfer", tell, after=0)


@pytest.mark.parametrize("slot_seconds", [0.4, 0.05])
@pytest.mark.parametrize("genesis_hash", [clusters.OWN, clusters.DEVNET], ids=["own", "devnet"])
async def test_a_height_and_statuses_that_run_ahead_pay_once(
    monkeypatch: pytest.MonkeyPatch, genesis_hash: str, slot_seconds: float
) -> None:
    cluster = cluster_worlds.new_cluster(genesis_hash=genesis_hash, slot_seconds=slot_seconds)

    def tell() -> None:
        cluster.tell("getEpochInfo", ahead(200))
        cluster.tell("getSignatureStatuses", shifted("context.slot", 200), replies=2)

    async with cluster_worlds.serving(monkeypatch, cluster) as world:
        await assert_happens_once(world, "transfer", tell, after=1)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("by", [-200, -60])
async def test_a_wrong_last_valid_height_is_no_proof_even_if_a_server_is_new_and_its_clock_wrong(
    monkeypatch: pytest.MonkeyPatch, operation: str, by: int
) -> None:
    # A new server knows no pace: the numbers of a node fit each other, and 150 blocks seem to have passed.
    cluster_worlds.believe_heights(monkeypatch, blockhash_life_seconds=0.0)
    cluster = cluster_worlds.new_cluster(genesis_hash=clusters.DEVNET)

    def tell() -> None:
        cluster.tell("getLatestBlockhash", shifted("value.lastValidBlockHeight", by))

    async with cluster_worlds.serving(monkeypatch, cluster) as world:
        await assert_happens_once(world, operation, tell, after=0)


@pytest.mark.parametrize("operation", ["transfer", "policy"])
async def test_a_node_that_offers_the_expired_blockhash_again_only_delays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    cluster_worlds.believe_heights(monkeypatch)
    cluster = cluster_worlds.new_cluster()
    first: list[Any] = []

    def old_but_for_its_height(reply: Any, _: Cluster) -> Any:
        first.append(copy.deepcopy(reply))
        reply["value"]["blockhash"] = first[0]["value"]["blockhash"]
        return reply

    async with cluster_worlds.serving(monkeypatch, cluster) as world:
        source, to = await world.account("10"), await world.account()
        await world.rest()
        cluster.delays.append(NEVER)
        cluster.tell("getLatestBlockhash", old_but_for_its_height, seconds=150)
        do, _, _ = OPERATIONS[operation]
        began = asyncio.get_running_loop().time()
        await do(world, source, to)
        assert 150 < asyncio.get_running_loop().time() - began < 240
    # A repeated signature would be an unexpected exception.
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_expired_transfer_is_still_signed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for slot_seconds, within_seconds in ((0.4, 90), (0.25, 60), (0.05, 20)):
        cluster = cluster_worlds.new_cluster(slot_seconds=slot_seconds)
        async with cluster_worlds.serving(monkeypatch, cluster) as world:
            source, to = await world.account("10"), await world.account()
            cluster.delays.append(NEVER)
            before = asyncio.get_running_loop().time()
            transfer_id = await pay(world, source, to)
            assert asyncio.get_running_loop().time() - before < within_seconds
            assert len(cluster.payments(transfer_id)) == 1
            assert len(signed.expired(await world.rows("chain_transactions"))) == 1


# --- Every number of every reply


@frozen
class Number:
    """A number that nodes tell, or several that go together."""

    method: str
    wrong: Callable[[int], Change]


def _at(path: str) -> Callable[[int], Change]:
    return lambda by: shifted(path, by)


NUMBERS = {
    "height": Number("getEpochInfo", _at("blockHeight")),
    "slot": Number("getEpochInfo", _at("absoluteSlot")),
    "height and slot": Number("getEpochInfo", ahead),
    "last valid height": Number("getLatestBlockhash", _at("value.lastValidBlockHeight")),
    "slot of the blockhash": Number("getLatestBlockhash", _at("context.slot")),
    "slot of the statuses": Number("getSignatureStatuses", _at("context.slot")),
    "slot of a status": Number("getSignatureStatuses", _at("value.slot")),
    "slot of the accounts": Number("getMultipleAccounts", _at("context.slot")),
    "first slot": Number("getFirstAvailableBlock", _at("")),
    "height of a block": Number("getBlock", _at("blockHeight")),
    "slots of blocks": Number("getBlocksWithLimit", _at("")),
}
WRONG = {"too low": -200, "a little too low": -40, "a little too high": 40, "too high": 200, "absurd": 2**40}
DURATIONS = {"once": None, "for 10 s": 10.0}
MOMENTS = (0.0, 1.0, 30.0, 55.0, 62.0)

IN_EVERY_RUN = {("height and slot", "too high"), ("last valid height", "too low"), ("slot", "absurd")}


def _cases() -> list[Any]:
    """Return every number, wrong in every way, at every moment of every operation; most are deep."""
    cases = []
    for operation in OPERATIONS:
        for name in NUMBERS:
            for wrong in [*WRONG, "stale"]:
                for duration in DURATIONS:
                    is_first = operation == "transfer" and (name, wrong) in IN_EVERY_RUN
                    marks = [] if is_first else [pytest.mark.deep]
                    cases.append(
                        pytest.param(
                            operation,
                            name,
                            wrong,
                            duration,
                            marks=marks,
                            id=f"{operation}: {name} {wrong} {duration}",
                        )
                    )
    return cases


@pytest.mark.parametrize(("operation", "name", "wrong", "duration"), _cases())
async def test_a_wrong_number_at_any_moment_never_pays_twice(
    monkeypatch: pytest.MonkeyPatch, operation: str, name: str, wrong: str, duration: str
) -> None:
    number = NUMBERS[name]
    for genesis_hash in (clusters.OWN, clusters.DEVNET):
        for moment in MOMENTS:
            cluster = cluster_worlds.new_cluster(genesis_hash=genesis_hash)

            def lie(cluster: Cluster = cluster) -> None:
                change = stale() if wrong == "stale" else number.wrong(WRONG[wrong])
                cluster.tell(number.method, change, seconds=DURATIONS[duration])

            async with cluster_worlds.serving(monkeypatch, cluster) as world:
                await assert_happens_once(world, operation, lie, after=moment)


LIES = {
    "all ahead": {
        "getEpochInfo": ahead(200),
        "getSignatureStatuses": shifted("context.slot", 200),
        "getLatestBlockhash": both(shifted("value.lastValidBlockHeight", 200), shifted("context.slot", 200)),
    },
    "all behind": {
        "getEpochInfo": ahead(-200),
        "getSignatureStatuses": shifted("context.slot", -200),
        "getLatestBlockhash": both(
            shifted("value.lastValidBlockHeight", -200), shifted("context.slot", -200)
        ),
    },
    "heights ahead, blockhashes behind": {
        "getEpochInfo": ahead(200),
        "getSignatureStatuses": shifted("context.slot", 200),
        "getLatestBlockhash": shifted("value.lastValidBlockHeight", -200),
    },
    "blocks ahead as well": {
        "getEpochInfo": ahead(200),
        "getSignatureStatuses": shifted("context.slot", 200),
        "getBlock": shifted("blockHeight", 200),
        "getFirstAvailableBlock": shifted("", -200),
    },
}


@pytest.mark.parametrize("moment", [0.0, 1.0, 57.0, pytest.param(30.0, marks=pytest.mark.deep)])
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    "operation",
    [name if name == "transfer" else pytest.param(name, marks=pytest.mark.deep) for name in OPERATIONS],
)
async def test_several_wrong_numbers_for_ten_seconds_never_pay_twice(
    monkeypatch: pytest.MonkeyPatch, operation: str, lie: str, moment: float
) -> None:
    for genesis_hash in (clusters.OWN, clusters.DEVNET):
        cluster = cluster_worlds.new_cluster(genesis_hash=genesis_hash)

        def tell(cluster: Cluster = cluster) -> None:
            for method, change in LIES[lie].items():
                cluster.tell(method, change, seconds=10)

        async with cluster_worlds.serving(monkeypatch, cluster) as world:
            await assert_happens_once(world, operation, tell, after=moment)
