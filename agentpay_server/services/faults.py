"""The faults that the sandbox arms by name: those of the chain, and the points at which the process dies.

They live as long as the process: a server that starts again starts without any, save for a point that its
environment names.
"""

from typing import Final

from attrs import frozen

from agentpay.contract.errors import FieldFault
from agentpay_server import faults as points
from agentpay_server.chain.faulty import ChainFault, FaultyChain
from agentpay_server.domain.problems import Problem, invalid, shown

CRASH_AT: Final = "crash_at:"
_NAMES: Final = ", ".join(ChainFault)


@frozen(kw_only=True)
class ArmedFault:
    """A fault that will happen.

    Attributes:
        name: which one.
        times: how often it is still to happen; None until it is deleted.
        seq: its place among all that were armed: a later one has a greater number.
    """

    name: str
    times: int | None
    seq: int


class Faults:
    """Arms, lists and disarms faults.

    Args:
        chain: the chain that can fail.
        may_crash: whether the process is the server's own, and may die.
    """

    def __init__(self, chain: FaultyChain, *, may_crash: bool) -> None:
        self._chain = chain
        self._may_crash = may_crash
        self._seqs: dict[str, int] = {}
        self._last_seq = 0

    def check(self, name: str, times: int | None = None) -> None:
        """Raise when there is no fault of this name here, or it cannot happen so often.

        Raises:
            Problem: `invalid_request`.
        """
        if name in list(ChainFault):
            return
        if not name.startswith(CRASH_AT):
            raise _bad_name(f"{shown(name)!r} is no fault; there are {_NAMES} and {CRASH_AT}<point>")
        point = name.removeprefix(CRASH_AT)
        if point not in points.POINTS:
            known = ", ".join(sorted(points.POINTS))
            raise _bad_name(f"{shown(point)!r} is no point to crash at; there are {known}")
        if not self._may_crash:
            raise _bad_name(
                "would kill the process that this server shares with its caller; run the server as a process "
                "of its own, with agentpay-server serve"
            )
        if times not in (None, 1):
            raise invalid(FieldFault(field="times", message="must be 1 or left out: a process dies once"))

    def set(self, name: str, times: int | None) -> ArmedFault:
        """Arm a fault that `check` has let pass, anew if it is armed; of points to crash at there is one."""
        if name.startswith(CRASH_AT):
            points.arm(name.removeprefix(CRASH_AT))
            times = 1
        else:
            self._chain.arm(ChainFault(name), times)
        self._last_seq += 1
        self._seqs[name] = self._last_seq
        return ArmedFault(name=name, times=times, seq=self._last_seq)

    def delete(self, name: str) -> None:
        """Disarm a fault, if it is armed."""
        if not name.startswith(CRASH_AT):
            self._chain.disarm(ChainFault(name))
        elif name == self._crash():
            points.disarm()

    def clear(self) -> None:
        """Disarm every fault."""
        for fault in self.armed():
            self.delete(fault.name)

    def armed(self) -> list[ArmedFault]:
        """Return the faults that will happen, the one that was armed last first."""
        counts: dict[str, int | None] = {str(fault): self._chain.times(fault) for fault in ChainFault}
        crash = self._crash()
        if crash is not None:
            counts[crash] = 1
        found = [
            ArmedFault(name=name, times=times, seq=self._seqs.get(name, 0))
            for name, times in counts.items()
            if times != 0
        ]
        return sorted(found, key=lambda fault: fault.seq, reverse=True)

    def _crash(self) -> str | None:
        point = points.armed() if self._may_crash else None
        return None if point is None else f"{CRASH_AT}{point}"


def _bad_name(message: str) -> Problem:
    return invalid(FieldFault(field="name", message=message))
