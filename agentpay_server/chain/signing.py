"""Signing transactions: compiles instructions to a legacy message, signs it, and checks its size."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import evolve
from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message, MessageV0, MessageV1
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_server.chain.custody import TREASURY, KeyPath, Signer
from agentpay_server.chain.instructions import (
    ASSOCIATED_TOKEN_PROGRAM,
    COMPUTE_BUDGET_PROGRAM,
    MEMO_PROGRAM,
    set_compute_unit_limit,
    set_compute_unit_price,
)
from agentpay_server.chain.protocol import MOST_COMPUTE_UNITS, Blockhash, ComputeBudget, SignedTransaction

MAX_TRANSACTION_BYTES: Final = 1_232
"""The largest transaction that Solana forwards: one IPv6 packet."""

SIGNATURE_LAMPORTS: Final = 5_000
"""The fee of each signature of a transaction."""

_SIGNATURE_BYTES: Final = 64
_MICRO: Final = 1_000_000
_SAME_LENGTH_BYTES: Final = 64


class TransactionTooLargeError(ValueError):
    """A transaction would exceed `MAX_TRANSACTION_BYTES`: shorten its memo or text."""


def sign_transaction(
    signer: Signer, blockhash: Blockhash, instructions: Sequence[Instruction], *cosigners: KeyPath
) -> SignedTransaction:
    """Return `instructions` as one transaction, signed by the treasury, which pays, and by `cosigners`.

    `blockhash` sets its expiry and compute budget.

    Raises:
        TransactionTooLargeError: it exceeds `MAX_TRANSACTION_BYTES`; nothing was signed.
    """
    keys = {signer.address(key): key for key in (TREASURY, *cosigners)}
    treasury = Pubkey.from_string(signer.address(TREASURY))
    budget = _own_budget(blockhash.compute_budget, instructions)
    steps = [*_budget(budget), *instructions]
    message = Message.new_with_blockhash(steps, treasury, Hash.from_string(blockhash.value))
    count = message.header.num_required_signatures
    payload = bytes(message)
    size = 1 + count * _SIGNATURE_BYTES + len(payload)
    if size > MAX_TRANSACTION_BYTES:
        raise TransactionTooLargeError(
            f"the transaction takes {size} bytes, the limit is {MAX_TRANSACTION_BYTES}: shorten its text"
        )
    # The message decides the order of its signers, the fee payer first.
    signatures = [signer.sign(keys[str(address)], payload) for address in message.account_keys[:count]]
    return SignedTransaction(
        signature=str(Signature.from_bytes(signatures[0])),
        # The count is a compact-u16, one byte up to 127.
        raw=b"".join((bytes((count,)), *signatures, payload)),
        last_valid_block_height=blockhash.last_valid_block_height,
        fee_lamports=fee_lamports(count, budget),
    )


def fee_lamports(signatures: int, budget: ComputeBudget | None) -> int:
    """Return the fee of a transaction with a number of signatures; at most that, before it is built."""
    fee = SIGNATURE_LAMPORTS * signatures
    if budget is None:
        return fee
    return fee + math.ceil(budget.unit_limit * budget.unit_price_micro_lamports / _MICRO)


def with_units_for(blockhash: Blockhash, count: int) -> Blockhash:
    """Return a blockhash whose compute limit is `count` times as high."""
    budget = blockhash.compute_budget
    if budget is None:
        return blockhash
    limit = min(budget.unit_limit * count, MOST_COMPUTE_UNITS)
    return evolve(blockhash, compute_budget=evolve(budget, unit_limit=limit))


def transaction_of(raw: bytes) -> VersionedTransaction:
    """Parse the bytes of a signed transaction.

    Raises:
        TransactionTooLargeError: larger than a packet.
        ValueError: not a transaction, or one without signatures.
    """
    if len(raw) > MAX_TRANSACTION_BYTES:
        raise TransactionTooLargeError(f"{len(raw)} bytes sent, the limit is {MAX_TRANSACTION_BYTES}")
    transaction = VersionedTransaction.from_bytes(raw)
    if not transaction.signatures:
        raise ValueError("a transaction without signatures was sent")
    return transaction


def shape_of(message: Message | MessageV0 | MessageV1) -> str | None:
    """Return a key that is equal for messages that need about the same compute units.

    None if the need varies, for example because the program searches for an account's address.
    """
    if not isinstance(message, Message):
        return None
    keys = message.account_keys
    return _shape((keys[step.program_id_index], bytes(step.data)) for step in message.instructions)


def _shape(steps: Iterable[tuple[Pubkey, bytes]]) -> str | None:
    parts = []
    for program, data in steps:
        if program == ASSOCIATED_TOKEN_PROGRAM:
            return None
        if program != COMPUTE_BUDGET_PROGRAM:
            # The first byte identifies the instruction; the data of a memo is text from the start.
            asked = b"" if program == MEMO_PROGRAM else data[:1]
            parts.append(f"{program}:{asked.hex()}:{len(data) // _SAME_LENGTH_BYTES}")
    return " ".join(parts)


def _own_budget(budget: ComputeBudget | None, instructions: Sequence[Instruction]) -> ComputeBudget | None:
    """Return the budget with the limit for these instructions."""
    if budget is None:
        return None
    shape = _shape((step.program_id, bytes(step.data)) for step in instructions)
    limit = budget.unit_limit if shape is None else budget.unit_limits.get(shape, budget.unit_limit)
    return evolve(budget, unit_limit=limit)


def _budget(budget: ComputeBudget | None) -> list[Instruction]:
    if budget is None:
        return []
    return [
        set_compute_unit_limit(budget.unit_limit),
        set_compute_unit_price(budget.unit_price_micro_lamports),
    ]
