"""Validates and parses the results of a node.

Pure functions from JSON to values, which check every used field. A malformed result counts as no response,
and raises `ChainUnreachableError`. A missing field is never read as its empty value; in particular, a status
without `err` is not a success.
"""

import base64
import binascii
from itertools import pairwise
from typing import Any, Final, TypeVar

from attrs import frozen
from solders.hash import Hash, ParseHashError
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_server.chain.instructions import debited_account
from agentpay_server.chain.protocol import ChainUnreachableError

T = TypeVar("T")

_SURFPOOL_VERSION: Final = "surfnet-version"

_MAX_U64: Final = 2**64 - 1
_MAX_STORED: Final = 2**63 - 1  # The largest integer of the database.


@frozen(kw_only=True)
class Epoch:
    """The position of a node: a block height, and the slot of that block."""

    block_height: int
    slot: int


@frozen(kw_only=True)
class ReportedStatus:
    """A node's information on a signature.

    Attributes:
        commitment: `processed`, `confirmed` or `finalized`.
        error: the transaction's error as reported; None if it succeeded.
        slot: the slot of its block.
    """

    commitment: str
    error: object
    slot: int


@frozen(kw_only=True)
class ChainAccount:
    """An account of any kind. `program` owns it."""

    program: str
    lamports: int
    data: bytes


@frozen(kw_only=True)
class HistoryLine:
    """A transaction in an account's history. `finalized` means irreversible."""

    signature: str
    failed: bool
    finalized: bool
    slot: int


@frozen(kw_only=True)
class Landing:
    """A transaction that is in a block, read with its bytes and its signatures.

    Attributes:
        slot: the slot of the block.
        error: why it moved nothing, as reported; None if it succeeded.
        programs: the program of each instruction.
        last_log: the last line of its log, if any.
        debits: the first token account that it debits, if any.
    """

    slot: int
    error: object
    programs: tuple[str, ...]
    last_log: str | None
    debits: str | None


_COMMITMENTS: Final = frozenset({"processed", "confirmed", "finalized"})


def malformed(what: str) -> ChainUnreachableError:
    """Return the error for a malformed result."""
    return ChainUnreachableError(f"the node's answer makes no sense: {what}")


def member(value: object, name: str, kind: type[T]) -> T:
    """Return a required member of a JSON object, of exactly this type: `True` is not an `int`."""
    if not isinstance(value, dict) or name not in value:
        raise malformed(f"no {name}")
    return exactly(value[name], kind, name)


def optional_member(value: object, name: str, kind: type[T]) -> T | None:
    """Return a member of a JSON object, or None if it is missing or null."""
    if isinstance(value, dict) and value.get(name) is None:
        return None
    return member(value, name, kind)


def exactly(value: object, kind: type[T], name: str) -> T:
    """Return `value` if its type is exactly `kind`."""
    if type(value) is not kind:
        raise malformed(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def count(value: object, name: str) -> int:
    """Return a non-negative integer that fits 64 bits."""
    return _u64(member(value, name, int), name)


def signature_text(value: object) -> str:
    """Return `value` if it is a signature in base58."""
    text = exactly(value, str, "signature")
    try:
        Signature.from_string(text)
    except ValueError:
        raise malformed("a signature that is not valid base58") from None
    return text


def read_hash(reply: object) -> str:
    """Parse the base58 hash of a `getGenesisHash` result."""
    text = exactly(reply, str, "hash")
    try:
        Hash.from_string(text)
    except (ParseHashError, ValueError):
        raise malformed("a hash that is not valid base58") from None
    return text


def read_blockhash(reply: object) -> tuple[str, int]:
    """Parse blockhash and last valid block height of a `getLatestBlockhash` result."""
    value = member(reply, "value", dict)
    height = count(value, "lastValidBlockHeight")
    if height > _MAX_STORED:
        raise malformed("a block height that is too large")
    return read_hash(value.get("blockhash")), height


def read_validity(reply: object) -> tuple[int, bool]:
    """Parse the node's slot, and whether it accepts a blockhash, of an `isBlockhashValid` result."""
    return read_position(reply), member(reply, "value", bool)


def read_epoch(reply: object) -> Epoch:
    """Parse the node's position from a `getEpochInfo` result."""
    epoch = Epoch(block_height=count(reply, "blockHeight"), slot=count(reply, "absoluteSlot"))
    if epoch.block_height > epoch.slot:  # Slots may be without a block, never the other way round.
        raise malformed("a block height above its slot")
    return epoch


def read_is_surfpool(reply: object) -> bool:
    """Parse whether a `getVersion` result is that of Surfpool."""
    return _SURFPOOL_VERSION in exactly(reply, dict, "version")


def read_statuses(reply: object, wanted: int) -> tuple[int, list[ReportedStatus | None]]:
    """Parse the node's slot and `wanted` statuses of a `getSignatureStatuses` result."""
    return read_position(reply), [None if line is None else _status(line) for line in _lines(reply, wanted)]


def read_position(reply: object) -> int:
    """Parse the slot of a result with a context."""
    return count(member(reply, "context", dict), "slot")


def read_accounts(reply: object, wanted: int) -> list[ChainAccount | None]:
    """Parse `wanted` accounts of a base64 `getMultipleAccounts` result; None for a missing account."""
    return [None if line is None else _account(line) for line in _lines(reply, wanted)]


def read_lamports(reply: object) -> int:
    """Parse the lamports of a `getMinimumBalanceForRentExemption` result."""
    return _u64(exactly(reply, int, "lamports"), "lamports")


def read_slot(reply: object) -> int:
    """Parse the slot of a `getFirstAvailableBlock` result."""
    return _u64(exactly(reply, int, "slot"), "slot")


def read_slots(reply: object) -> list[int]:
    """Parse the slots of a `getBlocksWithLimit` result, in ascending order."""
    lines: list[object] = exactly(reply, list, "slots")
    slots = [read_slot(line) for line in lines]
    if any(slot >= following for slot, following in pairwise(slots)):
        raise malformed("slots that are not ascending")
    return slots


def read_history(reply: object) -> list[HistoryLine]:
    """Parse an account's transactions, newest first, of a `getSignaturesForAddress` result."""
    lines: list[Any] = exactly(reply, list, "history")
    return [
        HistoryLine(
            signature=signature_text(member(line, "signature", str)),
            failed=_error(line) is not None,
            finalized=member(line, "confirmationStatus", str) == "finalized",
            slot=count(line, "slot"),
        )
        for line in lines
    ]


def read_transaction(reply: object, signature: str) -> dict[str, Any]:
    """Return the transaction of a `getTransaction` result, if it is the requested one."""
    transaction: dict[str, Any] = member(reply, "transaction", dict)
    signatures: list[object] = member(transaction, "signatures", list)
    if not signatures or signature_text(signatures[0]) != signature:
        raise malformed("another transaction than the one that was asked for")
    return transaction


_SIGNED_VERSIONS: Final = (None, "legacy", 0)
"""Readable versions of transactions; None if a node reports no version."""


def read_signed(reply: object, signature: str) -> VersionedTransaction | None:
    """Return the transaction of a `getTransaction` result in base64, if it is the requested one.

    Its signatures are verified. Returns None if its version is unknown.
    """
    encoded: list[object] = member(reply, "transaction", list)
    try:
        raw = base64.b64decode(exactly(encoded[0] if encoded else None, str, "transaction"), validate=True)
        transaction = VersionedTransaction.from_bytes(raw)
    except binascii.Error:
        raise malformed("a transaction that is not base64") from None
    except ValueError:
        if exactly(reply, dict, "transaction").get("version") in _SIGNED_VERSIONS:
            # A truncated or malformed transaction must not be treated as a foreign one.
            raise malformed("a transaction that cannot be read") from None
        return None
    if not transaction.signatures or str(transaction.signatures[0]) != signature:
        raise malformed("another transaction than the one that was asked for")
    # Results are cached, so a wrong message under these signatures would hide a payment permanently.
    if not all(transaction.verify_with_results()):
        raise malformed("a transaction whose signatures are of another message")
    return transaction


def read_landing(reply: object, signature: str) -> Landing:
    """Parse a transaction and its outcome from a `getTransaction` result in base64."""
    transaction = read_signed(reply, signature)
    if transaction is None:
        raise malformed("a transaction of an unknown version")
    message, meta = transaction.message, member(reply, "meta", dict)
    keys: list[object] = [str(key) for key in message.account_keys]
    loaded = optional_member(meta, "loadedAddresses", dict) or {}
    for kind in ("writable", "readonly"):
        keys += optional_member(loaded, kind, list) or []
    programs: list[str] = []
    for step in message.instructions:
        if step.program_id_index >= len(keys):
            raise malformed("an instruction of a program that is not listed")
        programs.append(exactly(keys[step.program_id_index], str, "program"))
    logs = optional_member(meta, "logMessages", list)
    return Landing(
        slot=count(reply, "slot"),
        error=_error(meta),
        programs=tuple(programs),
        last_log=exactly(logs[-1], str, "log") if logs else None,
        debits=debited_account(transaction),
    )


def read_simulation(reply: object) -> int | None:
    """Parse the compute units of a `simulateTransaction` result; None if the transaction would fail."""
    value = member(reply, "value", dict)
    units = count(value, "unitsConsumed")
    return units if _error(value) is None else None


def read_prices(reply: object) -> list[int]:
    """Parse recently paid prices of a `getRecentPrioritizationFees` result."""
    lines: list[object] = exactly(reply, list, "prices")
    return [count(line, "prioritizationFee") for line in lines]


def _status(line: object) -> ReportedStatus:
    commitment = member(line, "confirmationStatus", str)
    if commitment not in _COMMITMENTS:
        raise malformed("an unknown commitment")
    return ReportedStatus(commitment=commitment, error=_error(line), slot=count(line, "slot"))


def _error(line: object) -> object:
    """Return a transaction's error, which must be present even if it is null."""
    if not isinstance(line, dict) or "err" not in line:
        raise malformed("no err field")
    error = line["err"]
    if error is not None and not (isinstance(error, str | dict) and error):
        raise malformed("an error that is neither a string nor an object")
    return error


def _account(line: object) -> ChainAccount:
    data: list[object] = member(line, "data", list)
    if len(data) != 2 or data[1] != "base64":
        raise malformed("data that is not in base64")
    try:
        decoded = base64.b64decode(exactly(data[0], str, "data"), validate=True)
    except ValueError:
        raise malformed("data that is not in base64") from None
    return ChainAccount(program=member(line, "owner", str), lamports=count(line, "lamports"), data=decoded)


def _lines(reply: object, wanted: int) -> list[object]:
    lines: list[object] = member(reply, "value", list)
    if len(lines) != wanted:
        raise malformed(f"{len(lines)} results for {wanted} requested items")
    return lines


def _u64(value: int, name: str) -> int:
    if not 0 <= value <= _MAX_U64:
        raise malformed(f"{name} is {value}")
    return value
