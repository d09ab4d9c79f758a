"""Reading back what a transaction asks for: the USDC that its instructions move, and its memo.

It is for showing to people. What a transaction has really done is read from the accounts themselves.
"""

import struct
from typing import Final

from attrs import frozen
from solders.transaction import VersionedTransaction

from agentpay_server.chain.instructions import MEMO_PROGRAM, TOKEN_PROGRAM

_TRANSFER_CHECKED: Final = 12
_MINT_TO_CHECKED: Final = 14


@frozen
class Movement:
    """USDC from one token account to another.

    Attributes:
        source: token account that it left; None where it was minted.
        destination: token account that it went to.
        amount_micro: how much, in micro-USDC.
    """

    source: str | None
    destination: str
    amount_micro: int


def movements(transaction: VersionedTransaction) -> tuple[Movement, ...]:
    """Return the USDC that a transaction of this service moves, in the order of its instructions."""
    message = transaction.message
    found = []
    for instruction in message.instructions:
        kind = instruction.data[:1]
        if message.account_keys[instruction.program_id_index] != TOKEN_PROGRAM or len(instruction.data) != 10:
            continue
        accounts = [str(message.account_keys[index]) for index in instruction.accounts]
        amount_micro: int = struct.unpack_from("<Q", instruction.data, 1)[0]
        if kind == bytes([_TRANSFER_CHECKED]):
            found.append(Movement(accounts[0], accounts[2], amount_micro))
        elif kind == bytes([_MINT_TO_CHECKED]):
            found.append(Movement(None, accounts[1], amount_micro))
    return tuple(found)


def memo(transaction: VersionedTransaction) -> str | None:
    """Return the text of a transaction's memo; None where it has none."""
    message = transaction.message
    return next(
        (
            instruction.data.decode("utf-8", "replace")
            for instruction in message.instructions
            if message.account_keys[instruction.program_id_index] == MEMO_PROGRAM
        ),
        None,
    )
