"""Events: the envelope and the nine payloads (interface EV1, EV2).

Every type has a class, so that type checkers understand `match event: case TransferSettled(data=data)`. An
event of a type that this version does not know is an `UnknownEvent` with its raw data.

Each class repeats `created_at`, to keep the fields in the order of the wire format.
"""

import builtins
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from attrs import field, frozen

from agentpay.contract.event_types import EventType
from agentpay.contract.fields import ABSENT, ALWAYS_SENT, Form
from agentpay.contract.models import Model
from agentpay.contract.usdc import UsdcNumber, UsdcString


@frozen(kw_only=True)
class Event(Model):
    """An event: the envelope that all event types share (interface EV1).

    `Event.from_dict` returns an instance of the event type's class.

    Attributes:
        id: identifier, `evt_…`; the same on every delivery attempt, so use it to de-duplicate.
        type: name of the event type.
        created_at: when it happened, UTC.
        data: the payload, by type.
    """

    id: str
    type: str
    created_at: datetime
    data: Annotated[Any, Form({"type": "object", "additionalProperties": True})]

    @staticmethod
    def model_of(value: Mapping[str, Any]) -> "builtins.type[Event]":
        """Return the class for an event's type. Used by the codec."""
        name = value.get("type")
        return EVENT_CLASSES.get(name, UnknownEvent) if isinstance(name, str) else UnknownEvent


@frozen(kw_only=True)
class TransferInitiatedData(Model):
    """A transfer passed its policy and was sent; it is not final yet.

    Attributes:
        transfer_id: the transfer, `txn_…`.
        account_id: the account that pays, `acct_…`.
        to: recipient, as sent.
        amount_usdc: USDC to be transferred.
        tx_signature: signature of the on-chain transaction; None for a payment whose seller pays the fee,
            since the signature is not known yet.
    """

    transfer_id: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    account_id: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    to: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    amount_usdc: UsdcString = field(default=ABSENT, metadata=ALWAYS_SENT)
    tx_signature: str | None = None


@frozen(kw_only=True)
class TransferInitiated(Event):
    """`transfer.initiated`."""

    type: Literal["transfer.initiated"]
    created_at: datetime
    data: TransferInitiatedData


@frozen(kw_only=True)
class TransferSettledData(Model):
    """A transfer is final on chain.

    Attributes:
        transfer_id: the transfer, `txn_…`.
        account_id: the account that paid, `acct_…`.
        amount_usdc: USDC moved.
        tx_signature: signature of the on-chain transaction.
        settled_at: when it was final on chain, UTC.
    """

    transfer_id: str
    account_id: str
    amount_usdc: UsdcString
    tx_signature: str
    settled_at: datetime


@frozen(kw_only=True)
class TransferSettled(Event):
    """`transfer.settled`."""

    type: Literal["transfer.settled"]
    created_at: datetime
    data: TransferSettledData


@frozen(kw_only=True)
class TransferRejectedData(Model):
    """A transfer was rejected or failed.

    Attributes:
        account_id: the account that would have paid, `acct_…`.
        rejection_reason: the error code.
        transfer_id: the transfer, `txn_…`.
        to: recipient, as sent.
        amount_usdc: the requested USDC.
        message: sentence that explains why.
    """

    account_id: str
    rejection_reason: str
    transfer_id: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    to: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    amount_usdc: UsdcString = field(default=ABSENT, metadata=ALWAYS_SENT)
    message: str = field(default=ABSENT, metadata=ALWAYS_SENT)


@frozen(kw_only=True)
class TransferRejected(Event):
    """`transfer.rejected`."""

    type: Literal["transfer.rejected"]
    created_at: datetime
    data: TransferRejectedData


@frozen(kw_only=True)
class SessionOpenedData(Model):
    """A session is open and its escrow funded.

    Attributes:
        session_id: the session, `sess_…`.
        cap_usdc: USDC in escrow, the most that the session can spend.
        account_id: the account that pays, `acct_…`.
        to: payee, as sent.
        category: the spend category, or None.
        tx_signature: signature of the transaction that funded the escrow.
    """

    session_id: str
    cap_usdc: UsdcString
    account_id: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    to: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    category: str | None = None
    tx_signature: str = field(default=ABSENT, metadata=ALWAYS_SENT)


@frozen(kw_only=True)
class SessionOpened(Event):
    """`session.opened`."""

    type: Literal["session.opened"]
    created_at: datetime
    data: SessionOpenedData


@frozen(kw_only=True)
class SessionCapWarningData(Model):
    """The running total of a session exceeded 80 % of its cap.

    Attributes:
        session_id: the session, `sess_…`.
        running_total_usdc: USDC charged so far.
        cap_usdc: the most that the session can spend, in USDC.
    """

    session_id: str
    running_total_usdc: UsdcString
    cap_usdc: UsdcString


@frozen(kw_only=True)
class SessionCapWarning(Event):
    """`session.cap_warning`."""

    type: Literal["session.cap_warning"]
    created_at: datetime
    data: SessionCapWarningData


@frozen(kw_only=True)
class SessionCapReachedData(Model):
    """A session's cap is used up; it accepts no further charges.

    Attributes:
        session_id: the session, `sess_…`.
        account_id: the account that pays, `acct_…`.
        running_total_usdc: USDC charged so far, which is the cap.
        cap_usdc: the most that the session can spend, in USDC.
    """

    session_id: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    account_id: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    running_total_usdc: UsdcString = field(default=ABSENT, metadata=ALWAYS_SENT)
    cap_usdc: UsdcString = field(default=ABSENT, metadata=ALWAYS_SENT)


@frozen(kw_only=True)
class SessionCapReached(Event):
    """`session.cap_reached`."""

    type: Literal["session.cap_reached"]
    created_at: datetime
    data: SessionCapReachedData


@frozen(kw_only=True)
class SessionSettledData(Model):
    """A session is closed and settled on chain; `settled_usdc` is the authoritative amount.

    Attributes:
        session_id: the session, `sess_…`.
        account_id: the account that paid, `acct_…`.
        cap_usdc: the most that the session could spend, in USDC.
        settled_usdc: USDC paid to the payee; the authoritative settlement amount.
        returned_usdc: USDC returned to the account.
        tx_signature: signature of the settling transaction.
        settled_at: when it was final on chain, UTC.
    """

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

    type: Literal["session.settled"]
    created_at: datetime
    data: SessionSettledData


@frozen(kw_only=True)
class BalanceLowThresholdData(Model):
    """The balance of an account dropped below the webhook's threshold.

    Attributes:
        account_id: the account, `acct_…`.
        balance_usdc: its USDC balance.
        usdc_token_account: its on-chain USDC token account, where deposits go.
    """

    account_id: str
    balance_usdc: UsdcString
    usdc_token_account: str


@frozen(kw_only=True)
class BalanceLowThreshold(Event):
    """`balance.low_threshold`."""

    type: Literal["balance.low_threshold"]
    created_at: datetime
    data: BalanceLowThresholdData


@frozen(kw_only=True)
class EscalationRequiredData(Model):
    """A transfer reached the escalation threshold and is pending an operator's approval.

    Attributes:
        transfer_id: the pending transfer, `txn_…`.
        account_id: the account that would pay, `acct_…`.
        to: recipient, as sent.
        amount_usdc: the requested USDC.
        memo: the caller's memo, or None.
        escalation_threshold: USDC amount from which transfers need approval.
    """

    transfer_id: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    account_id: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    to: str = field(default=ABSENT, metadata=ALWAYS_SENT)
    amount_usdc: UsdcString = field(default=ABSENT, metadata=ALWAYS_SENT)
    memo: str | None = None
    escalation_threshold: UsdcNumber = field(default=ABSENT, metadata=ALWAYS_SENT)


@frozen(kw_only=True)
class EscalationRequired(Event):
    """`escalation.required`."""

    type: Literal["escalation.required"]
    created_at: datetime
    data: EscalationRequiredData


@frozen(kw_only=True)
class UnknownEvent(Event):
    """An event of a type that this version does not know; `data` is the JSON object as received."""

    data: dict[str, Any]


AnyEvent = (
    TransferInitiated
    | TransferSettled
    | TransferRejected
    | SessionOpened
    | SessionCapWarning
    | SessionCapReached
    | SessionSettled
    | BalanceLowThreshold
    | EscalationRequired
    | UnknownEvent
)
"""An event of any type: `match` on its class, and `assert_never` checks that no class is forgotten."""

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
"""The class for each event type."""
