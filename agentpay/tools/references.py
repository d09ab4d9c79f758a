"""References of purchases, and the idempotency keys that the tools derive from them. No I/O.

A reference has one key for each attempt that the policy has refused, and one more:

    order-117     mcp:order-117, then mcp:order-117/1, mcp:order-117/2, …

No reference contains a `/`, so two references never share a key. The tools use a key only after they have
read that the policy refused the newest transfer of the key before it. Such a refusal is final and moved
nothing, and the service repeats it for 24 hours to every request with that key. So at most one key of a
reference can pay, whatever other processes do with the reference meanwhile.
"""

from collections.abc import Iterable
from typing import Final

from attrs import frozen

from agentpay.contract.ext.payments import SessionStep
from agentpay.contract.transfers import Transfer

KEY_PREFIX: Final = "mcp:"
"""The prefix of an idempotency key before the reference."""

ATTEMPT_LAST: Final = 999
"""The last attempt: its key has 128 characters if the reference has 120. No other key follows it."""

_REFUSED: Final = frozenset({"policy_violation", "account_paused", "escalation_expired"})
"""Errors of rejected transfers after which the next key decides again.

Only errors that the service repeats for the key: after others, such as `insufficient_balance`, the same key
may still pay.
"""

REJECTED_BY_PERSON: Final = "escalation_rejected"
"""The error of a transfer that a person rejected. That is final for the reference."""


@frozen
class RecordedPurchase:
    """What is recorded under a reference.

    Attributes:
        transfer: the transfer that counts: one that moved or may move money, otherwise the newest; None if
            there is none.
        key: the idempotency key for the next request to pay.
        step: the voucher that the key paid with, or the opening of its session; None without one.
    """

    transfer: Transfer | None
    key: str
    step: SessionStep | None = None

    @property
    def alive(self) -> Transfer | None:
        """The transfer, if it moved or may move money."""
        return self.transfer if self.transfer is not None and is_alive(self.transfer) else None

    def since(self, earlier: "RecordedPurchase") -> Transfer | None:
        """Return the transfer, if it moved or may move money, or was not recorded earlier."""
        is_new = self.transfer is not None and (
            earlier.transfer is None or self.transfer.transfer_id != earlier.transfer.transfer_id
        )
        return self.transfer if is_new else self.alive


def key_of(ref: str, attempt: int = 0) -> str:
    """Return the idempotency key of a reference."""
    return f"{KEY_PREFIX}{ref}" + (f"/{attempt}" if attempt else "")


def ref_of(key: str | None) -> str | None:
    """Return the reference of a key, as it was given; None for another program's key."""
    if key is None or not key.startswith(KEY_PREFIX):
        return None
    return key.removeprefix(KEY_PREFIX).partition("/")[0]


def newest_that_counts(transfers: Iterable[Transfer]) -> Transfer | None:
    """Return the transfer of a key that counts: a settled one, one that may settle, or else the newest.

    Args:
        transfers: all transfers of the key, newest first.
    """
    found = list(transfers)
    settled = [each for each in found if str(each.status) == "settled"]
    alive = [each for each in found if is_alive(each)]
    return next(iter(settled or alive or found), None)


def is_alive(transfer: Transfer) -> bool:
    """Return whether a transfer moved or may move money."""
    return str(transfer.status) not in ("rejected", "failed")


def is_refused(transfer: Transfer) -> bool:
    """Return whether the policy refused a transfer, so that the next key may decide again."""
    return str(transfer.status) == "rejected" and transfer.error in _REFUSED


def is_rejected_by_person(transfer: Transfer) -> bool:
    """Return whether a person rejected a transfer."""
    return str(transfer.status) == "rejected" and transfer.error == REJECTED_BY_PERSON
