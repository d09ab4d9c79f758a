"""The nodes behind one RPC endpoint, which lag, get stuck, and lie (`lies.py`).

They respond as of their newest slot, in the format of Solana's nodes.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import define
from solders.account import Account

from agentpay_lab.simulation.cluster import (
    FINALIZED_SLOTS,
    LandedTransaction,
    SimulatedCluster,
)
from agentpay_lab.simulation.faults import FaultInjector
from agentpay_lab.simulation.lies import NUMBERS, Lies
from agentpay_server.chain.custody import transaction_of
from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS
from agentpay_server.plugins.cluster.client import RpcRefusalError
from agentpay_server.plugins.node import rendering

_CONFIRMED_SLOTS: Final = 1
_PREFLIGHT_FAILED: Final = -32002
_NO_BLOCK: Final = -32007
_TOO_EARLY: Final = -32016
_UNKNOWN_METHOD: Final = -32601
_LIES_SECONDS: Final = 10.0
_LIES: Final = (-300, -200, -60, 60, 200, 300)

Options = Mapping[str, Any]


@define
class SimulatedNode:
    """`behind` the newest slot, or `stuck_at` one; reports numbers wrong by `lie` until `lies_until`."""

    name: str
    behind: int = 0
    stuck_at: int | None = None
    lies_until: float = 0.0
    lie: int = 0


class Nodes:
    def __init__(
        self,
        cluster: SimulatedCluster,
        faults: FaultInjector,
        now: Callable[[], float],
        *,
        lie_seconds: float,
    ) -> None:
        self._cluster, self._faults, self._now = cluster, faults, now
        self._lies = Lies(cluster, faults, now, lie_seconds)
        self.all: list[SimulatedNode] = [SimulatedNode(f"n{number}", behind=number) for number in range(3)]

    def answer(self, node: SimulatedNode, by: str, method: str, params: Sequence[Any]) -> object:
        answer = getattr(self, f"_{method}", None)
        if answer is None:
            raise RpcRefusalError(method, _UNKNOWN_METHOD, "Method not found", None)
        who = (node, by) if method == "sendTransaction" else (node,)
        return self._lies.told(node.name, self.view(node), method, params, lambda: answer(*who, *params))

    def view(self, node: SimulatedNode) -> int:
        """Return the newest slot that a node has seen."""
        return self._cluster.slot() - node.behind if node.stuck_at is None else node.stuck_at

    def heal(self) -> None:
        for number, node in enumerate(self.all):
            node.behind, node.stuck_at, node.lies_until = number, None, 0.0

    # --- The position of a node

    def _at(self, node: SimulatedNode, options: Options | None) -> int:
        view = self.view(node)
        match (options or {}).get("commitment", "finalized"):
            case "processed":
                return view
            case "confirmed":
                return view - _CONFIRMED_SLOTS
            case _:
                return view - FINALIZED_SLOTS

    def _reported(self, node: SimulatedNode, kind: str, number: int) -> int:
        """Return a number, possibly a lie."""
        strike = self._faults.strike(kind, node.name) if self._lies.may(NUMBERS) else None
        if strike is not None:
            node.lie = strike.choice(_LIES)
            is_single = strike.random() < 0.5
            self._lies.takes(NUMBERS, 0 if is_single else _LIES_SECONDS)
            if is_single:
                return number + node.lie
            node.lies_until = self._now() + _LIES_SECONDS
        return number + node.lie if self._now() < node.lies_until else number

    # ruff: noqa: N802 - methods have the names of JSON-RPC
    def _getGenesisHash(self, _: SimulatedNode) -> str:
        return self._cluster.genesis_hash

    def _getVersion(self, _: SimulatedNode) -> object:
        return {"solana-core": "2.3.0", "feature-set": 1}

    def _getEpochInfo(self, node: SimulatedNode, options: Options | None = None) -> object:
        slot = self._cluster.newest_block(self._at(node, options))
        height = self._cluster.height(slot)
        reported = self._reported(node, "lie.height", height)
        return {
            "absoluteSlot": slot + reported - height,
            "blockHeight": reported,
            "epoch": 0,
            "slotIndex": slot % 432_000,
            "slotsInEpoch": 432_000,
        }

    def _getFirstAvailableBlock(self, _: SimulatedNode) -> int:
        return self._cluster.first_slot

    def _getBlock(self, node: SimulatedNode, slot: int, options: Options | None = None) -> object:
        if slot > self._at(node, options) or not self._cluster.has_block(slot):
            raise RpcRefusalError("getBlock", _NO_BLOCK, f"Slot {slot} was skipped, or missing", None)
        return {
            "blockHeight": self._cluster.height(slot),
            "blockTime": None,
            "blockhash": self._cluster.blockhash(slot),
            "parentSlot": slot - 1,
        }

    def _getBlocksWithLimit(
        self, node: SimulatedNode, slot: int, most: int, options: Options | None = None
    ) -> object:
        newest = self._at(node, options)
        found: list[int] = []
        while slot <= newest and len(found) < most:
            if self._cluster.has_block(slot):
                found.append(slot)
            slot += 1
        return found

    # --- Transactions

    def _getLatestBlockhash(self, node: SimulatedNode, options: Options | None = None) -> object:
        slot = self._cluster.newest_block(self._at(node, options))
        last = self._cluster.height(slot) + BLOCKHASH_LIFE_BLOCKS
        reported = self._reported(node, "lie.last valid height", last)
        value = {"blockhash": self._cluster.blockhash(slot), "lastValidBlockHeight": reported}
        return {"context": {"slot": slot}, "value": value}

    def _isBlockhashValid(
        self, node: SimulatedNode, blockhash: str, options: Options | None = None
    ) -> object:
        slot = self._at(node, options)
        is_valid = self._cluster.is_valid(blockhash, self._cluster.height(slot))
        return {"context": {"slot": slot}, "value": is_valid}

    def _getSignatureStatuses(
        self, node: SimulatedNode, signatures: Sequence[str], _: Options | None = None
    ) -> object:
        view = self.view(node)
        slot = self._reported(node, "lie.slot", view)
        return {"context": {"slot": slot}, "value": [self._status(name, view) for name in signatures]}

    def _status(self, signature: str, view: int) -> object:
        landed = self._cluster.landings.get(signature)
        if landed is None or landed.slot > view:
            return None
        is_final = view - landed.slot >= FINALIZED_SLOTS
        return {
            "slot": landed.slot,
            "confirmations": None if is_final else view - landed.slot,
            "err": landed.error,
            "status": {"Ok": None} if landed.error is None else {"Err": landed.error},
            "confirmationStatus": self._commitment(landed, view),
        }

    def _commitment(self, landed: LandedTransaction, view: int) -> str:
        age = view - landed.slot
        if age >= FINALIZED_SLOTS:
            return "finalized"
        return "confirmed" if age >= _CONFIRMED_SLOTS else "processed"

    def _sendTransaction(
        self, node: SimulatedNode, by: str, text: str, options: Options | None = None
    ) -> str:
        raw = base64.b64decode(text)
        transaction = transaction_of(raw)
        if not (options or {}).get("skipPreflight"):
            view = self.view(node)
            landed = self._cluster.landings.get(str(transaction.signatures[0]))
            if landed is not None and landed.slot <= view:
                self._refuse("This transaction has already been processed", "AlreadyProcessed")
            blockhash = str(transaction.message.recent_blockhash)
            if not self._cluster.is_valid(blockhash, self._cluster.height(view)):
                self._refuse("Blockhash not found", "BlockhashNotFound")
        return self._cluster.submit(raw, by)

    def _refuse(self, why: str, error: str) -> None:
        raise RpcRefusalError("sendTransaction", _PREFLIGHT_FAILED, why, {"err": error})

    def _simulateTransaction(self, node: SimulatedNode, _: str, __: Options | None = None) -> object:
        value: dict[str, object] = {"err": None, "logs": [], "unitsConsumed": 20_000}
        return {"context": {"slot": self.view(node)}, "value": value}

    def _getRecentPrioritizationFees(self, node: SimulatedNode, _: object = None) -> object:
        return [{"slot": self.view(node), "prioritizationFee": 0}]

    def _getTransaction(self, node: SimulatedNode, signature: str, options: Options) -> object:
        landed = self._cluster.landings.get(signature)
        if landed is None or landed.slot > self._at(node, options):
            return None
        return {
            "slot": landed.slot,
            "transaction": _encoded(landed, options.get("encoding", "json")),
            "meta": {
                "err": landed.error,
                "fee": 5_000,
                "logMessages": landed.meta.logs(),
                "innerInstructions": rendering.inner_instructions(
                    landed.meta, landed.transaction.message.account_keys
                ),
                "preTokenBalances": self._balances(landed.keys, landed.before),
                "postTokenBalances": self._balances(landed.keys, landed.after),
            },
        }

    def _getSignaturesForAddress(
        self, node: SimulatedNode, address: str, options: Options | None = None
    ) -> object:
        options = options or {}
        if options.get("minContextSlot", 0) > self._at(node, options):
            raise RpcRefusalError("getSignaturesForAddress", _TOO_EARLY, "Minimum context slot", None)
        names, places, end = self._cluster.history(address, self._at(node, options))
        first = 0
        if "before" in options:
            end = min(end, places.get(options["before"], 0))
        if options.get("until") in places:
            first = places[options["until"]] + 1
        first = max(first, end - options.get("limit", 1_000))
        view = self.view(node)
        return [
            {
                "signature": name,
                "slot": landed.slot,
                "err": landed.error,
                "memo": None,
                "blockTime": None,
                "confirmationStatus": self._commitment(landed, view),
            }
            for name in reversed(names[first:end])
            for landed in (self._cluster.landings[name],)
        ]

    def _balances(self, keys: Sequence[str], held: Mapping[str, int]) -> list[object]:
        return [
            {
                "accountIndex": keys.index(address),
                "mint": self._cluster.usdc_mint,
                "uiTokenAmount": {"decimals": 6, "amount": str(amount_micro)},
            }
            for address, amount_micro in held.items()
        ]

    # --- Accounts

    def _getMultipleAccounts(
        self, node: SimulatedNode, addresses: Sequence[str], options: Options | None = None
    ) -> object:
        slot = self._at(node, options)
        value = [_account(self._cluster.account_at(address, slot)) for address in addresses]
        return {"context": {"slot": slot}, "value": value}

    def _getAccountInfo(self, node: SimulatedNode, address: str, options: Options | None = None) -> object:
        slot = self._at(node, options)
        return {"context": {"slot": slot}, "value": _account(self._cluster.account_at(address, slot))}

    def _getBalance(self, node: SimulatedNode, address: str, options: Options | None = None) -> object:
        slot = self._at(node, options)
        account = self._cluster.account_at(address, slot)
        return {"context": {"slot": slot}, "value": 0 if account is None else account.lamports}

    def _getMinimumBalanceForRentExemption(
        self, _: SimulatedNode, size: int, __: Options | None = None
    ) -> int:
        return self._cluster.rent_exemption(size)


def _encoded(landed: LandedTransaction, encoding: str) -> object:
    if encoding == "base64":
        return [base64.b64encode(bytes(landed.transaction)).decode("ascii"), "base64"]
    message, is_parsed = landed.transaction.message, encoding == "jsonParsed"
    return {
        "signatures": [str(each) for each in landed.transaction.signatures],
        "message": {
            "accountKeys": [{"pubkey": key} for key in landed.keys] if is_parsed else landed.keys,
            "instructions": [
                rendering.instruction(each, message.account_keys, encoding, 1)
                for each in message.instructions
            ],
            "recentBlockhash": str(message.recent_blockhash),
        },
    }


def _account(account: Account | None) -> object:
    if account is None:
        return None
    data = base64.b64encode(account.data).decode("ascii")
    return {"data": [data, "base64"], "owner": str(account.owner), "lamports": account.lamports}
