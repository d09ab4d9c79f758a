"""SQL statements for payments behind HTTP 402, and for pinned origins."""

import json
from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

from attrs import frozen
from sqlalchemy import Select, and_, bindparam, delete, func, insert, literal_column, select, update

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import chain_transactions, payments, pinned_origins, transfers
from agentpay_server.money.transactions import Kind, State
from agentpay_server.transfers.store import TransferRecord


@frozen(kw_only=True)
class PaymentRecord:
    """A row of `payments`: the columns that a payment has in addition to its transfer."""

    seq: int = 0
    transfer_id: str
    operator_id: str
    account_id: str
    protocol: str
    origin: str
    url: str | None
    recipient: str
    fee_payer: str | None
    raw: bytes | None = None
    blockhash: str | None = None
    nonce: int | None = None
    expires_us: int | None = None
    outcome_status: int | None = None
    outcome_receipt: str | None = None
    outcome_duration_ms: int | None = None


@frozen
class Pin:
    """A row of `pinned_origins`: an operator's pin of a seller."""

    seq: int
    operator_id: str
    origin: str
    category: str | None
    recipients: tuple[str, ...] | None
    max_amount: int | None
    blocked: bool
    updated_us: int


_NAMES: Final = tuple(column.name for column in payments.columns)
_WRITTEN: Final = _NAMES[1:]
_OF_TRANSFER: Final = transfers.c.transfer_id == payments.c.transfer_id
_INSERT: Final = insert(payments)
_BY_ID: Final = select(payments).where(payments.c.transfer_id == bindparam("transfer_id"))
_SIGN: Final = (
    update(payments)
    .where(payments.c.transfer_id == bindparam("of_transfer"), payments.c.raw.is_(None))
    .values(
        fee_payer=bindparam("fee_payer"),
        raw=bindparam("raw"),
        blockhash=bindparam("blockhash"),
        nonce=bindparam("nonce"),
        expires_us=bindparam("expires_us"),
    )
)
_NEXT_NONCE: Final = select(func.coalesce(func.max(payments.c.nonce) + 1, 0)).where(
    payments.c.account_id == bindparam("account_id"), payments.c.blockhash == bindparam("blockhash")
)
_SET_OUTCOME: Final = (
    update(payments)
    .where(payments.c.transfer_id == bindparam("of_transfer"))
    .values(
        outcome_status=bindparam("outcome_status"),
        outcome_receipt=bindparam("outcome_receipt"),
        outcome_duration_ms=bindparam("outcome_duration_ms"),
    )
)
_NEXT_EXPIRY: Final = select(func.min(payments.c.expires_us)).where(
    payments.c.transfer_id == chain_transactions.c.subject_id,
    chain_transactions.c.state == literal_column(f"'{State.PENDING}'"),
    chain_transactions.c.kind == literal_column(f"'{Kind.PAYMENT}'"),
)
_FILTERS: Final = {
    "account_id": payments.c.account_id == bindparam("account_id"),
    "origin": payments.c.origin == bindparam("origin"),
    "status": transfers.c.status == bindparam("status"),
    "transfer_id": payments.c.transfer_id == bindparam("transfer_id"),
    "since_us": transfers.c.created_us > bindparam("since_us"),
}
_PAGE: Final = (
    select(transfers, payments)
    .where(
        payments.c.operator_id == bindparam("operator_id"), payments.c.seq < bindparam("before"), _OF_TRANSFER
    )
    .order_by(payments.c.seq.desc())
    .limit(bindparam("count"))
)
_PAGES: Final[dict[tuple[str, ...], Select[Any]]] = {
    names: _PAGE.where(*(_FILTERS[name] for name in names))
    for count in range(len(_FILTERS) + 1)
    for names in combinations(_FILTERS, count)
}
_TRANSFER_COLUMNS: Final = len(transfers.columns)

_THIS_ORIGIN: Final = and_(
    pinned_origins.c.operator_id == bindparam("of_operator"),
    pinned_origins.c.origin == bindparam("of_origin"),
)
_PIN: Final = select(pinned_origins).where(_THIS_ORIGIN)
_UNPIN: Final = delete(pinned_origins).where(_THIS_ORIGIN)
_INSERT_PIN: Final = insert(pinned_origins)
_PINS: Final = (
    select(pinned_origins)
    .where(
        pinned_origins.c.operator_id == bindparam("operator_id"), pinned_origins.c.seq < bindparam("before")
    )
    .order_by(pinned_origins.c.seq.desc())
    .limit(bindparam("count"))
)


def insert_payment(connection: Connection, record: PaymentRecord) -> None:
    """Store a new payment; the database assigns `seq`.

    Raises:
        ConflictError: another payment of the account has the same nonce under the same blockhash.
    """
    connection.execute(_INSERT, {name: getattr(record, name) for name in _WRITTEN})


def sign(connection: Connection, record: PaymentRecord) -> None:
    """Store the signed bytes of a payment.

    Raises:
        ValueError: the payment is already signed.
    """
    values = {
        "of_transfer": record.transfer_id,
        "fee_payer": record.fee_payer,
        "raw": record.raw,
        "blockhash": record.blockhash,
        "nonce": record.nonce,
        "expires_us": record.expires_us,
    }
    if connection.execute(_SIGN, values).rowcount != 1:
        raise ValueError(f"{record.transfer_id} is already signed")


def payment(connection: Connection, transfer_id: str) -> PaymentRecord | None:
    """Return the payment row of a transfer; None if the transfer is not a payment."""
    row = connection.execute(_BY_ID, {"transfer_id": transfer_id}).one_or_none()
    return None if row is None else _record(row)


def existing_payment(connection: Connection, transfer_id: str) -> PaymentRecord:
    """Return the row of a payment that must exist."""
    found = payment(connection, transfer_id)
    if found is None:
        raise LookupError(f"{transfer_id} is not a payment")
    return found


def next_nonce(connection: Connection, account_id: str, blockhash: str) -> int:
    """Return a nonce unused by the account's payments under a blockhash; requires the account's lock."""
    values = {"account_id": account_id, "blockhash": blockhash}
    return int(connection.execute(_NEXT_NONCE, values).scalar_one())


def set_outcome(
    connection: Connection, transfer_id: str, *, status: int, receipt: str | None, duration_ms: int | None
) -> None:
    """Store the seller's response, as the client reports it."""
    values = {
        "of_transfer": transfer_id,
        "outcome_status": status,
        "outcome_receipt": receipt,
        "outcome_duration_ms": duration_ms,
    }
    connection.execute(_SET_OUTCOME, values)


def next_expiry_us(connection: Connection) -> int | None:
    """Return the earliest expiry of the payments that may still land, if any."""
    expires_us: int | None = connection.execute(_NEXT_EXPIRY).scalar_one_or_none()
    return expires_us


def page(
    connection: Connection, operator_id: str, before: int, count: int, filters: Mapping[str, object]
) -> list[tuple[TransferRecord, PaymentRecord]]:
    """Return an operator's payments below a sequence number, newest first.

    `filters` are required values of `account_id`, `origin`, `status` and `transfer_id`, and `since_us`, an
    exclusive lower bound of the creation time.
    """
    statement = _PAGES[tuple(name for name in _FILTERS if name in filters)]
    values = {"operator_id": operator_id, "before": before, "count": count, **filters}
    return [
        (TransferRecord(*tuple(row)[:_TRANSFER_COLUMNS]), _record(tuple(row)[_TRANSFER_COLUMNS:]))
        for row in connection.execute(statement, values)
    ]


def pin(connection: Connection, operator_id: str, origin: str) -> Pin | None:
    """Return an operator's pin of an origin, if any."""
    row = connection.execute(_PIN, {"of_operator": operator_id, "of_origin": origin}).one_or_none()
    return None if row is None else _pin(row)


def set_pin(connection: Connection, pinned: Pin) -> None:
    """Store a pin, replacing one of the same origin; the database assigns `seq`.

    Raises:
        ConflictError: a concurrent request has pinned the same origin.
    """
    delete_pin(connection, pinned.operator_id, pinned.origin)
    recipients = pinned.recipients
    values = {
        "operator_id": pinned.operator_id,
        "origin": pinned.origin,
        "category": pinned.category,
        "recipients": None if recipients is None else json.dumps(recipients),
        "max_amount": pinned.max_amount,
        "blocked": pinned.blocked,
        "updated_us": pinned.updated_us,
    }
    connection.execute(_INSERT_PIN, values)


def delete_pin(connection: Connection, operator_id: str, origin: str) -> bool:
    """Delete an operator's pin of an origin; False if there was no pin."""
    return connection.execute(_UNPIN, {"of_operator": operator_id, "of_origin": origin}).rowcount == 1


def pins(connection: Connection, operator_id: str, before: int, count: int) -> list[Pin]:
    """Return an operator's pins below a sequence number, newest first."""
    values = {"operator_id": operator_id, "before": before, "count": count}
    return [_pin(row) for row in connection.execute(_PINS, values)]


def _record(row: Any) -> PaymentRecord:  # noqa: ANN401 - a row of the driver's
    values = dict(zip(_NAMES, row, strict=True))
    raw = values["raw"]
    return PaymentRecord(**{**values, "raw": None if raw is None else bytes(raw)})


def _pin(row: Any) -> Pin:  # noqa: ANN401 - as above
    seq, operator_id, origin, category, recipients, max_amount, blocked, updated_us = row
    known = None if recipients is None else tuple(json.loads(recipients))
    return Pin(seq, operator_id, origin, category, known, max_amount, bool(blocked), updated_us)
