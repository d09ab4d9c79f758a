"""Detects gaps in a node's blocks, which downtime and a restart from a snapshot cause.

Such a node knows the blocks before and after the gap, and responds as if it were complete. Heights reveal the
gap because they count blocks: the difference of two heights is the number of blocks between them.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from agentpay_server.chain.rpc.replies import Epoch, count, read_slots

_MOST_STEPS: Final = 64
_MOST_BLOCKS: Final = 100_000  # Per reply; the blocks of a blockhash's life are 150.

Call = Callable[..., Awaitable[object]]


async def read_height(call: Call, slot: int) -> int:
    """Return the height of the irreversible block in a slot."""
    options = {
        "transactionDetails": "none",
        "rewards": False,
        "maxSupportedTransactionVersion": 255,  # No transactions are requested.
        "commitment": "finalized",
    }
    return count(await call("getBlock", slot, options), "blockHeight")


async def has_all_blocks(call: Call, tip: Epoch, first_height: int, last_height: int) -> bool:
    """Return whether a node has every irreversible block from one height to another.

    `call` calls a method of the node with parameters. `tip`, the node's position, is above the last of the
    blocks.

    Raises:
        ChainUnavailableError: the node did not respond.
    """
    wanted = last_height - first_height + 1
    if not 0 < wanted <= _MOST_BLOCKS:
        return False
    slot = await _slot_of(call, tip, first_height)
    if slot is None:
        return False
    slots = await _slots_from(call, slot, wanted)
    return len(slots) == wanted and await read_height(call, slots[-1]) == last_height


async def _slot_of(call: Call, tip: Epoch, height: int) -> int | None:
    """Return the slot of the block at a height; None if the search finds no such block."""
    # A step of N slots skips at most N blocks, so it never overshoots.
    slot = tip.slot - (tip.block_height - height)
    for _ in range(_MOST_STEPS):
        if slot < 0:
            return None
        found = await _slots_from(call, slot, 1)
        if not found:
            return None
        above = await read_height(call, found[0]) - height
        if above == 0:
            return found[0]
        if above < 0:
            return None
        # Slots may be empty. The next block is then the same one, and the step must be longer.
        slot = min(slot - 1, found[0] - above)
    return None


async def _slots_from(call: Call, slot: int, most: int) -> list[int]:
    return read_slots(await call("getBlocksWithLimit", slot, most, {"commitment": "finalized"}))
