"""A pool of virtual machines: creating one takes longer than the rest of a server's start.

A machine that a chain no longer needs is emptied and kept for the next chain of the process. Keys,
blockhashes and the status of transactions belong to the `EmbeddedChain`, not to the machine, so a chain on a
used machine behaves exactly like one on a new machine.
"""

from collections import deque
from typing import Final

from solders.litesvm import LiteSVM

from agentpay_server.chain.embedded.virtual_machine import accounts_of, bring_back, new_machine

_SPARE_MACHINES: Final = 4  # Enough for a test with several servers; each holds about 1 MB.

# Used by chains of several threads: the two ends of a deque are thread-safe.
_spare: deque[LiteSVM] = deque(maxlen=_SPARE_MACHINES)


def take() -> LiteSVM:
    """Return a machine with Solana's programs, and no other accounts."""
    try:
        return _spare.pop()
    except IndexError:
        machine = new_machine()
        bring_back(machine, {})
        return machine


def give_back(machine: LiteSVM) -> None:
    """Empty a machine that its chain no longer needs, for the next chain."""
    bring_back(machine, {})
    if not accounts_of(machine):
        _spare.append(machine)
