"""Events: the envelope and the nine payloads (contract, "Events"; D40).

Every type has a class, so that `match event: case TransferSettled(data=data)` is checked by the type checker.
A type that this version does not know is an `UnknownEvent` with its raw data, never the wrong class.
"""

from datetime import datetime
from typing import Any, Final

from attrs import frozen

from agentpay.contract.event_types import EventType
from agentpay.contract.usdc import UsdcNumber, UsdcString


@frozen(kw_only=True)
class Event:
    """What happened: the envelope that every event shares (contract, "Envelope").

    Attributes:
        id: identifier, `evt_…`; the same on every delivery attempt, so it is what to de-duplicate by.
        type: name of the event type.
        created_at: when it happened, UTC.
        data: what happened, by type.
    """

    id: str
    type: str
    created_at: datetime
    data: Any


@frozen(kw_only=True)
class TransferInitiatedData:
    """A transfer passed its policy and was sent; it is not yet final."""

    transfer_id: str
    account_id: str
    to: str
    amount_usdc: UsdcString
    tx_signature: str


@frozen(kw_only=True)
class TransferInitiated(Event):
    """`transfer.initiated`."""

    data: TransferInitiatedData


@frozen(kw_only=True)
class TransferSettledData:
    """A transfer is final on chain."""

    transfer_id: str
    account_id: str
    amount_usdc: UsdcString
    tx_signature: str
    settled_at: datetime


@frozen(kw_only=True)
class TransferSettled(Event):
    """`transfer.settled`."""

    data: TransferSettledData


@frozen(kw_only=True)
class TransferRejectedData:
    """A transfer was refused, or failed; `rejection_reason` is the error code."""

    account_id: str
    rejection_reason: str
    transfer_id: str | None = None
    to: str | None = None
    amount_usdc: UsdcString | None = None
    message: str | None = None


@frozen(kw_only=True)
class TransferRejected(Event):
    """`transfer.rejected`."""

    data: TransferRejectedData


@frozen(kw_only=True)
class SessionOpenedData:
    """An MPP session is open and its escrow funded."""

    session_id: str
    cap_usdc: UsdcString
    account_id: str | None = None
    to: str | None = None
    category: str | None = None
    tx_signature: str | None = None


@frozen(kw_only=True)
class SessionOpened(Event):
    """`session.opened`."""

    data: SessionOpenedData


@frozen(kw_only=True)
class SessionCapWarningData:
    """The running total of a session passed 80 % of its cap."""

    session_id: str
    running_total_usdc: UsdcString
    cap_usdc: UsdcString


@frozen(kw_only=True)
class SessionCapWarning(Event):
    """`session.cap_warning`."""

    data: SessionCapWarningData


@frozen(kw_only=True)
class SessionCapReachedData:
    """The cap of a session is consumed; no charge is accepted until it is closed."""

    session_id: str
    account_id: str | None = None
    running_total_usdc: UsdcString | None = None
    cap_usdc: UsdcString | None = None


@frozen(kw_only=True)
class SessionCapReached(Event):
    """`session.cap_reached`."""

    data: SessionCapReachedData


@frozen(kw_only=True)
class SessionSettledData:
    """A session is closed and settled on chain; `settled_usdc` is the authoritative amount."""

    session_id: str
    account_id: str
    cap_usdc: UsdcString
    settled_usdc: UsdcString
    returned_usdc: UsdcString
    tx_signature: str
    settled_at: datetime


@frozen(kw_only=True)
class SessionSettled(Event):
    """`session.settled`."""

    data: SessionSettledData


@frozen(kw_only=True)
class BalanceLowThresholdData:
    """The balance of an account dropped below the webhook's threshold."""

    account_id: str
    balance_usdc: UsdcString
    usdc_token_account: str


@frozen(kw_only=True)
class BalanceLowThreshold(Event):
    """`balance.low_threshold`."""

    data: BalanceLowThresholdData


@frozen(kw_only=True)
class EscalationRequiredData:
    """A transfer reached the escalation threshold and waits for an operator's approval."""

    transfer_id: str | None = None
    account_id: str | None = None
    to: str | None = None
    amount_usdc: UsdcString | None = None
    memo: str | None = None
    escalation_threshold: UsdcNumber | None = None


@frozen(kw_only=True)
class EscalationRequired(Event):
    """`escalation.required`."""

    data: EscalationRequiredData


@frozen(kw_only=True)
class UnknownEvent(Event):
    """An event of a type that this version does not know; `data` is the JSON object as received."""

    data: dict[str, Any]


EVENT_CLASSES: Final[dict[str, type[Event]]] = {
    EventType.TRANSFER_INITIATED: TransferInitiated,
    EventType.TRANSFER_SETTLED: TransferSettled,
    EventType.TRANSFER_REJECTED: TransferRejected,
    EventType.SESSION_OPENED: SessionOpened,
    EventType.SESSION_CAP_WARNING: SessionCapWarning,
    EventType.SESSION_CAP_REACHED: SessionCapReached,
    EventType.SESSION_SETTLED: SessionSettled,
    EventType.BALANCE_LOW_THRESHOLD: BalanceLowThreshold,
    EventType.ESCALATION_REQUIRED: EscalationRequired,
}
"""The class of each event type."""
