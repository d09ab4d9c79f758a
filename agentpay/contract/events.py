"""Events: the envelope, the payloads, and the registry of their types (interface EV1, EV2).

Every type has a class, so that type checkers understand `match event: case TransferSettled(data=data)`. An
event of a type that this version does not know is an `UnknownEvent` with its raw data.

To add a type, add its name to `choices.EventType`, its two classes here, and its line to `EVENTS`, from which
documents, commands and the console take it. Its line names the type of an event that always comes with it, or
the server's scenes have a file of its name. The first line of its data's docstring says when it fires. A test
compares `AnyEvent` and `EventType`, which type checkers must be able to read, with `EVENTS`.

Each class repeats `created_at`, to keep the fields in the order of the wire format.
"""

import builtins
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, cast, get_args

import attrs
from attrs import field, frozen

from agentpay.contract import choices, identifiers
from agentpay.contract.fields import ABSENT, ALWAYS_SENT, Form
from agentpay.contract.models import Model
from agentpay.contract.usdc import UsdcNumber, UsdcString

__all__ = [
    "EVENT_CLASSES",
    "AnyEvent",
    "BalanceLowThreshold",
    "BalanceLowThresholdData",
    "EscalationRequired",
    "EscalationRequiredData",
    "Event",
    "SessionCapReached",
    "SessionCapReachedData",
    "SessionCapWarning",
    "SessionCapWarningData",
    "SessionOpened",
    "SessionOpenedData",
    "SessionSettled",
    "SessionSettledData",
    "TransferInitiated",
    "TransferInitiatedData",
    "TransferRejected",
    "TransferRejectedData",
    "TransferSettled",
    "TransferSettledData",
    "UnknownEvent",
]


@frozen(kw_only=True)
class Event(Model):
    """An event: the envelope that all event types share.

    `Event.from_dict` returns an instance of the event type's class.

    Attributes:
        id: identifier, `evt_…`; the same on every delivery attempt, so use it to de-duplicate.
        type: name of the event type.
        created_at: when it happened, UTC.
        data: the payload, by type.
    """

    _example: ClassVar = {
        "type": "session.cap_warning",
        "data": {
            "session_id": identifiers.example(identifiers.SESSION),
            "running_total_usdc": "16.500000",
            "cap_usdc": "20.000000",
        },
    }

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
    """A transfer was rejected, or failed after `transfer.initiated`.

    Attributes:
        account_id: the account that would have paid, `acct_…`.
        rejection_reason: the error code.
        transfer_id: the transfer, `txn_…`.
        to: recipient, as sent.
        amount_usdc: the requested USDC.
        message: sentence that explains why.
    """

    _example: ClassVar = {
        "rejection_reason": "policy_violation",
        "message": "max_single_transfer is 25 and 30 was asked for.",
    }

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

    _example: ClassVar = {"running_total_usdc": "20.000000"}

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

    _example: ClassVar = {"balance_usdc": "9.250000"}

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

    _example: ClassVar = {"escalation_threshold": 50}

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
    """An event of a type that this version does not know; `data` is the JSON object as received.

    `type` is the name that the service sent. Type checkers see another value, which no event has: so they
    know that `event.type == "transfer.settled"` excludes this class.
    """

    _example: ClassVar = {"type": "coupon.issued", "data": {"coupon_id": "coupon_7"}}

    if TYPE_CHECKING:
        type: Literal["<a type that this version does not know>"]
        created_at: datetime
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


class EventKind(NamedTuple):
    """A type of event: a line of the registry.

    Attributes:
        model: its class.
        status: the status of what it is about, from then on.
        tone: how a list of events shows it: `good`, `warning` or `bad`; None if it is one step of several.
        cause: the type whose scene causes it too; None if a scene has its name.
    """

    model: type[Event]
    status: str
    tone: Literal["good", "warning", "bad"] | None = None
    cause: choices.EventType | None = None

    @property
    def name(self) -> choices.EventType:
        """The name of the type."""
        (name,) = get_args(attrs.fields_dict(self.model)["type"].type)
        return cast("choices.EventType", name)

    @property
    def data(self) -> type[Model]:
        """The class of its payload."""
        return cast("type[Model]", attrs.fields_dict(self.model)["data"].type)

    @property
    def sentence(self) -> str:
        """When it fires."""
        return (self.data.__doc__ or "").partition("\n")[0]


EVENTS: Final[Mapping[choices.EventType, EventKind]] = {
    kind.name: kind
    for kind in (
        EventKind(TransferInitiated, "submitted", cause="transfer.settled"),
        EventKind(TransferSettled, "settled", "good"),
        EventKind(TransferRejected, "rejected", "bad"),
        EventKind(SessionOpened, "open"),
        EventKind(SessionCapWarning, "open", "warning"),
        EventKind(SessionCapReached, "open", "warning"),
        EventKind(SessionSettled, "settled", "good"),
        EventKind(BalanceLowThreshold, "low", "warning"),
        EventKind(EscalationRequired, "pending_approval", "warning"),
    )
}
"""The registry: each event type by its name, in the order of the contract."""

EVENT_CLASSES: Final[dict[str, type[Event]]] = {name: kind.model for name, kind in EVENTS.items()}
"""The class for each event type."""
