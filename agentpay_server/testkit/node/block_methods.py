"""Methods of the RPC node about blocks. Every slot has a block, and most are empty."""

from collections.abc import Mapping
from typing import Final

from solders.litesvm import LiteSVM

from agentpay_server.chain.embedded.blocks import FIRST_SLOT, slot_at
from agentpay_server.testkit.node import rendering
from agentpay_server.testkit.node.errors import BLOCK_NOT_AVAILABLE, RpcError
from agentpay_server.testkit.node.group import Json, Method, MethodGroup, decimals_on
from agentpay_server.testkit.node.params import Options, Params

_MOST_BLOCKS: Final = 500_000
_DETAILS: Final = frozenset({"full", "signatures", "none"})


class BlockMethods(MethodGroup):
    """Reads blocks."""

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by name."""
        return {
            "getBlock": self._block,
            "getBlocksWithLimit": self._blocks_with_limit,
            "getFirstAvailableBlock": self._first_available_block,
        }

    async def _first_available_block(self, _params: Params) -> Json:
        return slot_at(self.chain.history.first_height)

    async def _blocks_with_limit(self, params: Params) -> Json:
        first, limit = params.count(0), params.count(1, most=_MOST_BLOCKS)
        self.check(params.options(2))
        first = max(first, slot_at(self.chain.history.first_height))
        return list(range(first, min(first + limit, slot_at(await self.chain.block_height()) + 1)))

    async def _block(self, params: Params) -> Json:
        slot, options = params.count(0), params.options_or_encoding(1)
        self.check(options)
        details = options.choice("transactionDetails", _DETAILS, "full")
        encoding = options.choice("encoding", rendering.TRANSACTION_ENCODINGS, "json")
        most_version = options.count("maxSupportedTransactionVersion", most=255)
        height = await self._height(slot)

        def read(svm: LiteSVM) -> Json:
            executed, decimals = self.chain.history.of_block(height), decimals_on(svm)
            if details == "signatures":
                return {"signatures": [each.signature for each in executed]}
            if details == "none":
                return {}
            return {
                "transactions": [
                    rendering.in_block(each, encoding, most_version, decimals) for each in executed
                ]
            }

        previous = max(height - 1, 0)
        block = {
            "blockHeight": height,
            "blockTime": self.chain.block_time(height),
            "blockhash": str(self.chain.blockhash_at(height)),
            "parentSlot": slot_at(previous),
            "previousBlockhash": str(self.chain.blockhash_at(previous)),
            **await self.chain.read(read),
        }
        return block if not _wants_rewards(options) else {**block, "rewards": []}

    async def _height(self, slot: int) -> int:
        """Return the height of a slot's block.

        Raises:
            RpcError: the block is unknown, or not yet produced.
        """
        height = slot - FIRST_SLOT
        if not self.chain.history.first_height <= height <= await self.chain.block_height():
            raise RpcError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")
        return height


def _wants_rewards(options: Options) -> bool:
    return options.flag("rewards") or not options.has("rewards")
