"""Idempotency keys: how to treat a request, how long a key is held, and the loop around both."""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final, Protocol, TypeVar, cast

import attrs
from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay_server.ledger.idempotency_keys import Held
from agentpay_server.platform.clock import DAY_US, Clock
from agentpay_server.platform.errors import Problem

R = TypeVar("R")
T = TypeVar("T")

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
        is_held_elsewhere: whether the caller uses an operator key, and an operator key has claimed the
            idempotency key for another account. A row of the source account takes precedence.
    """
    if holder is None or not is_in_force(holder.key_expires_us, now_us):
        return Verdict.CONFLICT if is_held_elsewhere else Verdict.NEW
    return holder.if_equal if holder.terms == terms else Verdict.CONFLICT


def is_in_force(key_expires_us: int | None, now_us: int) -> bool:
    """Return whether a row still holds its key; None as the expiry means that the row is not final."""
    return key_expires_us is None or now_us < key_expires_us


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


class View(Protocol):
    """The stored data for a request: the rows that hold its key, and what its feature reads with them."""

    @property
    def held(self) -> Held[Any]:
        """The rows that hold its key."""
        ...

    @property
    def terms(self) -> object:
        """The requested parameters."""
        ...


V = TypeVar("V", bound=View)


async def perform(
    clock: Clock,
    *,
    read: Callable[[int], Awaitable[V]],
    key_holder: Callable[[R], KeyHolder],
    act: Callable[[V, Verdict], Awaitable[T | None]],
) -> T:
    """Process a request under its idempotency key, unless an earlier request has done so.

    Args:
        clock: the clock.
        read: reads the stored data for the request, given the current time.
        key_holder: describes the record that holds a key.
        act: processes the request as the verdict says, and returns its result; None if stored data has
            changed since it was read, and the request must start over. `Verdict.CONFLICT` never reaches it.
            With `RESUME` and `REPLAY`, a record holds the key.

    Raises:
        Problem: `idempotency_conflict`, or what the callables raise.
    """
    while True:
        now_us = clock.now_us()
        view = await read(now_us)
        record: R | None = view.held.holder
        holder = None if record is None else key_holder(record)
        judged = verdict(holder, view.terms, now_us, is_held_elsewhere=view.held.is_held_elsewhere)
        if judged is Verdict.CONFLICT:
            is_own = holder is not None and is_in_force(holder.key_expires_us, now_us)
            raise conflict(holder.terms if holder is not None and is_own else None, view.terms)
        result = await act(view, judged)
        if result is not None:
            return result
