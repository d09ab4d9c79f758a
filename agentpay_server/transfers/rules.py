"""The life of a transfer and of its idempotency key, as pure rules.

    (none) ── policy refuses ─────────────────────────────► rejected
    (none) ── amount at the escalation threshold ─────────► pending_approval
    (none) ── policy allows ──────────────────────────────► submitted
    pending_approval ── approved ─────────────────────────► submitted
    pending_approval ── refused, rejected or expired ─────► rejected
    pending_approval ── approved, of a payment ───────────► approved
    approved ── asked for again ──────────────────────────► submitted
    approved ── refused or expired ───────────────────────► rejected
    submitted ── final on chain ──────────────────────────► settled
    submitted ── provably did not and cannot land ────────► failed
    failed ── landed, against all that was told ──────────► settled

`settled`, `rejected` and `failed` are final, but for a proof that turns out to have been none. Money moves in
`submitted` alone. A key is held by one transfer of an account at a time, until 24 hours after that transfer
became final; an unresolved one holds it for as long as it takes (interface I1 to I9, I9).
"""

from typing import Final

from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay.contract.transfers import TransferStatus
from agentpay_server.money.idempotency import Verdict

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
"""Every change of status that there is."""


def check_transition(before: str | None, after: str) -> None:
    """Refuse a change of status that there is not: a fault of the server, never of a caller.

    Raises:
        ValueError: `after` does not follow `before`; None stands for a transfer that is not stored yet.
    """
    if (before, after) not in TRANSITIONS:
        raise ValueError(f"a transfer does not go from {before} to {after}")


def is_approvable(status: str, approval_expires_us: int | None, now_us: int) -> bool:
    """Tell whether an operator may decide about a transfer: at the moment at which it expires, no more."""
    return (
        status == TransferStatus.PENDING_APPROVAL
        and approval_expires_us is not None
        and now_us < approval_expires_us
    )


@frozen(kw_only=True)
class Terms:
    """The parameters that make two requests under one key the same request (interface I6).

    Of a payment behind HTTP 402, `payment_digest` alone stands for all that its challenge asks for.
    """

    account_id: str
    to: str
    amount_micro: int
    memo: str | None
    category: str | None
    payment_digest: str | None = None


@frozen(kw_only=True)
class KeyHolder:
    """The transfer that holds an idempotency key.

    Attributes:
        terms: what it was asked for.
        status: how far it has come.
        error: code of its refusal or failure.
        key_expires_us: when the key is free again; None while the transfer is not final.
    """

    terms: Terms
    status: str
    error: str | None
    key_expires_us: int | None


def verdict(
    holder: KeyHolder | None, terms: Terms, now_us: int, *, is_held_elsewhere: bool = False
) -> Verdict:
    """Judge a request by the transfer that holds its key (interface I1 to I4, I1 to I9, I9).

    Args:
        holder: the transfer that holds the key under the source account, if there is one.
        terms: what is asked.
        now_us: when.
        is_held_elsewhere: whether an operator key asks, and the key is in force under another of its
            accounts: that is another `from`. What the source account itself holds comes first.
    """
    if holder is None or (holder.key_expires_us is not None and holder.key_expires_us <= now_us):
        return Verdict.CONFLICT if is_held_elsewhere else Verdict.NEW
    if holder.terms != terms:
        return Verdict.CONFLICT
    if holder.status == TransferStatus.SUBMITTED:
        return Verdict.RESUME
    if holder.status == TransferStatus.FAILED or holder.error == ErrorCode.INSUFFICIENT_BALANCE:
        return Verdict.RETRY
    return Verdict.REPLAY
