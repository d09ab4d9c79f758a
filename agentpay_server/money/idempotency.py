"""Idempotency keys: how to treat a request, and how long a key is held."""

from enum import Enum
from typing import Final

from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay_server.clock import DAY_US
from agentpay_server.errors import Problem

KEY_LIFETIME_US: Final = DAY_US
"""How long a key is held after its request became final."""


class Verdict(Enum):
    """How to treat a request, given the row that holds its idempotency key."""

    NEW = "new"
    """The key is free: process the request."""

    CONFLICT = "conflict"
    """The key is held by a request with other parameters."""

    REPLAY = "replay"
    """Return the stored result; move nothing."""

    RESUME = "resume"
    """The stored request is still in progress: finish it, do not start another."""

    RETRY = "retry"
    """The stored request failed for a reason other than policy: start a new one."""


@frozen(kw_only=True)
class KeyHolder:
    """The row that holds an idempotency key.

    Attributes:
        if_equal: how to treat a request with equal parameters.
        key_expires_us: when the key is released; None until the row is final.
    """

    terms: object
    if_equal: Verdict
    key_expires_us: int | None


def verdict(
    holder: KeyHolder | None, terms: object, now_us: int, *, is_held_elsewhere: bool = False
) -> Verdict:
    """Compare a request with the row that holds its key (interface I1 to I9).

    Args:
        holder: the row that holds the key under the source account, if any.
        terms: the requested parameters.
        now_us: the current time.
        is_held_elsewhere: whether the caller uses an operator key, and the idempotency key is in force under
            another of the operator's accounts. A row of the source account takes precedence.
    """
    if holder is None or (holder.key_expires_us is not None and holder.key_expires_us <= now_us):
        return Verdict.CONFLICT if is_held_elsewhere else Verdict.NEW
    return holder.if_equal if holder.terms == terms else Verdict.CONFLICT


def conflict() -> Problem:
    """Return the error for a key that was used with other parameters."""
    return Problem(
        ErrorCode.IDEMPOTENCY_CONFLICT,
        "This idempotency_key was used with other parameters. Retry with the same ones, or use a new key.",
    )
