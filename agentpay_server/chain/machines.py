"""Virtual machines, ready-made: making one takes longer than all else that a server needs to start.

A machine that a chain has done with is emptied and kept for the next chain of the process. What makes a chain
one's own is not in the machine: keys, blockhashes and what is known of transactions belong to the
`EmbeddedChain`, so that one on a used machine behaves, to the last byte, as one on a new machine does.
"""

from collections import deque
from typing import Final

from solders.account import Account
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey

from agentpay_server.chain.instructions import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM

_HISTORY_TRANSACTIONS: Final = 4_096
_SPARE_MACHINES: Final = 4  # A test that runs several servers at once finds them all; each holds about 1 MB.
_OWNERS: Final = (SYSTEM_PROGRAM, TOKEN_PROGRAM, TOKEN_2022_PROGRAM)
"""The programs that own whatever the transactions of this service make."""

_NOTHING: Final = Account(0, b"", SYSTEM_PROGRAM)

# Chains of several threads take and give: a deque's two ends are safe without a lock.
_spare: deque[LiteSVM] = deque(maxlen=_SPARE_MACHINES)


def take() -> LiteSVM:
    """Return a machine with the programs of Solana on it, and no account besides."""
    try:
        return _spare.pop()
    except IndexError:
        machine = LiteSVM().with_blockhash_check(check=False)
        _empty(machine)
        return machine


def give_back(machine: LiteSVM) -> None:
    """Empty a machine that its chain has done with, for the next one who takes one."""
    if _empty(machine):
        _spare.append(machine)


def _empty(machine: LiteSVM) -> bool:
    """Remove every account and forget every transaction; whether that has succeeded."""
    for address in _accounts(machine):
        machine.set_account(address, _NOTHING)
    machine.with_transaction_history(0)
    machine.with_transaction_history(_HISTORY_TRANSACTIONS)
    return not _accounts(machine)


def _accounts(machine: LiteSVM) -> list[Pubkey]:
    return [address for owner in _OWNERS for address, _ in machine.get_program_accounts(owner)]
