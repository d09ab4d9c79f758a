"""The names of the event types (interface EV1); the events themselves are in `events.py`."""

from enum import StrEnum


class EventType(StrEnum):
    """Names of the event types (interface EV1)."""

    TRANSFER_INITIATED = "transfer.initiated"
    TRANSFER_SETTLED = "transfer.settled"
    TRANSFER_REJECTED = "transfer.rejected"
    SESSION_OPENED = "session.opened"
    SESSION_CAP_WARNING = "session.cap_warning"
    SESSION_CAP_REACHED = "session.cap_reached"
    SESSION_SETTLED = "session.settled"
    BALANCE_LOW_THRESHOLD = "balance.low_threshold"
    ESCALATION_REQUIRED = "escalation.required"
