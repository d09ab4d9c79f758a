"""Idempotency keys: how to treat a request, how long a key is held, and the loop around both."""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final, TypeVar, cast

import attrs
from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.requests import UNSET
from agentpay_server.database.tables import KeyClaimRecord, PurchaseKind
from agentpay_server.ledger.idempotency_keys import Held
from agentpay_server.platform.clock import DAY_US, Clock
from agentpay_server.platform.errors import Problem

T = TypeVar("T")

KEY_LIFETIME_US: Final = DAY_US
"""How long a key is held after the end of a transfer, or of another purchase that paid nothing."""


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
    """The purchase that holds an idempotency key.

    Attributes:
        if_equal: how to treat a request with equal parameters.
    """

    terms: object
    if_equal: Verdict


def verdict(holder: KeyHolder | None, terms: object) -> Verdict:
    """Compare a request with the purchase that holds its key, if any (interface I1 to I9)."""
    if holder is None:
        return Verdict.NEW
    return holder.if_equal if holder.terms == terms else Verdict.CONFLICT


def judge(held: Held, kind: PurchaseKind, holder: KeyHolder | None, terms: object) -> Verdict:
    """Return how to treat a request.

    Args:
        held: the claims of its key.
        kind: what it asks for.
        holder: the purchase `held.subject_of(kind)`, if there is one.
        terms: the requested parameters.

    Raises:
        Problem: `idempotency_conflict`.
    """
    claim = held.in_force
    if claim is not None and claim.kind is not kind:
        raise other_kind(claim)
    judged = verdict(holder, terms)
    if judged is Verdict.CONFLICT or (holder is None and claim is not None):
        raise conflict(None if holder is None else holder.terms, terms)
    return judged


def other_kind(claim: KeyClaimRecord) -> Problem:
    """Return the error for a key that was used for another kind of purchase, which it names."""
    name = claim.subject_id
    return Problem(
        ErrorCode.IDEMPOTENCY_CONFLICT,
        f"This idempotency_key was used for {_BOUGHT[claim.kind]}, {name}.",
        transfer_id=name if name.startswith(identifiers.TRANSFER) else None,
        session_id=name if name.startswith(identifiers.SESSION) else UNSET,
        charge_id=name if name.startswith(identifiers.CHARGE) else None,
    )


_BOUGHT: Final = {
    PurchaseKind.TRANSFER: "a transfer",
    PurchaseKind.PAYMENT: "a payment behind HTTP 402",
    PurchaseKind.CHANNEL: "a payment within a session over HTTP 402",
    PurchaseKind.SESSION: "a session",
}


_PARAMETERS: Final = {
    "account_id": "from",
    "to": "to",
    "amount_micro": "amount",
    "cap_micro": "cap_usdc",
    "memo": "memo",
    "category": "category",
}
"""The parameters of requests, by their names in the terms."""


def conflict(first: object, now: object) -> Problem:
    """Return the error for a key that was used with other parameters, which it names.

    Args:
        first: the terms of the request that holds the key; None if they belong to another account.
        now: those of this request.
    """
    differing = ["from"] if first is None else differences(first, now)
    what = f"another {' and another '.join(differing)}" if differing else "other parameters"
    return Problem(
        ErrorCode.IDEMPOTENCY_CONFLICT,
        f"This idempotency_key was used with {what}.",
    )


def differences(first: object, now: object) -> list[str]:
    """Return the parameters in which the terms of two requests differ; empty if they are of two kinds."""
    if type(first) is not type(now):
        return []
    names = [field.name for field in attrs.fields(cast("Any", type(now)))]
    differing = [name for name in names if getattr(first, name) != getattr(now, name)]
    # What a caller cannot name, such as the digest of a challenge, makes it another kind of request.
    return [_PARAMETERS[name] for name in differing] if set(differing) <= set(_PARAMETERS) else []


V = TypeVar("V")


async def perform(
    clock: Clock,
    *,
    read: Callable[[int], Awaitable[V]],
    act: Callable[[V], Awaitable[T | None]],
) -> T:
    """Process a request under its idempotency key, unless an earlier request has done so.

    Args:
        clock: the clock.
        read: reads the stored data for the request and judges it, given the current time.
        act: processes the request, and returns its result; None if stored data has changed since it was read,
            and the request must start over.

    Raises:
        Problem: what the callables raise.
    """
    while True:
        result = await act(await read(clock.now_us()))
        if result is not None:
            return result
