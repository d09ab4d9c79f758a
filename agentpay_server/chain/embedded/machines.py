"""Virtual machines, ready-made: making one takes longer than all else that a server needs to start.

A machine that a chain has done with is emptied and kept for the next chain of the process. What makes a chain
one's own is not in the machine: keys, blockhashes and what is known of transactions belong to the
`EmbeddedChain`, so that one on a used machine behaves, to the last byte, as one on a new machine does.
"""

from collections import deque
from typing import Final

from solders.litesvm import LiteSVM

from agentpay_server.chain.embedded.virtual_machine import accounts_of, bring_back, new_machine

_SPARE_MACHINES: Final = 4  # A test that runs several servers at once finds them all; each holds about 1 MB.

# Chains of several threads take and give: a deque's two ends are safe without a lock.
_spare: deque[LiteSVM] = deque(maxlen=_SPARE_MACHINES)


def take() -> LiteSVM:
    """Return a machine with the programs of Solana on it, and no account besides."""
    try:
        return _spare.pop()
    except IndexError:
        machine = new_machine()
        bring_back(machine, {})
        return machine


def give_back(machine: LiteSVM) -> None:
    """Empty a machine that its chain has done with, for the next one who takes one."""
    bring_back(machine, {})
    if not accounts_of(machine):
        _spare.append(machine)
