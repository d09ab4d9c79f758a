"""Objects, errors and deliveries of the service, for unit tests without a service.

    client = Mock(spec=AgentPay)
    client.transfers.create.side_effect = testing.error("insufficient_balance")

Values are the examples of the OpenAPI documents, the same in every run; arguments override them. Arguments
have the types of the client: amounts are `Decimal`, `int` or `str`, times `datetime` or ISO 8601 text. To
test how money moves, use a real server: `agentpay_server`.
"""

import secrets
from collections.abc import Hashable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast, get_args

import attrs

from agentpay._deliveries import signed_headers
from agentpay._events import read_event
from agentpay._requests import error_of
from agentpay.contract import choices, codec, json_text
from agentpay.contract.accounts import Account, Balance
from agentpay.contract.approvals import PendingTransfer
from agentpay.contract.console import (
    AccountDetails,
    AgentKey,
    AuditEntry,
    ConsoleSummary,
    NewAgentKey,
    PolicyRecordView,
    ServedRequest,
)
from agentpay.contract.deliveries import (
    Delivery,
    DeliveryAttempt,
    NewSecret,
    RegisteredWebhook,
    ReplayedDeliveries,
)
from agentpay.contract.endpoints import CREATE_TRANSFER
from agentpay.contract.errors import HTTP_STATUS, MEANINGS, ErrorBody, ErrorCode, FieldError
from agentpay.contract.events import EVENT_CLASSES, AnyEvent, Event
from agentpay.contract.examples import FIELDS, Examples
from agentpay.contract.fields import format_timestamp
from agentpay.contract.headers import REQUEST_ID, RETRY_AFTER, STATUS_HEADERS
from agentpay.contract.identity import Identity
from agentpay.contract.models import Model
from agentpay.contract.operator_keys import NewOperatorKey, OperatorKey
from agentpay.contract.payments import Payment, PaymentHeader, PaymentOutcome, PaymentSplit, PinnedOrigin
from agentpay.contract.policies import AccountPolicy, Policy
from agentpay.contract.responses import RawResponse
from agentpay.contract.schemas import Schemas
from agentpay.contract.sessions import Session
from agentpay.contract.sign_in import ConsoleKey, SignInCode
from agentpay.contract.spending import Budget, TransferCheck
from agentpay.contract.transactions import Transaction
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import UsdcNumber, UsdcString, format_string, to_decimal
from agentpay.contract.webhooks import Webhook
from agentpay.errors import APIError
from agentpay.webhooks import Secret, WebhookSecrets

M = TypeVar("M", bound=Model)

_UNSIGNED: Final = {"tx_signature": None, "chain_explorer_url": None}
_REFUSED: Final = {"error": "policy_violation", "message": MEANINGS[ErrorCode.POLICY_VIOLATION]}

_TRANSFERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "settled": {},
    "submitted": {"settled_at": None},
    "pending_approval": {**_UNSIGNED, "settled_at": None},
    "approved": {**_UNSIGNED, "settled_at": None},
    "rejected": {**_UNSIGNED, **_REFUSED, "settled_at": None},
    "failed": {
        "error": "transfer_failed",
        "message": MEANINGS[ErrorCode.TRANSFER_FAILED],
        "settled_at": None,
    },
}
"""The fields that differ by status from those of a settled transfer."""

_PAYMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "settled": {
        "header": None,
        "tx_signature": FIELDS["tx_signature"],
        "settled_at": FIELDS["settled_at"],
    },
    "submitted": {},
    "pending_approval": {"header": None},
    "approved": {"header": None},
    "rejected": {"header": None, **_REFUSED},
    "failed": {
        "header": None,
        "error": "payment_expired",
        "message": MEANINGS[ErrorCode.PAYMENT_EXPIRED],
    },
}
"""The same of a payment."""

_UNSETTLED: Final = {
    "settled_usdc": None,
    "returned_usdc": None,
    "settlement_tx_signature": None,
    "settled_at": None,
    "closing_reason": None,
}
_SESSIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "settled": {"closing_reason": None},
    "opening": {**_UNSETTLED, "running_total_usdc": "0.000000", "opened_at": None},
    "open": _UNSETTLED,
    "closing": _UNSETTLED,
    "failed": {**_UNSETTLED, "running_total_usdc": "0.000000", "opened_at": None},
}
"""The same for a session."""

_ENTRIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "transfer": {},
    "session_settlement": {"transfer_id": None, "session_id": FIELDS["session_id"]},
    "rejection": {**_UNSIGNED, "status": "rejected", "rejection_reason": "policy_violation"},
    "deposit": {"direction": "in", "transfer_id": None, "memo": None, "category": None},
}
"""The same for a history entry, by type."""


def transfer(status: choices.TransferStatus = "settled", **fields: Any) -> Transfer:  # noqa: ANN401
    """Return a transfer; if it is rejected or failed, it has an `error` and a `message`."""
    return _made(Transfer, {"status": status, **_of("status", status, _TRANSFERS)}, fields)


def pending_transfer(**fields: Any) -> PendingTransfer:  # noqa: ANN401
    """Return a transfer that is pending an operator's approval."""
    return _made(PendingTransfer, {}, fields)


def transfer_check(would: choices.Outcome = "settle", **fields: Any) -> TransferCheck:  # noqa: ANN401
    """Return the predicted outcome of a transfer."""
    refused = _REFUSED if would == "reject" else {"error": None, "message": None}
    return _made(TransferCheck, {**refused, "would": would}, fields)


def payment(status: choices.TransferStatus = "submitted", **fields: Any) -> Payment:  # noqa: ANN401
    """Return a payment behind HTTP 402; one that is rejected or failed has an `error` and a `message`."""
    return _made(Payment, {"status": status, **_of("status", status, _PAYMENTS)}, fields)


def payment_header(**fields: Any) -> PaymentHeader:  # noqa: ANN401
    """Return the header that presents a payment."""
    return _made(PaymentHeader, {}, fields)


def payment_outcome(**fields: Any) -> PaymentOutcome:  # noqa: ANN401
    """Return the outcome of a payment as its client reported it."""
    return _made(PaymentOutcome, {}, fields)


def payment_split(**fields: Any) -> PaymentSplit:  # noqa: ANN401
    """Return the part of a payment that another recipient than the primary one gets."""
    return _made(PaymentSplit, {}, fields)


def pinned_origin(**fields: Any) -> PinnedOrigin:  # noqa: ANN401
    """Return an operator's pin of a seller."""
    return _made(PinnedOrigin, {}, fields)


def account(status: choices.AccountStatus = "active", **fields: Any) -> Account:  # noqa: ANN401
    """Return an account; the policy of a paused one is paused."""
    return _made(Account, {"status": status, "policy": policy(paused=status == "paused")}, fields)


def account_details(status: choices.AccountStatus = "active", **fields: Any) -> AccountDetails:  # noqa: ANN401
    """Return an account with its details on the console; the policy of a paused one is paused."""
    return _made(AccountDetails, {"status": status, "policy": policy(paused=status == "paused")}, fields)


def balance(**fields: Any) -> Balance:  # noqa: ANN401
    """Return the balance of an account."""
    return _made(Balance, {}, fields)


def budget(**fields: Any) -> Budget:  # noqa: ANN401
    """Return the budget of an account."""
    return _made(Budget, {}, fields)


def policy(**fields: Any) -> Policy:  # noqa: ANN401
    """Return a policy; one without limits is `Policy()`."""
    return _made(Policy, {}, fields)


def account_policy(**fields: Any) -> AccountPolicy:  # noqa: ANN401
    """Return the policy of an account."""
    return _made(AccountPolicy, {}, fields)


def policy_record_view(**fields: Any) -> PolicyRecordView:  # noqa: ANN401
    """Return the on-chain record of a policy."""
    return _made(PolicyRecordView, {}, fields)


def transaction(type: choices.TransactionType = "transfer", **fields: Any) -> Transaction:  # noqa: A002, ANN401
    """Return an entry of an account's history."""
    return _made(Transaction, {"type": type, **_of("type", type, _ENTRIES)}, fields)


def session(status: choices.SessionStatus = "settled", **fields: Any) -> Session:  # noqa: ANN401
    """Return a session."""
    return _made(Session, {"status": status, **_of("status", status, _SESSIONS)}, fields)


def webhook(**fields: Any) -> Webhook:  # noqa: ANN401
    """Return a webhook as it is registered, with its secret."""
    return _made(Webhook, {}, fields)


def registered_webhook(**fields: Any) -> RegisteredWebhook:  # noqa: ANN401
    """Return a webhook as the console lists it."""
    return _made(RegisteredWebhook, {}, fields)


def new_secret(**fields: Any) -> NewSecret:  # noqa: ANN401
    """Return a new secret of a webhook."""
    return _made(NewSecret, {}, fields)


def delivery_record(**fields: Any) -> Delivery:  # noqa: ANN401
    """Return a delivery as the console lists it. `delivery` returns one as a receiver gets it."""
    return _made(Delivery, {}, fields)


def delivery_attempt(**fields: Any) -> DeliveryAttempt:  # noqa: ANN401
    """Return a delivery attempt."""
    return _made(DeliveryAttempt, {}, fields)


def agent_key(**fields: Any) -> AgentKey:  # noqa: ANN401
    """Return an agent-scoped key, without the key itself."""
    return _made(AgentKey, {}, fields)


def new_agent_key(**fields: Any) -> NewAgentKey:  # noqa: ANN401
    """Return an agent-scoped key as it is created."""
    return _made(NewAgentKey, {}, fields)


def operator_key(**fields: Any) -> OperatorKey:  # noqa: ANN401
    """Return an operator key, without the key itself."""
    return _made(OperatorKey, {}, fields)


def new_operator_key(**fields: Any) -> NewOperatorKey:  # noqa: ANN401
    """Return an operator key as it is created."""
    return _made(NewOperatorKey, {}, fields)


def console_key(**fields: Any) -> ConsoleKey:  # noqa: ANN401
    """Return the key of a browser that signs in to the console."""
    return _made(ConsoleKey, {}, fields)


def sign_in_code(**fields: Any) -> SignInCode:  # noqa: ANN401
    """Return a code that signs in to the console once."""
    return _made(SignInCode, {}, fields)


def identity(**fields: Any) -> Identity:  # noqa: ANN401
    """Return the identity of a client's key, as `whoami` does."""
    return _made(Identity, {}, fields)


def audit_entry(**fields: Any) -> AuditEntry:  # noqa: ANN401
    """Return an entry of the audit trail."""
    return _made(AuditEntry, {}, fields)


def replayed_deliveries(**fields: Any) -> ReplayedDeliveries:  # noqa: ANN401
    """Return how many deliveries were replayed."""
    return _made(ReplayedDeliveries, {}, fields)


def console_summary(**fields: Any) -> ConsoleSummary:  # noqa: ANN401
    """Return an operator's summary on the console."""
    return _made(ConsoleSummary, {}, fields)


def served_request(**fields: Any) -> ServedRequest:  # noqa: ANN401
    """Return a request as the console lists it, without its content."""
    return _made(ServedRequest, {}, fields)


def field_error(**fields: Any) -> FieldError:  # noqa: ANN401
    """Return one fault of a request."""
    return _made(FieldError, {}, fields)


def error_body(error: choices.ErrorCode = "policy_violation", **fields: Any) -> ErrorBody:  # noqa: ANN401
    """Return the body of an error, with the fields of this error."""
    if error not in list(ErrorCode):
        raise ValueError(f"unknown error code {error!r}; available: {', '.join(ErrorCode)}")
    return _made(ErrorBody, _error_fields(ErrorCode(error)), fields)


def error(code: choices.ErrorCode, *, retry_after: float | None = None, **fields: Any) -> APIError:  # noqa: ANN401
    """Return the exception that a call raises for an error of the service.

    Args:
        code: the error code; it determines the exception's class and HTTP status.
        retry_after: after how many seconds the service asks to be called again; 1 for 429 and 503 by default.
        fields: fields of the body: `message`, `request_id`, `transfer_id`, `session_id`, `status`, `details`.

    Raises:
        ValueError: the code does not exist. The message lists the available ones.
        TypeError: error bodies have no such field.
    """
    body = error_body(code, **fields)
    status = HTTP_STATUS[ErrorCode(code)]
    headers = {REQUEST_ID.name.lower(): str(fields.get("request_id") or REQUEST_ID.example)}
    if RETRY_AFTER in STATUS_HEADERS.get(status, ()):
        headers[RETRY_AFTER.name.lower()] = "1"
    raised = error_of(CREATE_TRANSFER, RawResponse(status, headers, body.to_json().encode()), now=0.0)
    if retry_after is not None:
        raised.retry_after = retry_after
    return raised


class SignedDelivery(NamedTuple):
    """A delivery as the service posts it. It can be unpacked: `body, headers = testing.delivery(…)`.

    Attributes:
        body: the raw body.
        headers: the headers, including the signature; not in `repr`.
    """

    body: bytes
    headers: dict[str, str]

    @property
    def event(self) -> AnyEvent:
        """The event in the body."""
        return read_event(self.body)

    def __repr__(self) -> str:
        # Without the signature, with which a reader of a log could impersonate the service.
        return f"SignedDelivery(body={self.body!r}, headers=<hidden>)"


def event(type: choices.EventType, *, id: str | None = None, **data: Any) -> AnyEvent:  # noqa: A002, ANN401
    """Return an event.

    Args:
        type: name of its type.
        id: its identifier; a new one by default, because receivers handle each event once.
        data: fields of its `data`, and `created_at`.

    Raises:
        ValueError: the type does not exist.
        TypeError: the event has no such field.
    """
    if type not in EVENT_CLASSES:
        raise ValueError(f"unknown event type {type!r}; available: {', '.join(EVENT_CLASSES)}")
    kind = EVENT_CLASSES[type]
    envelope = {"created_at": data.pop("created_at")} if "created_at" in data else {}
    model: Any = attrs.fields_dict(cast("Any", kind))["data"].type
    held = _made(model, {}, data)
    made = _made(kind, {"id": id or f"evt_{_ulid()}", "type": type, "data": held}, envelope)
    return cast("AnyEvent", made)


def delivery(
    event: choices.EventType | AnyEvent,
    secret: Secret,
    *,
    attempt: int = 1,
    next_secret: Secret | None = None,
    **data: Any,  # noqa: ANN401
) -> SignedDelivery:
    """Return a delivery of an event, signed as the service signs it.

    Args:
        event: name of a type, or an event, such as an `UnknownEvent` of a type newer than your version.
        secret: the secret of the receiver's webhook.
        attempt: number of the attempt, from 1.
        next_secret: signs a second header, as while a rotation overlaps.
        data: if `event` is the name of a type: fields of the event's `data`, and `id` and `created_at`.

    Raises:
        ValueError: the type does not exist.
        TypeError: the event has no such field.
        ConfigurationError: no secret.
    """
    made = _named(event, data)
    body = json_text.print_json(codec.unstructure(made))
    hidden = [None if each is None else WebhookSecrets(each) for each in (secret, next_secret)]
    headers = signed_headers(
        body,
        event_id=made.id,
        attempt=attempt,
        secret=cast("WebhookSecrets", hidden[0]),
        next_secret=hidden[1],
    )
    return SignedDelivery(body, headers)


def _named(of: choices.EventType | AnyEvent, data: dict[str, Any]) -> AnyEvent:
    if not isinstance(of, Event):
        return event(of, **data)
    if data:
        raise TypeError(f"an event has its data: pass a type's name with {', '.join(data)}")
    return of


def _of(name: str, value: str, examples: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the fields that match a status or a type."""
    if value not in examples:
        raise ValueError(f"unknown {name} {value!r}; available: {', '.join(examples)}")
    return examples[value]


def _made(model: type[M], defaults: Mapping[str, Any], given: Mapping[str, Any]) -> M:
    """Return a model's example with other values, validated like a response of the service.

    Raises:
        TypeError: the model has no such field, or an amount is a float.
        ValueError: a value is not valid for its field.
    """
    kinds = {each.name: each.type for each in attrs.fields(cast("Any", model))}
    for name in given:
        if name not in kinds:
            raise TypeError(f"{model.__name__} has no field {name!r}; it has {', '.join(kinds)}")
    values = {
        name.removesuffix("_"): _sent(value, kinds[name]) for name, value in {**defaults, **given}.items()
    }
    return codec.structure({**_example(cast("Hashable", model)), **values}, model)


def _sent(value: object, kind: object) -> object:
    """Return a value in its wire format."""
    of = (kind, *get_args(kind))
    if isinstance(value, Decimal | int | str | float) and not isinstance(value, bool):
        if UsdcString in of:
            return format_string(to_decimal(cast("Decimal | int | str", value)))
        if UsdcNumber in of:
            return to_decimal(cast("Decimal | int | str", value))
    if isinstance(value, datetime):
        return format_timestamp(value)
    if isinstance(value, Model):
        return codec.unstructure(value)
    if isinstance(value, tuple | list):
        return [_sent(item, None) for item in value]
    return value


@cache
def _example(model: Hashable) -> dict[str, Any]:
    schemas = Schemas()
    schema = schemas.of(model)
    example: dict[str, Any] = Examples(schemas).of(schema)
    return example


_TRANSFER_ERRORS: Final = {
    ErrorCode.POLICY_VIOLATION: "rejected",
    ErrorCode.ACCOUNT_PAUSED: "rejected",
    ErrorCode.INSUFFICIENT_BALANCE: "rejected",
    ErrorCode.TRANSFER_FAILED: "failed",
}
"""The status of the transfer in these errors."""


def _error_fields(code: ErrorCode) -> dict[str, Any]:
    fields: dict[str, Any] = {"error": code.value, "message": MEANINGS[code]}
    if code in _TRANSFER_ERRORS:
        return {**fields, "transfer_id": FIELDS["transfer_id"], "status": _TRANSFER_ERRORS[code]}
    if code is ErrorCode.SESSION_CAP_EXCEEDED:
        return {**fields, "session_id": FIELDS["session_id"], "status": "open"}
    if code is ErrorCode.INVALID_REQUEST:
        fields["details"] = (field_error(),)
    return {**fields, "request_id": FIELDS["request_id"]}


_CROCKFORD: Final = "0123456789abcdefghjkmnpqrstvwxyz"


def _ulid() -> str:
    return "0" + "".join(secrets.choice(_CROCKFORD) for _ in range(25))
