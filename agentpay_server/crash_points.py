"""Fault points: the named places in a money operation at which a test has the process die.

Every operation passes the same steps, so that a test can enumerate them all. A point costs one comparison
while none is armed. Death is SIGKILL: nothing is flushed, released or said goodbye to.

    AGENTPAY_SERVER_CRASH_AT=transfer.sent      dies when a transfer was handed to the chain
    AGENTPAY_SERVER_CRASH_AT=transfer.sent@3    dies at the third
"""

import os
import signal
from collections.abc import Callable
from enum import StrEnum
from typing import Final

CRASH_VARIABLE: Final = "AGENTPAY_SERVER_CRASH_AT"


class Operation(StrEnum):
    """What is under way."""

    TRANSFER = "transfer"
    PAYMENT = "payment"
    """A payment behind HTTP 402, which its seller broadcasts."""

    APPROVE = "approve"
    """A transfer that an operator has approved; what it was before is `transfer`."""

    ACCOUNT = "account"
    FUND = "fund"
    DEPOSIT = "deposit"
    TOKEN_ACCOUNT = "token_account"  # noqa: S105 - no password
    POLICY_RECORD = "policy_record"
    SESSION_OPEN = "session_open"
    SESSION_CHARGE = "session_charge"
    SESSION_CLOSE = "session_close"


class Step(StrEnum):
    """How far it has come."""

    BEGUN = "begun"
    """Asked for; nothing is stored, nothing signed."""

    CLAIMED = "claimed"
    """Of a closing: no charge is accepted any more; nothing is signed."""

    SIGNED = "signed"
    """Signed, and stored if it is stored at all; not sent."""

    SENT = "sent"
    """Handed over; its outcome was not asked for."""

    LANDED = "landed"
    """Final on chain; not booked."""

    EXPIRED = "expired"
    """Proved never to land; not signed again."""

    BOOKED = "booked"
    """Committed; nobody was told."""


class ChainPoint(StrEnum):
    """Where the embedded chain can be cut off."""

    EXECUTED = "chain.executed"
    """The machine has executed; the page is not written."""

    WRITTEN = "chain.written"
    """The page is written; nobody was told."""


_SEND_NOTHING: Final = frozenset({Operation.DEPOSIT, Operation.SESSION_CHARGE})


def points_of(operation: Operation) -> tuple[str, ...]:
    """Return the points that an operation passes; one that sends nothing begins and is booked."""
    if operation in _SEND_NOTHING:
        steps = [Step.BEGUN, Step.BOOKED]
    else:
        steps = [step for step in Step if step is not Step.CLAIMED or operation is Operation.SESSION_CLOSE]
    if operation is Operation.PAYMENT:
        # Its seller sends it.
        steps.remove(Step.SENT)
    return tuple(f"{operation}.{step}" for step in steps)


POINTS: Final = frozenset(
    {point for operation in Operation for point in points_of(operation)}
    | {str(point) for point in ChainPoint}
)
"""The names of all points."""


class _Armed:
    """The point at which the process dies, and how often it may be passed before."""

    point: str | None = None
    passes_left: int = 0


def fault_point(operation: Operation, step: Step) -> None:
    """Mark that an operation has come to a step."""
    if _Armed.point is not None:
        _pass(f"{operation}.{step}")


def chain_fault_point(point: ChainPoint) -> None:
    """Mark that the embedded chain has come to a point."""
    if _Armed.point is not None:
        _pass(point)


def arm(point: str) -> None:
    """Let the process die at a point, `name` or `name@count`.

    Raises:
        ValueError: there is no such point, or the count is none.
    """
    name, _, count = point.partition("@")
    if name not in POINTS:
        raise ValueError(f"there is no fault point {name!r}; there are {', '.join(sorted(POINTS))}")
    if count and not (count.isascii() and count.isdigit() and int(count)):
        raise ValueError(f"{count!r} is no count; write {name}@1 or more")
    _Armed.point, _Armed.passes_left = name, int(count or 1) - 1


def armed() -> str | None:
    """Return the name of the point at which the process dies; None while none is armed."""
    return _Armed.point


def disarm() -> None:
    """Let the process live."""
    _Armed.point = None


def capture() -> Callable[[], None]:
    """Return what arms the point that is armed now, and no other."""
    point, passes_left = _Armed.point, _Armed.passes_left

    def restore() -> None:
        _Armed.point, _Armed.passes_left = point, passes_left

    return restore


def _pass(name: str) -> None:
    if name != _Armed.point:
        return
    if _Armed.passes_left:
        _Armed.passes_left -= 1
        return
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


if os.environ.get(CRASH_VARIABLE):
    arm(os.environ[CRASH_VARIABLE])
