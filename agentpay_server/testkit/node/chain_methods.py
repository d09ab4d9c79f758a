"""Methods of the RPC node about the chain: blockhashes, heights, slots, fees."""

from collections.abc import Mapping
from typing import Final

from solders.hash import Hash

from agentpay_server.chain.embedded.blocks import slot_at
from agentpay_server.testkit.node.errors import invalid_params
from agentpay_server.testkit.node.group import VERSION, Json, Method, MethodGroup
from agentpay_server.testkit.node.params import Params

_SLOTS_PER_EPOCH: Final = 432_000
_MOST_ADDRESSES: Final = 128
_MOST_ACCOUNT_BYTES: Final = 10 * 1024 * 1024


class ChainMethods(MethodGroup):
    """The identity and the position of the chain."""

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by name."""
        return {
            "getBlockHeight": self._block_height,
            "getEpochInfo": self._epoch_info,
            "getGenesisHash": self._genesis_hash,
            "getHealth": self._health,
            "getLatestBlockhash": self._latest_blockhash,
            "getMinimumBalanceForRentExemption": self._rent_exemption,
            "getRecentPrioritizationFees": self._prioritization_fees,
            "getSlot": self._slot,
            "getVersion": self._version,
            "isBlockhashValid": self._is_blockhash_valid,
        }

    async def _latest_blockhash(self, params: Params) -> Json:
        self.check(params.options(0))
        blockhash = await self.chain.latest_blockhash()
        return self.in_context(
            {"blockhash": blockhash.value, "lastValidBlockHeight": blockhash.last_valid_block_height}
        )

    async def _is_blockhash_valid(self, params: Params) -> Json:
        text = params.text(0)
        self.check(params.options(1))
        try:
            blockhash = Hash.from_string(text)
        except Exception:  # noqa: BLE001 - solders has a kind of its own for it
            raise invalid_params(f"{text[:64]!r} is not a blockhash") from None
        return self.in_context(await self.chain.is_blockhash_valid(blockhash))

    async def _block_height(self, params: Params) -> Json:
        self.check(params.options(0))
        return await self.chain.block_height()

    async def _slot(self, params: Params) -> Json:
        self.check(params.options(0))
        return slot_at(await self.chain.block_height())

    async def _epoch_info(self, params: Params) -> Json:
        self.check(params.options(0))
        height = await self.chain.block_height()
        slot = slot_at(height)
        return {
            "absoluteSlot": slot,
            "blockHeight": height,
            "epoch": slot // _SLOTS_PER_EPOCH,
            "slotIndex": slot % _SLOTS_PER_EPOCH,
            "slotsInEpoch": _SLOTS_PER_EPOCH,
            "transactionCount": self.chain.transaction_count,
        }

    async def _genesis_hash(self, _params: Params) -> Json:
        return self.chain.genesis_hash

    async def _version(self, _params: Params) -> Json:
        return {"solana-core": VERSION, "feature-set": 0}

    async def _health(self, _params: Params) -> Json:
        await self.chain.block_height()
        return "ok"

    async def _rent_exemption(self, params: Params) -> Json:
        size = params.count(0, most=_MOST_ACCOUNT_BYTES)
        return await self.chain.rent_exemption(size)

    async def _prioritization_fees(self, params: Params) -> Json:
        if params.get(0) is not None:
            params.addresses(0, most=_MOST_ADDRESSES)
        return [{"slot": self.chain.slot, "prioritizationFee": 0}]
