"""A node that was down is believed about the time before and since, and not about the time between."""

import random
from typing import Any

import pytest
from rpc_node import FakeNode, rpc_chain

from agentpay_server.chain.protocol import ChainUnavailableError
from agentpay_server.chain.rpc.chain import RpcChain
from agentpay_server.chain.rpc.client import RpcRefusalError

pytestmark = pytest.mark.anyio

FIRST, LAST = 1_000, 1_150


def node_with(blocks: dict[int, int], *, lacks: range = range(0)) -> FakeNode:
    """Return a node at the last of `blocks`, heights by slot, that has those but for a range of heights."""
    held = {slot: height for slot, height in blocks.items() if height not in lacks}
    node = FakeNode()
    node.slot, node.height = max(blocks), max(blocks.values())

    def block(slot: int, options: dict[str, Any]) -> Any:
        if slot not in held:
            raise RpcRefusalError("getBlock", -32007, "Slot was skipped", None)
        return {"blockHeight": held[slot]}

    node.answers["getFirstAvailableBlock"] = lambda: min(held)
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


async def test_a_height_that_runs_ahead_does_not_prove_future_blocks() -> None:
    node = node_with(chain_of(LAST - 50, 0.05))
    node.slot, node.height = node.slot + 200, node.height + 200
    assert not await public(node).knows_blocks(FIRST, LAST)


async def test_a_private_cluster_is_trusted_without_checking_blocks() -> None:
    node = node_with(chain_of(3_000, 0.0), lacks=range(FIRST, LAST))
    assert await rpc_chain(node).knows_blocks(FIRST, LAST)


async def test_an_invalid_range_of_blocks_is_not_known() -> None:
    node = node_with(chain_of(3_000, 0.0))
    assert not await public(node).knows_blocks(FIRST, FIRST - 1)
    assert not await public(node).knows_blocks(-5, LAST)


@pytest.mark.parametrize("slots", [None, [5, 5], [6, 5], ["5"], [True]])
async def test_invalid_slots_are_refused(slots: Any) -> None:
    node = node_with(chain_of(3_000, 0.0))
    node.answers["getBlocksWithLimit"] = lambda *params: slots
    with pytest.raises(ChainUnavailableError, match="makes no sense"):
        await public(node).knows_blocks(FIRST, LAST)
