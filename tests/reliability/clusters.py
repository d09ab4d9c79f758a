"""A Solana cluster in memory, on the event loop's own time, and nodes that tell wrong numbers about it.

It has slots of a fixed length, a tenth of them empty, blockhashes that live for 150 blocks, three commitments
and real programs. It is the judge: what landed on it is what happened. A `Node` stands in for the client of
an RPC endpoint, and can be told to change its replies:

    cluster.delays.append(55.0)                                 the next payment lands 55 s after its first
    send cluster.tell("getEpochInfo", shifted("blockHeight", 200))   one reply tells 200 blocks too many
    cluster.tell(..., seconds=10)                               so does every reply of the next 10 s
"""

import asyncio
import base64
import hashlib
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import cache
from typing import Any

import json_rpc_server
from attrs import define, frozen
from solders.account import Account
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

from agentpay_server.chain.embedded import virtual_machine as machines
from agentpay_server.chain.instructions import TOKEN_2022_PROGRAM, USDC_MINTS
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.chain.rpc.client import RpcRefusalError

DEVNET = "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG"
OWN = str(Hash.from_bytes(hashlib.sha256(b"a cluster of our own").digest()))
FIRST_SLOT = 435_888_000
LIFE_BLOCKS = 150
UNFINALIZED_SLOTS = 31
NEVER = float("inf")

Change = Callable[[Any, "Cluster"], Any]
"""Returns the value that a node reports instead of the true one."""

_SUBJECT = re.compile(rb"(txn|sess)_[0-9a-z]{26}")
_BEHIND = {"processed": 0, "confirmed": 1, "finalized": UNFINALIZED_SLOTS}


@frozen
class Landed:
    """A transaction that is in a block.

    Attributes:
        slot: of the block.
        subject: the transfer_id or session_id that its memo begins with; empty if it has none.
        error: why it moved nothing, as JSON-RPC says it; None when it succeeded.
        transaction: itself.
        before: the accounts that it may have changed, as they were before it.
        balances: what the token accounts held before it and after it.
    """

    slot: int
    subject: str
    error: Any
    transaction: VersionedTransaction
    before: dict[str, Account | None]
    balances: tuple[dict[str, int], dict[str, int]]


@define
class _Told:
    """A change of the replies to one method, and for how long it lasts."""

    change: Change
    replies: int | None
    until: float


class Cluster:
    """A cluster, and all that ever landed on it.

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
        self.slot_seconds = slot_seconds
        self.delays: deque[float] = deque()
        """In how many seconds the next transfers, steps of sessions and records of policies land.

        It counts from their first send; those beyond land after a slot.
        """
        self.drops = 0
        """How many sends of such transactions are lost from now on; each may be resent."""
        self.landed: dict[str, Landed] = {}
        self.sent: Counter[str] = Counter()
        """How often each signature was handed over."""
        self.valid_until: dict[str, int] = {}
        """The last height at which each signature that was handed over can land."""
        self.calls: Counter[str] = Counter()
        self.grace_blocks = 0
        """For how many blocks a blockhash lives beyond what the cluster promises."""
        self.is_down = False
        self.lacks: set[int] = set()
        """Slots whose blocks no node has any more."""
        self.unlisted: set[str] = set()
        """Signatures that are missing from the index of accounts."""
        self._machine = machines.new_machine()
        self._machine.with_transaction_history(0)
        self._versions: dict[str, list[tuple[int, Account | None]]] = {}
        self._told: dict[str, list[_Told]] = defaultdict(list)
        self._pace: list[tuple[float, int, float]] = [(0.0, FIRST_SLOT + 2_000, slot_seconds)]
        first = machines.first_accounts(
            self._machine, treasury=treasury, usdc_mint=self.usdc_mint, mint_authority=mint_authority
        )
        machines.set_accounts(self._machine, first)
        self._remember(FIRST_SLOT, first)

    # --- Time, blocks and blockhashes

    def slot(self) -> int:
        """Return the newest slot."""
        since, slot, slot_seconds = self._pace[-1]
        return slot + int((self._now() - since) / slot_seconds + 1e-9)

    def set_slot_seconds(self, slot_seconds: float) -> None:
        """Let slots take another time from now on."""
        self._pace.append((self._now(), self.slot(), slot_seconds))
        self.slot_seconds = slot_seconds

    @staticmethod
    def height(slot: int) -> int:
        """Return the height of the newest block at a slot; every tenth slot is empty."""
        passed = slot - FIRST_SLOT + 1
        return passed - passed // 10

    @staticmethod
    def has_block(slot: int) -> bool:
        """Return whether there is a block in a slot."""
        return slot >= FIRST_SLOT and (slot - FIRST_SLOT + 1) % 10 != 0

    @staticmethod
    @cache
    def blockhash(slot: int) -> str:
        return str(Hash.from_bytes(hashlib.sha256(f"blockhash {slot}".encode()).digest()))

    def _now(self) -> float:
        return asyncio.get_event_loop().time()

    # --- What lands

    def submit(self, raw: bytes) -> str:
        """Take a transaction; it lands once, after its delay, if its blockhash is still valid then."""
        transaction = VersionedTransaction.from_bytes(raw)
        signature = str(transaction.signatures[0])
        found = _SUBJECT.search(raw)
        is_delayed = bool(found) or TOKEN_2022_PROGRAM in transaction.message.account_keys
        if is_delayed and self.drops:
            self.drops -= 1
            return signature
        self.sent[signature] += 1
        if self.sent[signature] == 1:
            delay = self.delays.popleft() if is_delayed and self.delays else self.slot_seconds
            if delay < NEVER:
                subject = found[0].decode() if found else ""
                asyncio.get_running_loop().call_later(delay, self.land, transaction, subject)
        return signature

    def land(self, transaction: VersionedTransaction, subject: str = "") -> None:
        """Execute a transaction in the newest block, unless it has landed or its blockhash has expired."""
        signature, slot = str(transaction.signatures[0]), self.slot()
        valid_until = self.last_valid_height(transaction)
        if signature in self.landed or valid_until is None:
            return
        if self.height(slot) > valid_until + self.grace_blocks:
            return
        touched = [str(key) for key in machines.writable_accounts(transaction)]
        before = {address: machines.account_at(self._machine, address) for address in touched}
        held = self._held(touched)
        machines.set_clock(self._machine, slot, int(self._now() * 1e6))
        result = self._machine.send_transaction(transaction)
        error = None
        if isinstance(result, FailedTransactionMetadata):
            error = _error_json(result.err())
        self._remember(slot, machines.changed_accounts(self._machine, transaction))
        self.landed[signature] = Landed(
            slot, subject, error, transaction, before, (held, self._held(touched))
        )

    def last_valid_height(self, transaction: VersionedTransaction) -> int | None:
        """Return up to which height a transaction can land; None when its blockhash is none of this chain."""
        return self._last_height_with(str(transaction.message.recent_blockhash), self.slot())

    def _last_height_with(self, blockhash: str, newest: int) -> int | None:
        for slot in range(newest, newest - 2_000, -1):
            if self.has_block(slot) and self.blockhash(slot) == blockhash:
                return self.height(slot) + LIFE_BLOCKS
        return None

    def undo(self, signature: str) -> None:
        """Let the block of a transaction vanish, as if it had not been there. It may land again."""
        undone = self.landed.pop(signature)
        del self.sent[signature]
        for address, account in undone.before.items():
            held = account or Account(0, b"", Pubkey.default())
            self._machine.set_account(Pubkey.from_string(address), held)
            self._versions[address] = [
                (slot, version) for slot, version in self._versions[address] if slot < undone.slot
            ]

    def payments(self, subject: str) -> list[str]:
        """Return the signatures of all transactions of a subject that succeeded, in the order of landing."""
        return [
            signature
            for signature, landed in self.landed.items()
            if landed.subject == subject and landed.error is None
        ]

    def balance(self, token_account: str) -> int:
        """Return the micro-USDC that a token account holds now."""
        return self._held([token_account])[token_account]

    def _held(self, addresses: list[str]) -> dict[str, int]:
        found = (machines.token_account_at(self._machine, address, self.usdc_mint) for address in addresses)
        return {account.address: account.amount_micro for account in found if account is not None}

    def _remember(self, slot: int, accounts: dict[str, bytes | None]) -> None:
        for address, data in accounts.items():
            account = None if data is None else Account.from_bytes(data)
            self._versions.setdefault(address, []).append((slot, account))

    # --- What nodes tell

    def tell(self, method: str, change: Change, *, replies: int = 1, seconds: float | None = None) -> None:
        """Change the next `replies` replies to a method, or all of them for `seconds`."""
        until = NEVER if seconds is None else self._now() + seconds
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
        reply = getattr(self, f"_{method}")(*params)
        changes = self._told[method]
        for told in list(changes):
            if self._now() >= told.until:
                changes.remove(told)
                continue
            if told.replies is not None:
                told.replies -= 1
                if told.replies == 0:
                    changes.remove(told)
            return told.change(reply, self)
        return reply

    def seen_at(self, options: dict[str, Any]) -> int:
        """Return the newest slot of a commitment."""
        return self.slot() - _BEHIND[options.get("commitment", "finalized")]

    def _getVersion(self) -> Any:  # noqa: N802 - the methods of JSON-RPC
        return {"solana-core": "2.3.0", "feature-set": 1}

    def _getGenesisHash(self) -> str:  # noqa: N802 - the methods of JSON-RPC
        return self.genesis_hash

    def _getEpochInfo(self, options: dict[str, Any]) -> dict[str, int]:  # noqa: N802
        slot = self.seen_at(options)
        return {"absoluteSlot": slot, "blockHeight": self.height(slot)}

    def _getLatestBlockhash(self, options: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        slot = self.seen_at(options)
        while not self.has_block(slot):
            slot -= 1
        told = {"blockhash": self.blockhash(slot), "lastValidBlockHeight": self.height(slot) + LIFE_BLOCKS}
        return {"context": {"slot": slot}, "value": told}

    def _getSignatureStatuses(self, signatures: list[str], _: object) -> dict[str, Any]:  # noqa: N802
        newest = self.slot()
        return {"context": {"slot": newest}, "value": [self._status(name, newest) for name in signatures]}

    def _status(self, signature: str, newest: int) -> dict[str, Any] | None:
        landed = self.landed.get(signature)
        if landed is None or landed.slot > newest:
            return None
        age = newest - landed.slot
        commitment = max((name for name in _BEHIND if age >= _BEHIND[name]), key=_BEHIND.__getitem__)
        return {"slot": landed.slot, "err": landed.error, "confirmationStatus": commitment}

    def _sendTransaction(self, text: str, options: dict[str, Any]) -> str:  # noqa: N802
        raw = base64.b64decode(text)
        transaction = VersionedTransaction.from_bytes(raw)
        signature = str(transaction.signatures[0])
        if signature in self.landed:
            raise RpcRefusalError("sendTransaction", -32002, "processed", {"err": "AlreadyProcessed"})
        valid_until = self.last_valid_height(transaction)
        if valid_until is None or self.height(self.slot()) > valid_until:
            raise RpcRefusalError("sendTransaction", -32002, "expired", {"err": "BlockhashNotFound"})
        self.valid_until[signature] = valid_until
        return self.submit(raw)

    def _getFirstAvailableBlock(self) -> int:  # noqa: N802
        return FIRST_SLOT

    def _getBlock(self, slot: int, _: object) -> dict[str, Any]:  # noqa: N802
        if not self.has_block(slot) or slot > self.slot() or slot in self.lacks:
            raise RpcRefusalError("getBlock", -32007, "Slot was skipped", None)
        return {"blockHeight": self.height(slot), "blockhash": self.blockhash(slot)}

    def _isBlockhashValid(self, blockhash: str, options: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        slot = self.seen_at(options)
        last = self._last_height_with(blockhash, slot)
        return {"context": {"slot": slot}, "value": last is not None and self.height(slot) <= last}

    def _getBlocksWithLimit(self, start: int, most: int, options: dict[str, Any]) -> list[int]:  # noqa: N802
        last = self.seen_at(options)
        held = (slot for slot in range(start, last + 1) if self.has_block(slot) and slot not in self.lacks)
        return [slot for slot, _ in zip(held, range(most), strict=False)]

    def _getMultipleAccounts(self, addresses: list[str], options: dict[str, Any]) -> Any:  # noqa: N802
        slot = self.seen_at(options)
        return {"context": {"slot": slot}, "value": [self._account_json(name, slot) for name in addresses]}

    def _account_json(self, address: str, slot: int) -> dict[str, Any] | None:
        versions = [account for since, account in self._versions.get(address, ()) if since <= slot]
        account = versions[-1] if versions else None
        if account is None:
            return None
        data = [base64.b64encode(account.data).decode(), "base64"]
        return {"data": data, "owner": str(account.owner), "lamports": account.lamports}

    def _getMinimumBalanceForRentExemption(self, size: int) -> int:  # noqa: N802
        return self._machine.minimum_balance_for_rent_exemption(size)

    def _getSignaturesForAddress(self, address: str, options: dict[str, Any]) -> list[Any]:  # noqa: N802
        newest = self.seen_at(options)
        names = [
            name
            for name, landed in self.landed.items()
            if address in landed.before and landed.slot <= newest and name not in self.unlisted
        ][::-1]
        if "before" in options:
            names = names[names.index(options["before"]) + 1 :] if options["before"] in names else []
        if options.get("until") in names:
            names = names[: names.index(options["until"])]
        return [
            {
                "signature": name,
                "slot": self.landed[name].slot,
                "err": self.landed[name].error,
                "confirmationStatus": "finalized",
            }
            for name in names[: options["limit"]]
        ]

    def _getTransaction(self, signature: str, options: dict[str, Any]) -> Any:  # noqa: N802
        landed = self.landed.get(signature)
        if landed is None or landed.slot > self.seen_at(options):
            return None
        if options["encoding"] == "base64":
            encoded = base64.b64encode(bytes(landed.transaction)).decode()
            return {
                "slot": landed.slot,
                "transaction": [encoded, "base64"],
                "meta": {"err": landed.error, "logMessages": []},
            }
        message = landed.transaction.message
        keys = [str(key) for key in message.account_keys]
        shown = [{"pubkey": key} for key in keys]
        before, after = (
            [self._balance_json(keys, held) for held in held.items()] for held in landed.balances
        )
        return {
            "transaction": {
                "signatures": [str(each) for each in landed.transaction.signatures],
                "message": {
                    "accountKeys": shown,
                    "instructions": [
                        {"programIdIndex": step.program_id_index} for step in message.instructions
                    ],
                },
            },
            "meta": {"err": landed.error, "preTokenBalances": before, "postTokenBalances": after},
        }

    def _balance_json(self, keys: list[str], held: tuple[str, int]) -> dict[str, Any]:
        amount = {"amount": str(held[1]), "decimals": 6}
        return {"accountIndex": keys.index(held[0]), "mint": self.usdc_mint, "uiTokenAmount": amount}


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


def _error_json(error: Any) -> Any:
    if isinstance(error, TransactionErrorInstructionError):
        cause = error.err
        if isinstance(cause, InstructionErrorCustom):
            return {"InstructionError": [error.index, {"Custom": cause.code}]}
        return {"InstructionError": [error.index, str(cause).rpartition(".")[2]]}
    return str(error)


async def answered(cluster: Cluster, body: bytes) -> json_rpc_server.Answer:
    """Answer a JSON-RPC request over HTTP."""
    call = json.loads(body)
    try:
        return json_rpc_server.result(await cluster.answer(call["method"], *call["params"]))
    except RpcRefusalError as refusal:
        return json_rpc_server.error(refusal.code, refusal.detail, refusal.data)
