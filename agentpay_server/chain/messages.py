"""What a message of this service says: the transfers that it requests, and its memo. Pure functions."""

import struct
from typing import Final

from attrs import frozen
from solders.transaction import VersionedTransaction

from agentpay_server.chain.instructions import MEMO_PROGRAM, TOKEN_PROGRAM

_TRANSFER_CHECKED: Final = 12
_MINT_TO_CHECKED: Final = 14


@frozen
class Movement:
    """USDC from one token account to another. `source` is None for minted USDC."""

    source: str | None
    destination: str
    amount_micro: int


def movements(transaction: VersionedTransaction) -> tuple[Movement, ...]:
    """Return the movements of USDC in a transaction of this service, in order."""
    message = transaction.message
    keys = message.account_keys
    found = []
    for instruction in message.instructions:
        kind = instruction.data[:1]
        if max(instruction.program_id_index, *instruction.accounts, 0) >= len(keys):
            continue  # In a lookup table, which this service does not use.
        if keys[instruction.program_id_index] != TOKEN_PROGRAM or len(instruction.data) != 10:
            continue
        accounts = [str(keys[index]) for index in instruction.accounts]
        amount_micro: int = struct.unpack_from("<Q", instruction.data, 1)[0]
        if kind == bytes([_TRANSFER_CHECKED]):
            found.append(Movement(accounts[0], accounts[2], amount_micro))
        elif kind == bytes([_MINT_TO_CHECKED]):
            found.append(Movement(None, accounts[1], amount_micro))
    return tuple(found)


def debited_account(transaction: VersionedTransaction) -> str | None:
    """Return the first token account that a transaction of this service debits; None without one."""
    return next((each.source for each in movements(transaction) if each.source is not None), None)


def memo(transaction: VersionedTransaction) -> str | None:
    """Return the text of a transaction's memo; None if it has none."""
    message = transaction.message
    return next(
        (
            instruction.data.decode("utf-8", "replace")
            for instruction in message.instructions
            if message.account_keys[instruction.program_id_index] == MEMO_PROGRAM
        ),
        None,
    )
