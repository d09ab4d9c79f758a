"""Which endpoints hear of what, and the life of a delivery: pure rules (interface W3, W6 to W8, W11, EV4).

A delivery is one event to one endpoint, tried until it is received or given up:

    pending ── 2xx ─────────────────────────► delivered
    pending ── anything else ───────────────► retrying ── 2xx ────────────────► delivered
                                              retrying ── the last try fails ─► undelivered

The first attempt is due at once, the others 30 s, 5 min, 30 min and 2 h after the failure before. Every
attempt sends the same bytes. `delivered` and `undelivered` are final; a replay is a new delivery of the same
event.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from attrs import frozen

from agentpay.contract.deliveries import ATTEMPT_TIMEOUT_SECONDS, RETRY_DELAYS_SECONDS
from agentpay.contract.event_types import EventType
from agentpay_server.clock import SECOND_US


@frozen(kw_only=True)
class Subscription:
    """What a webhook asked for.

    Attributes:
        webhook_id: the webhook.
        events: names of the event types that it receives.
        account_ids: the accounts that it hears of; empty is all of the operator.
        low_balance_micro: micro-USDC below which a balance is low; None is never.
    """

    webhook_id: str
    events: Collection[str]
    account_ids: Collection[str]
    low_balance_micro: int | None

    def hears(self, event_type: str, account_id: str) -> bool:
        """Tell whether it receives events of a type about an account."""
        return event_type in self.events and (not self.account_ids or account_id in self.account_ids)

    def hears_of_drop(self, account_id: str, *, before_micro: int, after_micro: int) -> bool:
        """Tell whether a change of balance goes from at or above the threshold to below it.

        Crossing is what fires: a balance that stays below does not fire again, and one that is back at or
        above is armed again, without anything to remember.
        """
        threshold = self.low_balance_micro
        return (
            threshold is not None
            and after_micro < threshold <= before_micro
            and self.hears(EventType.BALANCE_LOW_THRESHOLD, account_id)
        )


RETRY_DELAYS_US: Final = tuple(seconds * SECOND_US for seconds in RETRY_DELAYS_SECONDS)
"""How long after each failure the next attempt is due; after one more failure there is none."""

TIMEOUT_SECONDS: Final = ATTEMPT_TIMEOUT_SECONDS
"""How long a receiver may take to answer."""

LEASE_US: Final = 60 * SECOND_US
"""How long, in real time, an attempt that was begun keeps others from beginning it again."""


class DeliveryStatus(StrEnum):
    """How far a delivery has come."""

    PENDING = "pending"
    RETRYING = "retrying"
    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"


@frozen(kw_only=True)
class NextStep:
    """What follows an attempt: the new status, and when the next attempt is due, if there is one."""

    status: DeliveryStatus
    due_us: int | None = None


def is_received(status_code: int | None) -> bool:
    """Tell whether an answer means that the event was received: a 2xx alone does; None is no answer."""
    return status_code is not None and 200 <= status_code <= 299


def after_attempt(attempt: int, status_code: int | None, ended_us: int) -> NextStep:
    """Return what follows an attempt.

    Args:
        attempt: its number, from 1.
        status_code: the answer, None if there was none.
        ended_us: when it ended.
    """
    if is_received(status_code):
        return NextStep(status=DeliveryStatus.DELIVERED)
    if attempt > len(RETRY_DELAYS_US):
        return NextStep(status=DeliveryStatus.UNDELIVERED)
    return NextStep(status=DeliveryStatus.RETRYING, due_us=ended_us + RETRY_DELAYS_US[attempt - 1])
