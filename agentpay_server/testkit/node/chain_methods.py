"""Methods of the RPC node about the chain: blockhashes, heights, slots, fees, its one validator."""

import base64
import hashlib
import struct
from collections.abc import Mapping
from typing import Final

from solders.hash import Hash
from solders.message import Message, MessageV0, from_bytes_versioned
from solders.pubkey import Pubkey

from agentpay_server.chain.embedded.blocks import slot_at
from agentpay_server.chain.instructions import COMPUTE_BUDGET_PROGRAM
from agentpay_server.testkit.node.errors import invalid_params
from agentpay_server.testkit.node.group import VERSION, Json, Method, MethodGroup
from agentpay_server.testkit.node.params import Params

_SLOTS_PER_EPOCH: Final = 432_000
_LAMPORTS_PER_SIGNATURE: Final = 5_000
_DEFAULT_UNITS: Final = 200_000
_MOST_UNITS: Final = 1_400_000
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
            "getEpochSchedule": self._epoch_schedule,
            "getFeeForMessage": self._fee_for_message,
            "getGenesisHash": self._genesis_hash,
            "getHealth": self._health,
            "getIdentity": self._identity,
            "getLatestBlockhash": self._latest_blockhash,
            "getMinimumBalanceForRentExemption": self._rent_exemption,
            "getRecentPrioritizationFees": self._prioritization_fees,
            "getSlot": self._slot,
            "getSlotLeader": self._slot_leader,
            "getTransactionCount": self._transaction_count,
            "getVersion": self._version,
            "getVoteAccounts": self._vote_accounts,
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

    async def _epoch_schedule(self, _params: Params) -> Json:
        return {
            "slotsPerEpoch": _SLOTS_PER_EPOCH,
            "leaderScheduleSlotOffset": _SLOTS_PER_EPOCH,
            "warmup": False,
            "firstNormalEpoch": 0,
            "firstNormalSlot": 0,
        }

    async def _transaction_count(self, params: Params) -> Json:
        self.check(params.options(0))
        await self.chain.block_height()
        return self.chain.transaction_count

    async def _identity(self, _params: Params) -> Json:
        return {"identity": self._address_of("validator")}

    async def _slot_leader(self, params: Params) -> Json:
        self.check(params.options(0))
        return self._address_of("validator")

    async def _vote_accounts(self, params: Params) -> Json:
        options = params.options(0)
        self.check(options)
        height = await self.chain.block_height()
        vote = self._address_of("vote account")
        validator = {
            "votePubkey": vote,
            "nodePubkey": self._address_of("validator"),
            "activatedStake": 1_000_000_000,
            "commission": 0,
            "epochVoteAccount": True,
            "epochCredits": [],
            "lastVote": slot_at(height),
            "rootSlot": slot_at(height),
        }
        return {
            "current": [validator] if options.text("votePubkey") in (None, vote) else [],
            "delinquent": [],
        }

    def _address_of(self, role: str) -> str:
        """Return the address of the one validator or its vote account; nobody has the key."""
        name = f"{role} of {self.chain.genesis_hash}"
        return str(Pubkey.from_bytes(hashlib.sha256(name.encode()).digest()))

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

    async def _fee_for_message(self, params: Params) -> Json:
        text = params.text(0)
        self.check(params.options(1))
        try:
            message = from_bytes_versioned(base64.b64decode(text, validate=True))
        except Exception:  # noqa: BLE001 - solders has several kinds of it
            raise invalid_params("failed to deserialize the message") from None
        is_valid = await self.chain.is_blockhash_valid(message.recent_blockhash)
        return self.in_context(
            _fee(message) if is_valid and isinstance(message, Message | MessageV0) else None
        )


def _fee(message: Message | MessageV0) -> int:
    """Return the fee in lamports of a transaction with this message."""
    limit, price, count = None, 0, 0
    for step in message.instructions:
        data = bytes(step.data)
        if message.account_keys[step.program_id_index] != COMPUTE_BUDGET_PROGRAM:
            count += 1
        elif data[:1] == b"\x02" and len(data) == 5:
            (limit,) = struct.unpack_from("<I", data, 1)
        elif data[:1] == b"\x03" and len(data) == 9:
            (price,) = struct.unpack_from("<Q", data, 1)
    units = min(count * _DEFAULT_UNITS if limit is None else limit, _MOST_UNITS)
    return message.header.num_required_signatures * _LAMPORTS_PER_SIGNATURE + -(-units * price // 1_000_000)
