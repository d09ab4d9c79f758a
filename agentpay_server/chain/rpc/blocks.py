"""Reads irreversible blocks, to check what nodes report about them.

A node has a gap in its blocks after downtime and a restart from a snapshot. It knows the blocks before and
after the gap, and responds as if it were complete. Heights reveal the gap because they count blocks: the
difference of two heights is the number of blocks between them.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    ChainUnreachableError,
    reported_landing_heights,
)
from agentpay_server.chain.rpc.replies import Epoch, count, member, read_hash, read_slots, read_validity

_MOST_STEPS: Final = 64
_MOST_BLOCKS: Final = 100_000  # Per reply; the blocks of a blockhash's life are 150.

_MAX_ERROR_BLOCKS: Final = 2 * BLOCKHASH_LIFE_BLOCKS
"""Maximum error of a last valid height that a node reported with a blockhash."""

Call = Callable[..., Awaitable[object]]


async def read_height(call: Call, slot: int) -> int:
    """Return the height of the irreversible block in a slot."""
    return count(await _block(call, slot), "blockHeight")


async def landing_heights(
    call: Call, tip: Epoch, blockhash: str, last_valid_height: int
) -> tuple[int, int] | None:
    """See `Chain.landing_heights`. `tip` is the node's position, above the last valid height."""
    first = last_valid_height - BLOCKHASH_LIFE_BLOCKS
    slot = await slot_of(call, tip, first) if first >= 0 else None
    if slot is None:
        return None
    if read_hash(member(await _block(call, slot), "blockhash", str)) == blockhash:
        return reported_landing_heights(last_valid_height)
    # The height is wrong. A node that is another life ahead has seen the right block, and knows its hash.
    if tip.block_height <= last_valid_height + BLOCKHASH_LIFE_BLOCKS:
        raise ChainUnreachableError("a node reported a wrong last valid height for a blockhash")
    reply = await call("isBlockhashValid", blockhash, {"commitment": "finalized"})
    validity = read_validity(reply)
    if validity.is_valid or validity.slot < tip.slot:
        raise ChainUnreachableError("a blockhash may still be valid")
    return max(first - _MAX_ERROR_BLOCKS, 0), await read_height(call, validity.slot)


async def _block(call: Call, slot: int) -> object:
    options = {
        "transactionDetails": "none",
        "rewards": False,
        "maxSupportedTransactionVersion": 255,  # No transactions are requested.
        "commitment": "finalized",
    }
    return await call("getBlock", slot, options)


async def has_all_blocks(call: Call, tip: Epoch, first_height: int, last_height: int) -> bool:
    """Return whether a node has every irreversible block from one height to another.

    `call` calls a method of the node with parameters. `tip`, the node's position, is above the last of the
    blocks.

    Raises:
        ChainUnreachableError: the node did not respond.
    """
    wanted = last_height - first_height + 1
    if not 0 < wanted <= _MOST_BLOCKS:
        return False
    slot = await slot_of(call, tip, first_height)
    if slot is None:
        return False
    slots = await _slots_from(call, slot, wanted)
    return len(slots) == wanted and await read_height(call, slots[-1]) == last_height


async def slot_of(call: Call, tip: Epoch, height: int) -> int | None:
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
