"""From instructions to signed bytes: compiles a legacy message, has it signed, refuses what no packet holds.

What the instructions do is not its subject.
"""

from collections.abc import Sequence
from typing import Final

from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature

from agentpay_server.chain.base import Blockhash, ComputeBudget, SignedTransaction
from agentpay_server.chain.custody import TREASURY, KeyPath, Signer
from agentpay_server.chain.instructions import set_compute_unit_limit, set_compute_unit_price

MAX_TRANSACTION_BYTES: Final = 1_232
"""The largest transaction that Solana's network forwards: one IPv6 packet."""

_SIGNATURE_BYTES: Final = 64


class TransactionTooLargeError(ValueError):
    """A transaction would pass `MAX_TRANSACTION_BYTES`: shorten its memo or text."""


def sign_transaction(
    signer: Signer, blockhash: Blockhash, instructions: Sequence[Instruction], *cosigners: KeyPath
) -> SignedTransaction:
    """Return `instructions` as one transaction, paid by the treasury and signed by it and by `cosigners`.

    Args:
        signer: holds the keys.
        blockhash: a recent one; it bounds the transaction's life, and says what to offer for it.
        instructions: what to do, in order, all or nothing.
        cosigners: the other keys whose signature the instructions require.

    Raises:
        TransactionTooLargeError: it would not fit a packet; nothing was signed.
    """
    keys = {signer.address(key): key for key in (TREASURY, *cosigners)}
    treasury = Pubkey.from_string(signer.address(TREASURY))
    steps = [*_budget(blockhash.compute_budget), *instructions]
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
    )


def _budget(budget: ComputeBudget | None) -> list[Instruction]:
    if budget is None:
        return []
    return [
        set_compute_unit_limit(budget.unit_limit),
        set_compute_unit_price(budget.unit_price_micro_lamports),
    ]
