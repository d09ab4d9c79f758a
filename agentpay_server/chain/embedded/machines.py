"""A pool of virtual machines, because creating one takes longer than the rest of a server's start.

A released machine is emptied and reused by the next chain of the process. Keys, blockhashes and transaction
statuses belong to the `EmbeddedChain`, so a reused machine behaves exactly like a new one.
"""

from collections import deque
from contextlib import suppress
from typing import Final

from solders.litesvm import LiteSVM

from agentpay_server.chain.embedded.virtual_machine import accounts_of, new_machine, restore_accounts

_SPARE_MACHINES: Final = 4  # Enough for a test with several servers; each holds about 1 MB.

# Shared by chains of several threads: appending to and popping from a deque are thread-safe.
_spare: deque[LiteSVM] = deque(maxlen=_SPARE_MACHINES)


def acquire(channel_program: bytes | None = None) -> LiteSVM:
    """Return a machine with programs and no other accounts; see `new_machine`.

    One with another `channel_program` must not be released.
    """
    if channel_program is None:
        with suppress(IndexError):
            return _spare.pop()
    machine = new_machine(channel_program)
    restore_accounts(machine, {})
    return machine


def release(machine: LiteSVM) -> None:
    """Empty a machine and keep it for the next chain."""
    restore_accounts(machine, {})
    if not accounts_of(machine):
        _spare.append(machine)
