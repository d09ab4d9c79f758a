"""The rules for transfers and their idempotency keys. Pure functions.

    (none) ── policy refuses ─────────────────────────────► rejected
    (none) ── amount at the escalation threshold ─────────► pending_approval
    (none) ── policy allows ──────────────────────────────► submitted
    pending_approval ── approved ─────────────────────────► submitted
    pending_approval ── refused, rejected or expired ─────► rejected
    pending_approval ── approved, for a payment ──────────► approved
    approved ── requested again by the payer ─────────────► submitted
    approved ── refused or expired ───────────────────────► rejected
    submitted ── final on chain ──────────────────────────► settled
    submitted ── can no longer land ──────────────────────► failed
    failed ── landed after all ───────────────────────────► settled

`settled`, `rejected` and `failed` are final, except that a transaction may land although the chain reported
it as impossible. Money moves only in `submitted`. A transfer holds its key until 24 hours after it became
final. One that is not final holds its key, and so does a payment that settled (interface I1 to I9).
"""

from typing import Final

from attrs import field, frozen

from agentpay.contract.errors import ErrorCode
from agentpay.contract.transfers import TransferStatus
from agentpay_server.ledger.idempotency import Verdict

TRANSITIONS: Final = frozenset(
    {
        (None, TransferStatus.REJECTED),
        (None, TransferStatus.PENDING_APPROVAL),
        (None, TransferStatus.SUBMITTED),
        (TransferStatus.PENDING_APPROVAL, TransferStatus.SUBMITTED),
        (TransferStatus.PENDING_APPROVAL, TransferStatus.REJECTED),
        (TransferStatus.PENDING_APPROVAL, TransferStatus.APPROVED),
        (TransferStatus.APPROVED, TransferStatus.SUBMITTED),
        (TransferStatus.APPROVED, TransferStatus.REJECTED),
        (TransferStatus.SUBMITTED, TransferStatus.SETTLED),
        (TransferStatus.SUBMITTED, TransferStatus.FAILED),
        (TransferStatus.FAILED, TransferStatus.SETTLED),
    }
)
"""All valid changes of status."""


def check_transition(before: str | None, after: str) -> None:
    """Check a change of status; `before` is None for a new transfer.

    Raises:
        ValueError: `before` cannot become `after`. This is a bug in the server, never a caller's error.
    """
    if (before, after) not in TRANSITIONS:
        raise ValueError(f"a transfer does not go from {before} to {after}")


def is_approvable(status: str, approval_expires_us: int | None, now_us: int) -> bool:
    """Return whether an operator may still decide about a transfer. At its expiry time it is too late."""
    return (
        status == TransferStatus.PENDING_APPROVAL
        and approval_expires_us is not None
        and now_us < approval_expires_us
    )


@frozen
class Split:
    """What another recipient than the primary one gets of a payment.

    Attributes:
        recipient: on-chain address of the owner that is paid.
    """

    recipient: str
    amount_micro: int


@frozen(kw_only=True)
class TransferTerms:
    """The parameters that make two requests under one key the same request (interface I6).

    For a payment behind HTTP 402, `payment_digest` covers all terms of its challenge, its splits too.
    """

    account_id: str
    to: str
    amount_micro: int
    memo: str | None
    category: str | None
    payment_digest: str | None = None
    splits: tuple[Split, ...] = field(default=(), eq=False)


def verdict_if_equal(status: str, error: str | None) -> Verdict:
    """Return how to treat a request that equals the transfer that holds its key."""
    if status == TransferStatus.SUBMITTED:
        return Verdict.RESUME
    if status == TransferStatus.FAILED or error == ErrorCode.INSUFFICIENT_BALANCE:
        return Verdict.RETRY
    return Verdict.REPLAY
