"""Objects, errors and deliveries of the service, for unit tests without a service.

    client = testing.client()
    client.transfers.create.side_effect = [testing.error("rate_limited"), testing.make(Transfer)]
    client.accounts.list.return_value = testing.page([testing.make(Account)])

Values are the examples of the OpenAPI documents, the same in every run; arguments override them. Arguments
have the types of the client: amounts are `Decimal`, `int` or `str`, times `datetime` or ISO 8601 text. To
test how money moves, use a real server: `agentpay_server`.
"""

import secrets
from collections.abc import AsyncIterator, Generator, Hashable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, cast, get_args

import attrs

from agentpay._calls.deliveries import read_event
from agentpay._calls.requests import error_of
from agentpay._sync.client import AgentPay
from agentpay._sync.paging import Page
from agentpay.contract import choices, codec, json_text
from agentpay.contract.endpoints import CREATE_TRANSFER
from agentpay.contract.errors import ErrorBody, ErrorCode, FieldError
from agentpay.contract.events import EVENT_CLASSES, AnyEvent, Event
from agentpay.contract.examples import FIELDS, Examples
from agentpay.contract.ext.payments import Payment
from agentpay.contract.ext.sessions import Session
from agentpay.contract.ext.spending import TransferCheck
from agentpay.contract.fields import format_timestamp
from agentpay.contract.headers import REQUEST_ID, RETRY_AFTER, STATUS_HEADERS
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody
from agentpay.contract.policies import Policy
from agentpay.contract.responses import RawResponse
from agentpay.contract.schemas import Schemas
from agentpay.contract.transactions import Transaction
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import UsdcNumber, UsdcString, format_string, to_decimal
from agentpay.errors import APIError
from agentpay.webhooks import Secret, WebhookSecrets, signed_headers

M = TypeVar("M", bound=Model)
T = TypeVar("T")

_UNSIGNED: Final = {"tx_signature": None, "chain_explorer_url": None}
_REFUSED: Final = {"error": "policy_violation", "message": ErrorCode.POLICY_VIOLATION.meaning}

_TRANSFERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "settled": {},
    "submitted": {"settled_at": None},
    "pending_approval": {**_UNSIGNED, "settled_at": None},
    "approved": {**_UNSIGNED, "settled_at": None},
    "rejected": {**_UNSIGNED, **_REFUSED, "settled_at": None},
    "failed": {
        "error": "transfer_failed",
        "message": ErrorCode.TRANSFER_FAILED.meaning,
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
        "message": ErrorCode.PAYMENT_EXPIRED.meaning,
    },
}
"""The same of a payment."""

_CHECKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "settle": {"error": None, "message": None},
    "escalate": {"error": None, "message": None},
    "reject": _REFUSED,
}
"""The same of a predicted outcome."""

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


_MATCHING: Final[Mapping[type, tuple[str, str, Mapping[str, Mapping[str, Any]]]]] = {
    Transfer: ("status", "settled", _TRANSFERS),
    Payment: ("status", "submitted", _PAYMENTS),
    Session: ("status", "settled", _SESSIONS),
    Transaction: ("type", "transfer", _ENTRIES),
    TransferCheck: ("decision", "settle", _CHECKS),
}
"""The field of a model on which others depend, its default, and the fields that match each of its values."""


def make(model: type[M], **fields: Any) -> M:  # noqa: ANN401
    """Return an object of a model: `testing.make(Transfer, status="failed", amount_usdc=5)`.

    Args:
        model: its class, such as `Transfer`, or that of an event.
        fields: its fields; of an event, those of its `data`. The others are those of an example, and match:
            a transfer that failed has an `error`, and a paused account a paused policy.

    Raises:
        TypeError: the model has no such field, or an amount is a float.
        ValueError: a value is not valid for its field.
    """
    if issubclass(model, Event) and model in EVENT_CLASSES.values():
        (name,) = get_args(attrs.fields_dict(cast("Any", model))["type"].type)
        return cast("M", event(name, **fields))
    return _made(model, _matching(model, fields), fields)


def _matching(model: type[Model], given: Mapping[str, Any]) -> Mapping[str, Any]:
    if model in _MATCHING:
        name, default, examples = _MATCHING[model]
        value = given.get(name, default)
        if value not in examples:
            raise ValueError(f"unknown {name} {value!r}; available: {', '.join(examples)}")
        return {name: value, **examples[value]}
    if {"status", "policy"} <= attrs.fields_dict(cast("Any", model)).keys():
        return {"policy": make(Policy, paused=given.get("status") == "paused")}
    if model is ErrorBody:
        code = given.get("error", "policy_violation")
        if code not in list(ErrorCode):
            raise ValueError(f"unknown error code {code!r}; available: {', '.join(ErrorCode)}")
        return _error_fields(ErrorCode(code))
    return {}


class _Both(Generic[T]):
    """What `for` and `async for` go through."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)

    def __iter__(self) -> Iterator[T]:
        return self._items

    def __next__(self) -> T:
        return next(self._items)

    async def __aiter__(self) -> AsyncIterator[T]:
        for item in self._items:
            yield item


class MadePage(Page[T]):
    """A page of `testing.page`: what a list method of either client returns."""

    def __await__(self) -> Generator[object, None, Self]:
        return self
        yield

    async def __aiter__(self) -> AsyncIterator[T]:
        for item in self:
            yield item

    def iter_pages(self) -> Any:  # noqa: ANN401 - as of the client that it is made for
        """Yield this page and all following ones."""
        return _Both(super().iter_pages())


def page(items: Iterable[T] = (), *following: Iterable[T]) -> MadePage[T]:
    """Return what a list method returns, of the sync and of the async client.

    Args:
        items: the items of the first page.
        following: the items of each further page.
    """
    bodies: list[PageBody[T]] = [
        PageBody(
            data=tuple(each),
            cursor=str(number) if number <= len(following) else "",
            has_more=number <= len(following),
        )
        for number, each in enumerate((items, *following), 1)
    ]
    return MadePage(lambda cursor: bodies[int(cursor or 0)], None, bodies[0])


def client() -> Any:  # noqa: ANN401 - a mock is whatever it is used as
    """Return a mock of `AgentPay`, whose methods check the arguments of each call.

    It has the resources of a client, and `isinstance(mock, AgentPay)` is true. Set what a call returns or
    raises: `client.transfers.create.return_value = testing.make(Transfer)`.
    """
    from agentpay._calls.mocks import mock_of  # noqa: PLC0415 - it brings unittest.mock

    return mock_of(AgentPay)


def async_client() -> Any:  # noqa: ANN401 - as above
    """Return a mock of `AsyncAgentPay`, as `client` does: its methods are awaited."""
    from agentpay._async.client import AsyncAgentPay  # noqa: PLC0415 - the sync client does without
    from agentpay._calls.mocks import mock_of  # noqa: PLC0415 - as above

    return mock_of(AsyncAgentPay)


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
    body = make(ErrorBody, error=code, **fields)
    status = ErrorCode(code).status
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
        event: name of a type, or an event, such as `make(UnknownEvent, type="coupon.issued")`, of a type
            newer than your version.
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
    fields: dict[str, Any] = {"error": code.value, "message": code.meaning}
    if code in _TRANSFER_ERRORS:
        return {**fields, "transfer_id": FIELDS["transfer_id"], "status": _TRANSFER_ERRORS[code]}
    if code is ErrorCode.SESSION_CAP_EXCEEDED:
        return {**fields, "session_id": FIELDS["session_id"], "status": "open"}
    if code is ErrorCode.INVALID_REQUEST:
        fields["details"] = (make(FieldError),)
    return {**fields, "request_id": FIELDS["request_id"]}


_CROCKFORD: Final = "0123456789abcdefghjkmnpqrstvwxyz"


def _ulid() -> str:
    return "0" + "".join(secrets.choice(_CROCKFORD) for _ in range(25))
