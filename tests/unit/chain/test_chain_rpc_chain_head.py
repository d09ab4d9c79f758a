"""Where a node says that it stands is judged before anything is signed, or believed lost, by it."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rpc_node import BLOCKHASH, SIGNED, FakeNode, rpc_chain
from virtual_time import VirtualTimeLoop

from agentpay_server.chain.protocol import ChainUnreachableError, DoubtfulNodeError, UnprovenError

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured, pytest.mark.plugin("cluster")]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


class Cluster:
    """A node of a cluster with two blocks and a half each second, read for a while, and then asked more."""

    def __init__(self, **settings: Any) -> None:
        self.node = FakeNode()
        self.chain = rpc_chain(self.node, **settings)
        self._healthy = dict(self.node.answers)

    async def pass_time(self, seconds: float, *, reading: bool = True) -> None:
        for _ in range(round(seconds)):
            await asyncio.sleep(1)
            now = asyncio.get_running_loop().time()
            self.node.slot, self.node.height = 1_000 + int(now * 2.5), 800 + int(now * 2.5)
            if reading:
                await self.chain.block_height()

    def tell_once(self, method: str, *changes: tuple[tuple[str, ...], int]) -> None:
        """Let the next answer to a method have numbers that are too high by some."""

        def told(*params: Any) -> Any:
            self.node.answers[method] = self._healthy[method]
            return self._changed(method, changes, *params)

        self.node.answers[method] = told

    def tell(self, method: str, *changes: tuple[tuple[str, ...], int]) -> None:
        """Increase the numbers in all responses to a method."""
        self.node.answers[method] = lambda *params: self._changed(method, changes, *params)

    def _changed(self, method: str, changes: tuple[tuple[tuple[str, ...], int], ...], *params: Any) -> Any:
        answer = self._healthy[method](*params)
        for path, by in changes:
            holder = answer
            for name in path[:-1]:
                holder = holder[name]
            holder[path[-1]] += by
        return answer


LAST_VALID = ("value", "lastValidBlockHeight")
HEIGHT, SLOT, CONTEXT = ("blockHeight",), ("absoluteSlot",), ("context", "slot")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    known = Cluster()
    await known.pass_time(60)
    yield known
    await known.chain.close()


async def test_how_long_a_transaction_can_usually_land_follows_the_pace_of_the_cluster() -> None:
    known = Cluster()
    # The nominal pace of Solana is the same, so it is measured at half of it.
    assert known.chain.usual_life_seconds == pytest.approx(151 * 0.4)
    assert known.chain.landing_seconds == 0.4
    for second in range(60):
        assert second >= 10 or known.chain.blockhash_life_seconds == math.inf
        await asyncio.sleep(1)
        known.node.slot, known.node.height = 1_000 + second * 5 // 4, 800 + second * 5 // 4
        await known.chain.block_height()
    assert known.chain.usual_life_seconds == pytest.approx(151 * 0.8, rel=0.05)
    assert known.chain.blockhash_life_seconds == pytest.approx(150 / 1.25 * 1.2, rel=0.1)
    assert known.chain.landing_seconds == pytest.approx(0.8, rel=0.1)
    assert rpc_chain(FakeNode(), landing_seconds=0.05).landing_seconds == 0.05
    await known.chain.close()


# --- Blockhashes


@pytest.mark.parametrize("by", [-900, -200, -20, -1, 200, 10_000])
async def test_an_implausible_last_valid_height_is_never_signed_under(cluster: Cluster, by: int) -> None:
    cluster.tell_once("getLatestBlockhash", (LAST_VALID, by))
    blockhash = await cluster.chain.latest_blockhash()
    assert blockhash.last_valid_block_height == cluster.node.height + 150
    await cluster.pass_time(3)
    cluster.tell("getLatestBlockhash", (LAST_VALID, by))
    with pytest.raises(ChainUnreachableError, match="does not fit"):
        await cluster.chain.latest_blockhash()
    # It is asked some times, not for ever.
    assert cluster.node.calls["getLatestBlockhash"] == 2 + 3


async def test_a_height_that_does_not_fit_the_blockhash_is_requested_again(cluster: Cluster) -> None:
    for by in (-900, -200, 200, 10_000):
        await cluster.pass_time(3, reading=False)
        cluster.tell_once("getEpochInfo", (HEIGHT, by), (SLOT, max(by, 0)))
        blockhash = await cluster.chain.latest_blockhash()
        assert blockhash.last_valid_block_height == cluster.node.height + 150


async def test_a_node_with_height_and_blockhash_both_too_low_is_detected_by_earlier_heights(
    cluster: Cluster,
) -> None:
    await cluster.pass_time(3, reading=False)
    cluster.tell("getEpochInfo", (HEIGHT, -200))
    cluster.tell("getLatestBlockhash", (LAST_VALID, -200))
    with pytest.raises(ChainUnreachableError, match="does not fit"):
        await cluster.chain.latest_blockhash()


@pytest.mark.parametrize("by", [-200, -60, 60, 200])
async def test_a_node_with_all_heights_wrong_is_detected_by_its_slots(by: int) -> None:
    # The pace of the cluster and earlier heights are unknown.
    cluster = Cluster(name="devnet")
    cluster.tell("getEpochInfo", (HEIGHT, by), (SLOT, by))
    cluster.tell("getLatestBlockhash", (LAST_VALID, by))
    with pytest.raises(ChainUnreachableError, match="does not fit"):
        await cluster.chain.latest_blockhash()


@pytest.mark.parametrize("name", ["devnet", None])
@pytest.mark.parametrize(("unfinalized", "empty"), [(0, 0), (0, 12), (31, 20), (100, 50), (140, 60)])
async def test_empty_slots_and_unfinalized_blocks_between_height_and_blockhash_are_accepted(
    unfinalized: int, empty: int, name: str | None
) -> None:
    cluster = Cluster(name=name)
    cluster.tell("getLatestBlockhash", (LAST_VALID, unfinalized), (CONTEXT, unfinalized + empty))
    assert (await cluster.chain.latest_blockhash()).value == BLOCKHASH


# --- Heights


@pytest.mark.parametrize("by", [150, 200, 10_000, 2**40])
async def test_a_height_that_rose_too_fast_is_requested_again(
    cluster: Cluster, by: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = cluster.node.calls["getEpochInfo"]
    await cluster.pass_time(1, reading=False)
    cluster.tell_once("getEpochInfo", (HEIGHT, by), (SLOT, by))
    assert await cluster.chain.block_height() == cluster.node.height
    assert cluster.node.calls["getEpochInfo"] == before + 2
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"getEpochInfo returned {cluster.node.height + by}" in record.getMessage()
    await cluster.pass_time(1, reading=False)
    cluster.tell("getEpochInfo", (HEIGHT, by), (SLOT, by))
    # All of them report the same: earlier claims are used.
    assert abs(await cluster.chain.block_height() - cluster.node.height) <= 3
    assert cluster.node.calls["getEpochInfo"] == before + 2 + 3


async def test_a_height_that_is_too_low_is_accepted(cluster: Cluster) -> None:
    await cluster.pass_time(1, reading=False)
    cluster.tell_once("getEpochInfo", (HEIGHT, -100), (SLOT, -100))
    assert await cluster.chain.block_height() == cluster.node.height - 100


# --- The life of a blockhash


async def test_a_blockhash_is_cached_for_the_time_of_five_blocks(cluster: Cluster) -> None:
    await cluster.chain.latest_blockhash()
    await cluster.pass_time(1)
    await cluster.chain.latest_blockhash()
    assert cluster.node.calls["getLatestBlockhash"] == 1
    await cluster.pass_time(2)
    await cluster.chain.latest_blockhash()
    assert cluster.node.calls["getLatestBlockhash"] == 2


async def test_a_pace_measured_far_too_slow_does_not_prolong_waits(
    cluster: Cluster,
) -> None:
    """They made blocks of 20 s, and a transaction was signed under a blockhash that had expired."""
    for by in range(-24, -24 * 20, -24):
        await cluster.pass_time(10, reading=False)
        cluster.tell_once("getEpochInfo", (HEIGHT, by))
        await cluster.chain.block_height()
    assert cluster.chain.blockhash_life_seconds > 1_000
    assert cluster.chain.landing_seconds <= 1
    await cluster.chain.latest_blockhash()
    asked = cluster.node.calls["getLatestBlockhash"]
    await cluster.pass_time(6)
    await cluster.chain.latest_blockhash()
    assert cluster.node.calls["getLatestBlockhash"] > asked


# --- Slots


async def test_a_status_with_an_impossible_slot_is_doubtful(
    cluster: Cluster,
) -> None:
    assert await cluster.chain.signature_status(SIGNED.signature) is None
    for by in (-1, 200, 2**40):
        cluster.tell_once("getSignatureStatuses", (CONTEXT, by))
        with pytest.raises(DoubtfulNodeError):
            await cluster.chain.signature_status(SIGNED.signature)
        assert await cluster.chain.signature_status(SIGNED.signature) is None
    # Its positive information is still true.
    cluster.node.lands()
    cluster.tell_once("getSignatureStatuses", (CONTEXT, 200))
    assert await cluster.chain.signature_status(SIGNED.signature) is not None


async def test_one_slot_that_is_too_high_does_not_make_later_nodes_lag(cluster: Cluster) -> None:
    for by in (200, 10_000, 2**40):
        await cluster.pass_time(1, reading=False)
        cluster.tell("getEpochInfo", (SLOT, by))
        await cluster.chain.block_height()
        cluster.tell("getEpochInfo")
        assert await cluster.chain.signature_status(SIGNED.signature) is None


async def test_a_first_slot_that_is_too_high_is_dropped_after_half_a_minute() -> None:
    cluster = Cluster()
    cluster.tell_once("getEpochInfo", (SLOT, 2**40))
    await cluster.chain.block_height()
    with pytest.raises(DoubtfulNodeError):
        await cluster.chain.signature_status(SIGNED.signature)
    await cluster.pass_time(31)
    assert await cluster.chain.signature_status(SIGNED.signature) is None


# --- Finality


async def test_a_transaction_is_irreversible_as_soon_as_the_node_returns_its_block_as_final() -> None:
    cluster = Cluster(name="devnet")
    await cluster.pass_time(1)
    cluster.node.slot, cluster.node.height = 1_040, 840
    cluster.node.lands(commitment="finalized")
    node, healthy = cluster.node, cluster.node.answers["getBlock"]
    for block in ({"blockHeight": node.height + 1}, None):
        node.answers["getBlock"] = lambda slot, options, block=block: block
        with pytest.raises(ChainUnreachableError):
            await cluster.chain.signature_status(SIGNED.signature)
    node.answers["getBlock"] = healthy
    status = await cluster.chain.signature_status(SIGNED.signature)
    assert status is not None
    assert status.is_irreversible
    await cluster.chain.close()


@pytest.mark.parametrize(
    ("seconds", "ahead", "is_told"),
    [(1, 40, False), (60, 40, False), (60, 1_000, True)],
    ids=["pace unknown", "pace known", "an implausible position"],
)
async def test_finality_above_the_newest_position_is_unproven(
    seconds: int, ahead: int, is_told: bool
) -> None:
    cluster = Cluster(name="devnet")
    await cluster.pass_time(seconds)
    cluster.node.slot += ahead
    cluster.node.lands(commitment="finalized")
    if is_told:
        cluster.node.height += ahead
    else:
        cluster.node.slot -= ahead
    with pytest.raises(UnprovenError, match="before its slot"):
        await cluster.chain.signature_status(SIGNED.signature)
    await cluster.chain.close()
