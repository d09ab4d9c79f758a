"""False replies of nodes: each method lies, one at a time, while all others are honest.

A lie is one reply, or every reply of a method for a while, from one node or from all of them. It stays
plausible: a reply that makes no sense would be refused before it could do harm. Nodes whose methods agree on
a lie are not simulated; no client could tell them from honest ones.
"""

import base64
import hashlib
import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import define
from solders.hash import Hash
from solders.signature import Signature

from agentpay_lab.simulation.cluster import FINALIZED_SLOTS, SimulatedCluster
from agentpay_lab.simulation.faults import FaultInjector
from agentpay_server.plugins.cluster.client import RpcRefusalError

KIND_OF: Final[Mapping[str, str]] = {
    "getSignatureStatuses": "lie.status",
    "getTransaction": "lie.transaction",
    "getSignaturesForAddress": "lie.history",
    "getMultipleAccounts": "lie.account",
    "isBlockhashValid": "lie.validity",
    "getLatestBlockhash": "lie.blockhash",
    "getBlock": "lie.block",
    "getBlocksWithLimit": "lie.blocks",
    "getFirstAvailableBlock": "lie.first block",
    "getMinimumBalanceForRentExemption": "lie.rent",
    "sendTransaction": "lie.send",
    "getGenesisHash": "lie.genesis",
}
"""The kind of lie of each method that servers call."""

NUMBERS: Final = "numbers"
"""All methods of a node that report heights and slots, which lie together (`nodes.py`)."""

_QUIET_SECONDS: Final = 5.0
"""Pause between lies of two methods, so that what one of them said is not taken for the other's proof."""

_ERRORS: Final = ({"InstructionError": [2, {"Custom": 1}]}, {"InstructionError": [1, {"Custom": 4}]})
_AMOUNT: Final = 64
"""Where a token account holds its amount."""

_PREFLIGHT_FAILED: Final = -32002

Reply = Any


@define
class _Lie:
    """`node` is None for all nodes; `form` draws how it lies, `share` how much of a reply is false."""

    method: str
    node: str | None
    until: float
    chance: random.Random
    form: float
    share: float

    def is_about(self, name: str) -> bool:
        """Return whether a signature is lied about, always the same for as long as the lie lasts."""
        return hashlib.sha256(f"{self.form} {name}".encode()).digest()[0] < 256 * self.share

    def choice(self, *forms: str) -> str:
        return forms[int(self.form * len(forms))]


class Lies:
    """`longest_seconds` is how long a method may keep lying."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        faults: FaultInjector,
        now: Callable[[], float],
        longest_seconds: float,
    ) -> None:
        self._cluster, self._faults, self._now = cluster, faults, now
        self._longest_seconds = longest_seconds
        self._liar, self._busy_until = "", -math.inf
        self._lie: _Lie | None = None

    def may(self, liar: str) -> bool:
        """Return whether a method may lie: no other one does, or did some seconds ago."""
        return self._faults.are_on and (self._liar == liar or self._now() >= self._busy_until)

    def takes(self, liar: str, seconds: float) -> None:
        """Keep all others from lying while a lie lasts."""
        self._liar, self._busy_until = liar, self._now() + seconds + _QUIET_SECONDS

    def told(
        self, node: str, view: int, method: str, params: Sequence[Any], ask: Callable[[], object]
    ) -> object:
        """Return a node's reply, which `ask` returns if it is honest. `view` is its newest slot."""
        lie = self._current(node, method)
        if lie is None:
            return ask()
        if method == "sendTransaction":
            return _sent(lie, params, ask)
        return getattr(self, f"_{KIND_OF[method][4:].replace(' ', '_')}")(lie, view, params, ask())

    def _current(self, node: str, method: str) -> _Lie | None:
        kind = KIND_OF.get(method)
        if kind is None or not self.may(method):
            return None
        lie, now = self._lie, self._now()
        if lie is not None and lie.method == method and now < lie.until:
            return lie if lie.node in (None, node) else None
        strike = self._faults.strike(kind, node)
        if strike is None:
            return None
        seconds = strike.choice((0.0, self._longest_seconds))  # One reply, or all of them for a while.
        whose, form, share = strike.choice((None, None, node)), strike.random(), strike.choice((1, 1, 0.3))
        self._lie = _Lie(method, whose, now + seconds, strike, form, share)
        self.takes(method, seconds)
        return self._lie

    # --- How each method lies

    def _status(self, lie: _Lie, view: int, params: Sequence[Any], reply: Reply) -> object:
        value = [
            self._false_status(lie, view, signature, status) if lie.is_about(signature) else status
            for signature, status in zip(params[0], reply["value"], strict=True)
        ]
        return {**reply, "value": value}

    def _false_status(self, lie: _Lie, view: int, signature: str, status: Reply) -> object:
        match lie.choice("unknown", "unknown", "failed", "landed", "irreversible"):
            case "unknown":
                return None
            case "failed":
                error: object = lie.chance.choice(_ERRORS)
            case "landed":
                error = None
            case _:
                if status is None:
                    return None
                error = status["err"]
        landed = self._cluster.landings.get(signature)
        slot = view - FINALIZED_SLOTS if landed is None else landed.slot
        return {
            "slot": slot,
            "confirmations": None,
            "err": error,
            "status": {"Ok": None} if error is None else {"Err": error},
            "confirmationStatus": "finalized",
        }

    def _transaction(self, lie: _Lie, _: int, params: Sequence[Any], reply: Reply) -> object:
        if reply is None or not lie.is_about(params[0]):
            return reply
        meta = reply["meta"]
        match lie.choice("unknown", "outcome", "slot", "amounts"):
            case "unknown":
                return None
            case "outcome":
                error = lie.chance.choice(_ERRORS) if meta["err"] is None else None
                return {**reply, "meta": {**meta, "err": error}}
            case "slot":
                return {**reply, "slot": reply["slot"] + lie.chance.choice((-300, -20, 20, 300))}
            case _:
                return {**reply, "meta": {**meta, "postTokenBalances": meta["preTokenBalances"]}}

    def _history(  # noqa: PLR0911 - one for each form
        self, lie: _Lie, _: int, params: Sequence[Any], reply: Reply
    ) -> object:
        match lie.choice("empty", "gap", "newest", "failed", "irreversible", "more"):
            case "empty":
                return []
            case "gap":
                return [line for line in reply if not lie.is_about(line["signature"])]
            case "newest":
                return reply[lie.chance.randint(1, 3) :]
            case "failed":
                return [
                    {**line, "err": lie.chance.choice(_ERRORS) if line["err"] is None else None}
                    if lie.is_about(line["signature"])
                    else line
                    for line in reply
                ]
            case "irreversible":
                return [{**line, "confirmationStatus": "finalized"} for line in reply]
            case _:
                if not reply:
                    return reply
                name = Signature.from_bytes(hashlib.sha512(f"{params[0]} {lie.form}".encode()).digest())
                line = {**reply[0], "signature": str(name), "confirmationStatus": "finalized"}
                place = lie.chance.randint(0, len(reply) - 1)
                return [*reply[:place], line, *reply[place + 1 :]]

    def _account(self, lie: _Lie, _: int, params: Sequence[Any], reply: Reply) -> object:
        value = [
            self._false_account(lie, address, account) if lie.is_about(address) else account
            for address, account in zip(params[0], reply["value"], strict=True)
        ]
        return {**reply, "value": value}

    def _false_account(self, lie: _Lie, address: str, account: Reply) -> object:
        form = lie.choice("missing", "old", "less", "more", "lamports")
        if form == "old":
            old = self._cluster.account_at(address, self._cluster.slot() - lie.chance.choice((60, 300)))
            if old is None:
                return None
            data = base64.b64encode(old.data).decode("ascii")
            return {"data": [data, "base64"], "owner": str(old.owner), "lamports": old.lamports}
        if account is None or form == "missing":
            return None
        if form == "lamports":
            return {**account, "lamports": lie.chance.choice((0, account["lamports"] * 2))}
        raw = bytearray(base64.b64decode(account["data"][0]))
        if len(raw) >= _AMOUNT + 8:
            (held,) = struct.unpack_from("<Q", raw, _AMOUNT)
            amount = held + lie.chance.randint(1, 60_000) if form == "more" else lie.chance.randint(0, held)
            struct.pack_into("<Q", raw, _AMOUNT, amount)
        return {**account, "data": [base64.b64encode(raw).decode("ascii"), "base64"]}

    def _validity(self, _: _Lie, __: int, ___: Sequence[Any], reply: Reply) -> object:
        return {**reply, "value": not reply["value"]}

    def _blockhash(self, lie: _Lie, view: int, _: Sequence[Any], reply: Reply) -> object:
        value = str(Hash(hashlib.sha256(f"{lie.form}".encode()).digest()))
        if lie.choice("old", "unknown") == "old":
            value = self._cluster.blockhash(self._cluster.newest_block(view - lie.chance.choice((140, 300))))
        return {**reply, "value": {**reply["value"], "blockhash": value}}

    def _block(self, lie: _Lie, _: int, __: Sequence[Any], reply: Reply) -> object:
        return {**reply, "blockHeight": reply["blockHeight"] + lie.chance.choice((-200, -1, 1, 200))}

    def _blocks(self, lie: _Lie, _: int, __: Sequence[Any], reply: Reply) -> object:
        match lie.choice("none", "gap", "shifted"):
            case "none":
                return []
            case "gap":
                return [slot for slot in reply if lie.chance.random() > 0.1]
            case _:
                return [slot + 1 for slot in reply]

    def _first_block(self, lie: _Lie, view: int, _: Sequence[Any], reply: Reply) -> object:
        return lie.chance.choice((0, reply + 500, view - 10))

    def _rent(self, lie: _Lie, _: int, __: Sequence[Any], reply: Reply) -> object:
        return lie.chance.choice((0, reply // 2, reply * 2))

    def _genesis(self, lie: _Lie, _: int, __: Sequence[Any], ___: Reply) -> object:
        return str(Hash(hashlib.sha256(f"{lie.form}".encode()).digest()))


def _sent(lie: _Lie, params: Sequence[Any], ask: Callable[[], object]) -> object:
    """Say that a transaction was accepted, and drop it, or refuse it, and perhaps send it all the same."""
    form = lie.choice("accepted", "duplicate", "refused", "sent, and refused")
    if form == "accepted":
        return str(Signature.from_bytes(base64.b64decode(params[0])[1:65]))
    if form == "duplicate":
        raise RpcRefusalError(
            "sendTransaction",
            _PREFLIGHT_FAILED,
            "This transaction has already been processed",
            {"err": "AlreadyProcessed"},
        )
    if form == "sent, and refused":
        ask()
    raise RpcRefusalError(
        "sendTransaction", _PREFLIGHT_FAILED, "Transaction simulation failed", {"err": _ERRORS[0]}
    )
