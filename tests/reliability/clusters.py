"""The laboratory's Solana cluster on a test's event loop, and a node that reports wrong numbers about it.

The cluster is the judge: what landed on it is what happened. A `Node` stands in for the client of an RPC
endpoint, and can be told to change its replies:

    cluster.delays.append(55.0)                                 the next payment lands 55 s after it is sent
    cluster.tell("getEpochInfo", shifted("blockHeight", 200))   one reply reports 200 blocks too many
    cluster.tell(..., seconds=10)                               so does every reply of the next 10 s
"""

import asyncio
import hashlib
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import json_rpc_server
from attrs import define, evolve
from solders.hash import Hash
from solders.transaction import VersionedTransaction

from agentpay_lab.simulation.chance import Chance
from agentpay_lab.simulation.cluster import (
    FINALIZED_SLOTS,
    Described,
    LandedTransaction,
    SimulatedCluster,
)
from agentpay_lab.simulation.faults import FaultInjector
from agentpay_lab.simulation.nodes import Nodes
from agentpay_lab.simulation.plan import Plan, Skew
from agentpay_lab.simulation.timeline import Timeline
from agentpay_server.chain.instructions import TOKEN_2022_PROGRAM, USDC_MINTS
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.plugins.cluster.client import RpcRefusalError

DEVNET = "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG"
OWN = str(Hash.from_bytes(hashlib.sha256(b"a cluster of our own").digest()))
NEVER = float("inf")

Change = Callable[[Any, "Cluster"], Any]
"""Returns the value that a node reports instead of the true one."""

_SUBJECT = re.compile(rb"(txn|sess)_[0-9a-z]{26}")


@define
class _Told:
    """A change of the replies to one method, and for how long it lasts."""

    change: Change
    replies: int | None
    until: float


class Cluster(SimulatedCluster):
    """A cluster of which a tenth of the slots are empty, and which delays and loses only what a test says.

    Args:
        treasury: the address that pays fees and rents.
        mint_authority: the address that mints USDC.
        genesis_hash: which cluster it is.
        slot_seconds: how long a slot takes.
    """

    def __init__(
        self, *, treasury: str, mint_authority: str, genesis_hash: str = OWN, slot_seconds: float = 0.4
    ) -> None:
        self.genesis_hash = genesis_hash
        self.usdc_mint = USDC_MINTS["devnet" if genesis_hash == DEVNET else "mainnet-beta"]
        self.delays: deque[float] = deque()
        """In how many seconds the next transfers, steps of sessions and records of policies land.

        It counts from their first send; those beyond land after a slot.
        """
        self.drops = 0
        """How many sends of such transactions are lost from now on; each may be resent."""
        self.sent: Counter[str] = Counter()
        """How often each signature was handed over."""
        self.calls: Counter[str] = Counter()
        self.grace_blocks = 0
        """For how many blocks a blockhash lives beyond what the cluster promises."""
        self.is_down = False
        self.lacks: set[int] = set()
        """Slots whose blocks no node has any more."""
        self.unlisted: set[str] = set()
        """Signatures that are missing from the index of accounts."""
        self._told: dict[str, list[_Told]] = defaultdict(list)
        plan, chance = Plan(seed=1, skew=Skew(skips_every=10, slot_seconds=slot_seconds)), Chance(1)
        loop: Any = asyncio.get_event_loop()
        timeline = Timeline(loop.time, keeps=False)
        faults = FaultInjector(plan, chance, timeline)  # It stays off.
        super().__init__(plan, chance, loop, faults, timeline, wall_us=0, watcher=self)
        self.furnish(treasury=treasury, mint_authority=mint_authority)
        self._nodes = Nodes(self, faults, loop.time, lie_seconds=0)

    def set_slot_seconds(self, slot_seconds: float) -> None:
        """Let slots take another time from now on."""
        self._stalled_seconds += self._lived() * (1 - slot_seconds / self.slot_seconds)
        self.slot_seconds = slot_seconds

    def has_block(self, slot: int) -> bool:
        return slot not in self.lacks and super().has_block(slot)

    def final_slot(self) -> int:
        """Return the newest slot that is final."""
        return self.slot() - FINALIZED_SLOTS

    # --- What lands

    def submit(self, raw: bytes, by: str = "") -> str:
        """Take a transaction; it lands once, after its delay, if its blockhash is still valid then."""
        transaction = VersionedTransaction.from_bytes(raw)
        signature = str(transaction.signatures[0])
        is_delayed = bool(_SUBJECT.search(raw)) or TOKEN_2022_PROGRAM in transaction.message.account_keys
        if is_delayed and self.drops:
            self.drops -= 1
            return signature
        self.sent[signature] += 1
        if self.sent[signature] == 1:
            delay = self.delays.popleft() if is_delayed and self.delays else self.slot_seconds
            if delay < NEVER:
                asyncio.get_running_loop().call_later(delay, self.land, transaction)
        return signature

    def blocks_left(self, transaction: VersionedTransaction) -> int:
        return super().blocks_left(transaction) + self.grace_blocks

    def undo(self, signature: str) -> None:
        """Let the newest blocks vanish, down to that of a transaction. What was in them may land again."""
        while signature in self.landings:
            self._undo_newest()

    def payments(self, subject: str) -> list[str]:
        """Return the signatures of all transactions of a subject that succeeded, in the order of landing."""
        return [
            signature
            for signature, landing in self.landings.items()
            if landing.about.subject == subject and landing.error is None
        ]

    def balance(self, token_account: str) -> int:
        """Return the micro-USDC that a token account holds now."""
        return self.held_by([token_account])[token_account]

    def _described(self, transaction: VersionedTransaction) -> Described:
        found = _SUBJECT.search(bytes(transaction))
        return evolve(super()._described(transaction), subject=found[0].decode() if found else "")

    def handed_over(self, about: Described, by: str) -> None:
        """Watch nothing."""

    def in_block(self, landing: LandedTransaction) -> None:
        """Watch nothing."""

    def undone(self, landing: LandedTransaction) -> None:
        """Let the next send of it count as the first."""
        del self.sent[landing.about.signature]

    # --- What nodes tell

    def tell(self, method: str, change: Change, *, replies: int = 1, seconds: float | None = None) -> None:
        """Change the next `replies` replies to a method, or all of them for `seconds`."""
        until = NEVER if seconds is None else self._loop.time() + seconds
        self._told[method].append(_Told(change, replies if seconds is None else None, until))

    def tell_the_truth(self) -> None:
        """End every change of replies."""
        self._told.clear()

    async def answer(self, method: str, *params: Any) -> Any:
        """Answer a call as a node does."""
        self.calls[method] += 1
        await asyncio.sleep(0.02)
        if self.is_down:
            raise ChainUnreachableError(f"{method}: the cluster is down")
        reply = self._nodes.answer(self._nodes.all[0], "", method, params)
        changes = self._told[method]
        for told in list(changes):
            if self._loop.time() >= told.until:
                changes.remove(told)
                continue
            if told.replies is not None:
                told.replies -= 1
                if told.replies == 0:
                    changes.remove(told)
            return told.change(reply, self)
        return reply

    def history(self, address: str, slot: int) -> tuple[Sequence[str], Mapping[str, int], int]:
        names, _, end = super().history(address, slot)
        listed = [name for name in names[:end] if name not in self.unlisted]
        return listed, {name: place for place, name in enumerate(listed)}, len(listed)


class Node:
    """Stands in for `RpcClient`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def call(self, method: str, *params: object) -> object:
        return await self._cluster.answer(method, *params)

    async def close(self) -> None:
        """Close nothing."""


# --- Changes of replies


def shifted(path: str, by: int) -> Change:
    """Add `by` to the number, or to each number of a list, at a path such as `value.slot`; not below 0."""

    def change(reply: Any, _: Cluster) -> Any:
        return _replaced(reply, path.split(".") if path else [], lambda number: max(number + by, 0))

    return change


def both(*changes: Change) -> Change:
    """Make several changes to one reply."""

    def change(reply: Any, cluster: Cluster) -> Any:
        for each in changes:
            reply = each(reply, cluster)
        return reply

    return change


def ahead(by: int) -> Change:
    """Let a node stand `by` blocks ahead, in slots and heights alike."""
    return both(shifted("absoluteSlot", by), shifted("blockHeight", by))


def stale() -> Change:
    """Let a node tell again and again what it told first."""
    kept: list[Any] = []

    def change(reply: Any, _: Cluster) -> Any:
        kept.append(reply)
        return kept[0]

    return change


def _replaced(value: Any, path: list[str], change: Callable[[int], int]) -> Any:
    if isinstance(value, list):
        return [_replaced(each, path, change) for each in value]
    if not path:
        return change(value) if isinstance(value, int) else value
    if not isinstance(value, dict) or path[0] not in value:
        return value
    return {**value, path[0]: _replaced(value[path[0]], path[1:], change)}


async def answered(cluster: Cluster, body: bytes) -> json_rpc_server.Answer:
    """Answer a JSON-RPC request over HTTP."""
    call = json.loads(body)
    try:
        return json_rpc_server.result(await cluster.answer(call["method"], *call["params"]))
    except RpcRefusalError as refusal:
        return json_rpc_server.error(refusal.code, refusal.detail, refusal.data)
