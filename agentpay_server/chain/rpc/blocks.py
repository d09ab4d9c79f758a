"""Whether a node has all blocks of a stretch. One that was down, and began anew from a snapshot, has not.

Such a node knows what was before and what is since, and answers for the time between as if nothing had been.
Heights give it away, because they count blocks: from one block to another there are as many as their heights
differ, unless the node lacks some.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from agentpay_server.chain.rpc.replies import Epoch, count, read_slots

_MOST_STEPS: Final = 64
_MOST_BLOCKS: Final = 100_000  # Of a reply; the stretch of a blockhash has 150.

Call = Callable[..., Awaitable[object]]


async def read_height(call: Call, slot: int) -> int:
    """Return the height of the irreversible block in a slot."""
    options = {
        "transactionDetails": "none",
        "rewards": False,
        "maxSupportedTransactionVersion": 255,  # No transaction is asked for.
        "commitment": "finalized",
    }
    return count(await call("getBlock", slot, options), "blockHeight")


async def has_all_blocks(call: Call, tip: Epoch, first_height: int, last_height: int) -> bool:
    """Return whether a node has every irreversible block from one height to another.

    Args:
        call: makes a call of the node, given method and parameters, and returns what it answers.
        tip: where the node stands, above the last of them.
        first_height: of the first block.
        last_height: of the last block.

    Raises:
        ChainUnavailableError: the node does not tell.
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
    """Return the slot of the block of a height; None if the node has none, as far as a search tells."""
    # A step of so many slots passes at most so many blocks: it never goes too far down.
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
        # Slots may be empty: then the next block is that of before, and the step must be longer.
        slot = min(slot - 1, found[0] - above)
    return None


async def _slots_from(call: Call, slot: int, most: int) -> list[int]:
    return read_slots(await call("getBlocksWithLimit", slot, most, {"commitment": "finalized"}))
