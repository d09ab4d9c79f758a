"""The life of a delivery: one event to one endpoint, tried until it is received or given up.

    pending ── 2xx ─────────────────────────► delivered
    pending ── anything else ───────────────► retrying ── 2xx ────────────────► delivered
                                              retrying ── the last try fails ─► undelivered

The first attempt is due at once, the others 30 s, 5 min, 30 min and 2 h after the failure before (interface
W6 to W8, W11). Every attempt sends the same bytes. `delivered` and `undelivered` are final; a replay is a
new delivery of the same event.
"""

from enum import StrEnum
from typing import Final

from attrs import frozen

from agentpay_server.clock import SECOND_US

RETRY_DELAYS_US: Final = (30 * SECOND_US, 300 * SECOND_US, 1_800 * SECOND_US, 7_200 * SECOND_US)
"""How long after each failure the next attempt is due; after one more failure there is none."""

TIMEOUT_SECONDS: Final = 10.0
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
