"""Failpoints: named places in money operations where a test can kill the process.

All operations pass the same steps, so that a test can enumerate the points. An unarmed point costs one
comparison. The process dies by SIGKILL: nothing is flushed or released.

    arm("transfer.sent")      dies when a transfer was sent to the chain
    arm("transfer.sent@3")    dies at the third

Only the sandbox of a test chain and tests call `arm`. No variable and no option arms a point, so that nobody
can tell a server with real money to die.
"""

import os
import signal
from enum import StrEnum
from typing import Final

from agentpay_server.platform.capturing import Restore, captured


class Operation(StrEnum):
    TRANSFER = "transfer"
    PAYMENT = "payment"
    """Behind HTTP 402; its seller broadcasts it."""

    APPROVE = "approve"
    """An operator's decision to approve; what follows from it is a `transfer`."""

    ACCOUNT = "account"
    FUND = "fund"
    DEPOSIT = "deposit"
    TOKEN_ACCOUNT = "token_account"  # noqa: S105 - no password
    POLICY_RECORD = "policy_record"
    SESSION_OPEN = "session_open"
    SESSION_CHARGE = "session_charge"
    SESSION_CLOSE = "session_close"
    CHANNEL_OPEN = "channel_open"
    """A session over HTTP 402; its seller broadcasts the opening."""

    VOUCHER = "voucher"
    """A payment within such a session."""

    CHANNEL_CLOSE = "channel_close"
    """A forced close, one of its two transactions."""


class Step(StrEnum):
    BEGUN = "begun"
    """Requested; nothing is stored or signed."""

    CLAIMED = "claimed"
    """The closing session accepts no more charges; nothing is signed."""

    SIGNED = "signed"
    """Signed, and stored if this operation stores it; not sent."""

    SENT = "sent"
    """Sent; its status is not queried yet."""

    LANDED = "landed"
    """Final on chain; not posted."""

    EXPIRED = "expired"
    """Proved never to land; no replacement is signed."""

    POSTED = "posted"
    """Committed; not yet reported to callers, webhooks or logs."""


class ChainPoint(StrEnum):
    EXECUTED = "chain.executed"
    """The machine has executed; the page is not written."""

    WRITTEN = "chain.written"
    """The page is written; not yet reported to callers."""


_SEND_NOTHING: Final = frozenset(
    {Operation.APPROVE, Operation.DEPOSIT, Operation.SESSION_CHARGE, Operation.VOUCHER}
)


def points_of(operation: Operation) -> tuple[str, ...]:
    """One that sends nothing has only `begun` and `posted`."""
    if operation in _SEND_NOTHING:
        steps = [Step.BEGUN, Step.POSTED]
    else:
        claims = operation in (Operation.SESSION_CLOSE, Operation.CHANNEL_CLOSE)
        steps = [step for step in Step if step is not Step.CLAIMED or claims]
    if operation in (Operation.PAYMENT, Operation.CHANNEL_OPEN):
        # The seller sends it.
        steps.remove(Step.SENT)
    if operation is Operation.VOUCHER:
        steps.append(Step.SIGNED)
    return tuple(f"{operation}.{step}" for step in steps)


POINTS: Final = frozenset(
    {point for operation in Operation for point in points_of(operation)}
    | {str(point) for point in ChainPoint}
)


class _Armed:
    """The armed point, and how often it may be passed before the process dies."""

    point: str | None = None
    passes_left: int = 0


def failpoint(operation: str, step: Step) -> None:
    if _Armed.point is not None:
        _pass(f"{operation}.{step}")


def chain_failpoint(point: ChainPoint) -> None:
    if _Armed.point is not None:
        _pass(point)


def arm(point: str) -> None:
    """Arm `name` or `name@count`."""
    name, _, count = point.partition("@")
    if name not in POINTS:
        raise ValueError(f"unknown failpoint {name!r}; available: {', '.join(sorted(POINTS))}")
    if count and not (count.isascii() and count.isdigit() and int(count)):
        raise ValueError(f"{count!r} is not a count; write {name}@1 or more")
    _Armed.point, _Armed.passes_left = name, int(count or 1) - 1


def armed() -> str | None:
    return _Armed.point


def disarm() -> None:
    _Armed.point = None


def capture() -> Restore:
    return captured(_Armed, "point", "passes_left")


def _pass(name: str) -> None:
    if name != _Armed.point:
        return
    if _Armed.passes_left:
        _Armed.passes_left -= 1
        return
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
