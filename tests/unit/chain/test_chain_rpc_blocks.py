"""A node that was down is believed about the time before and since, and not about the time between."""

import random
from typing import Any

import pytest
from rpc_node import FakeNode, rpc_chain
from solders.hash import Hash

from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.plugins.cluster.chain import RpcChain
from agentpay_server.plugins.cluster.client import RpcRefusalError

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]

LIFE = 150
FIRST, LAST = 1_000, 1_150


def hash_of(height: int) -> str:
    return str(Hash(height.to_bytes(32, "big")))


def node_with(blocks: dict[int, int], *, lacks: range = range(0)) -> FakeNode:
    """Return a node at the last of `blocks`, heights by slot, that has those but for a range of heights."""
    held = {slot: height for slot, height in blocks.items() if height not in lacks}
    node = FakeNode()
    node.slot, node.height = max(blocks), max(blocks.values())

    def block(slot: int, options: dict[str, Any]) -> Any:
        if slot not in held:
            raise RpcRefusalError("getBlock", -32007, "Slot was skipped", None)
        return {"blockHeight": held[slot], "blockhash": hash_of(held[slot])}

    def is_valid(blockhash: str, options: dict[str, Any]) -> Any:
        valid = {hash_of(height) for height in range(max(node.height - LIFE, 0), node.height + 1)}
        return {"context": {"slot": node.slot}, "value": blockhash in valid}

    node.answers["getFirstAvailableBlock"] = lambda: min(held)
    node.answers["isBlockhashValid"] = is_valid
    node.answers["getBlock"] = block
    node.answers["getBlocksWithLimit"] = lambda start, most, options: sorted(
        slot for slot in held if slot >= start
    )[:most]
    return node


def chain_of(heights: int, empty: float, seed: int = 1) -> dict[int, int]:
    """Return the heights of blocks by slot; of the slots, in runs of four, a share is empty."""
    chance, slot, blocks = random.Random(seed), 0, {}
    for height in range(heights):
        while slot % 4 == 0 and chance.random() < empty:
            slot += 4
        blocks[slot] = height
        slot += 1
    return blocks


def public(node: FakeNode) -> RpcChain:
    return rpc_chain(node, name="devnet")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("empty", [0.0, 0.05, 0.5])
async def test_a_node_with_all_blocks_knows_them(empty: float, seed: int) -> None:
    node = node_with(chain_of(3_000, empty, seed))
    assert await public(node).knows_blocks(FIRST, LAST)
    assert sum(node.calls.values()) < 60


@pytest.mark.parametrize(
    "lacks",
    [
        range(FIRST, FIRST + 1),
        range(FIRST - 200, FIRST + 20),
        range(FIRST + 70, FIRST + 71),
        range(LAST - 20, LAST + 500),
        range(LAST, LAST + 1),
        range(FIRST - 200, LAST + 200),
        range(FIRST - 200, 2_990),
        range(FIRST + 1),
    ],
)
@pytest.mark.parametrize("empty", [0.0, 0.05])
async def test_a_node_that_lacks_any_block_does_not_know_them(lacks: range, empty: float) -> None:
    chain = public(node_with(chain_of(3_000, empty), lacks=lacks))
    assert not await chain.knows_blocks(FIRST, LAST)


async def test_blocks_missing_outside_the_range_do_not_matter() -> None:
    for lacks in (range(FIRST), range(FIRST - 500, FIRST), range(LAST + 1, LAST + 300)):
        assert await public(node_with(chain_of(3_000, 0.0), lacks=lacks)).knows_blocks(FIRST, LAST)


@pytest.mark.parametrize("since", [1, 50, 90, 99, 200])
async def test_a_node_must_have_every_one_of_the_newest_blocks(since: int) -> None:
    blocks = chain_of(LAST + since, 0.05)
    assert await public(node_with(blocks)).knows_blocks(FIRST, LAST - 1)
    assert not await public(node_with(blocks, lacks=range(FIRST, LAST))).knows_blocks(FIRST, LAST - 1)


async def test_an_emulator_is_believed() -> None:
    node = node_with(chain_of(LAST + 40, 0.0), lacks=range(FIRST, LAST))
    assert await rpc_chain(node).knows_blocks(FIRST, LAST)
    assert await rpc_chain(node).landing_heights(hash_of(FIRST + 9), LAST) == (FIRST, LAST)
    assert await rpc_chain(node).landing_heights(hash_of(9), 9) == (0, 9)
    # Any other node that lacks them cannot tell.
    assert await public(node).landing_heights(hash_of(FIRST), LAST) is None
    assert not await public(node).knows_blocks(FIRST, FIRST - 1)
    assert not await public(node).knows_blocks(-5, LAST)


async def test_a_height_that_runs_ahead_does_not_prove_future_blocks() -> None:
    node = node_with(chain_of(LAST - 50, 0.05))
    node.slot, node.height = node.slot + 200, node.height + 200
    assert not await public(node).knows_blocks(FIRST, LAST)


@pytest.mark.parametrize("slots", [None, [5, 5], [6, 5], ["5"], [True]])
async def test_invalid_slots_are_refused(slots: Any) -> None:
    node = node_with(chain_of(3_000, 0.0))
    node.answers["getBlocksWithLimit"] = lambda *params: slots
    with pytest.raises(ChainUnreachableError, match="makes no sense"):
        await public(node).knows_blocks(FIRST, LAST)


# --- The blocks that can contain a transaction


@pytest.mark.parametrize("empty", [0.0, 0.05, 0.5])
async def test_a_last_valid_height_that_fits_its_block_is_believed(empty: float) -> None:
    node = node_with(chain_of(LAST + 40, empty))
    assert await public(node).landing_heights(hash_of(FIRST), LAST) == (FIRST, LAST)
    assert node.calls["isBlockhashValid"] == 0


@pytest.mark.parametrize("error", [-300, -200, -60, -1, 1, 60, 200, 300])
async def test_a_wrong_last_valid_height_proves_nothing_while_the_blockhash_may_be_valid(error: int) -> None:
    for newest in range(LAST + 1, LAST + 2 * LIFE, 25):
        node = node_with(chain_of(newest + 1, 0.05))
        is_expired = newest > LAST - error
        try:
            heights = await public(node).landing_heights(hash_of(FIRST - error), LAST)
        except ChainUnreachableError:
            assert not is_expired or newest <= LAST + LIFE, "the delay has an end"
        else:
            assert is_expired
            assert heights is not None
            assert heights[0] <= FIRST - error
            assert LAST - error <= heights[1] <= newest


async def test_a_blockhash_of_no_block_expires_after_another_life() -> None:
    for newest, is_expired in ((LAST + LIFE, False), (LAST + LIFE + 1, True)):
        chain = public(node_with(chain_of(newest + 1, 0.05)))
        if is_expired:
            assert await chain.landing_heights(hash_of(10**9), LAST) == (FIRST - 2 * LIFE, newest)
        else:
            with pytest.raises(ChainUnreachableError, match="wrong last valid height"):
                await chain.landing_heights(hash_of(10**9), LAST)


async def test_a_node_that_lags_behind_does_not_tell_that_a_blockhash_is_old() -> None:
    node = node_with(chain_of(LAST + 2 * LIFE, 0.05))
    tell = node.answers["isBlockhashValid"]
    chain = public(node)
    assert await chain.block_height() > LAST + LIFE

    node.answers["isBlockhashValid"] = lambda *params: {**tell(*params), "context": {"slot": node.slot - 1}}

    with pytest.raises(ChainUnreachableError, match="may still be valid"):
        await chain.landing_heights(hash_of(FIRST + 5), LAST)
