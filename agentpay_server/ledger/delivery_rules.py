"""Subscriptions and the states of a delivery (interface W3, W6 to W8, W11, EV4). Pure functions.

A delivery sends one event to one endpoint, and is retried until it is received or all attempts have failed:

    pending ── 2xx ─────────────────────────► delivered
    pending ── anything else ───────────────► retrying ── 2xx ────────────────► delivered
                                              retrying ── last attempt fails ─► undelivered

The first attempt is due at once; the others 30 s, 5 min, 30 min and 2 h after the previous failure. All
attempts send the same bytes. `delivered` and `undelivered` are final; a replay is a new delivery of the same
event.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from attrs import frozen

from agentpay.contract.deliveries import ATTEMPT_TIMEOUT_SECONDS, RETRY_DELAYS_SECONDS
from agentpay_server.platform.clock import SECOND_US


@frozen(kw_only=True)
class Subscription:
    """The subscription of a webhook.

    Without `account_ids`, all accounts of the operator. `low_balance_micro` is in micro-USDC; None means
    never.
    """

    webhook_id: str
    events: Collection[str]
    account_ids: Collection[str]
    low_balance_micro: int | None

    def wants(self, event_type: str, account_id: str) -> bool:
        return event_type in self.events and (not self.account_ids or account_id in self.account_ids)

    def wants_drop(self, account_id: str, *, before_micro: int, after_micro: int) -> bool:
        """Only the crossing counts: while the balance stays below, no further event is sent."""
        threshold = self.low_balance_micro
        return (
            threshold is not None
            and after_micro < threshold <= before_micro
            and self.wants("balance.low_threshold", account_id)
        )


RETRY_DELAYS_US: Final = tuple(seconds * SECOND_US for seconds in RETRY_DELAYS_SECONDS)
"""How long after each failure the next attempt is due. No attempt follows the last one."""

TIMEOUT_SECONDS: Final = ATTEMPT_TIMEOUT_SECONDS

LEASE_US: Final = 60 * SECOND_US
"""How long, in real time, an attempt in progress prevents other servers from starting the same one."""


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    RETRYING = "retrying"
    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"


@frozen(kw_only=True)
class NextStep:
    """When the next attempt is due, if any."""

    status: DeliveryStatus
    due_us: int | None = None


def is_received(status_code: int | None) -> bool:
    """Only 2xx means that the event was received."""
    return status_code is not None and 200 <= status_code <= 299


def after_attempt(attempt: int, status_code: int | None, ended_us: int) -> NextStep:
    """`attempt` counts from 1. Without a response, `status_code` is None."""
    if is_received(status_code):
        return NextStep(status=DeliveryStatus.DELIVERED)
    if attempt > len(RETRY_DELAYS_US):
        return NextStep(status=DeliveryStatus.UNDELIVERED)
    return NextStep(status=DeliveryStatus.RETRYING, due_us=ended_us + RETRY_DELAYS_US[attempt - 1])
