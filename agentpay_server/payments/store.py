"""SQL statements for payments behind HTTP 402, and for pinned origins."""

import json
from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen
from sqlalchemy import and_, bindparam, delete, func, insert, literal_column, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Pages, Rows
from agentpay_server.database.tables import (
    PaymentRecord,
    TransferRecord,
    chain_transactions,
    payments,
    pinned_origins,
    transfers,
)
from agentpay_server.ledger.transactions import Kind, State
from agentpay_server.transfers.store import TRANSFERS


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
    sponsor_fees: bool = False


PAYMENTS: Final = Rows(PaymentRecord, "transfer_id")
_IS_UNSIGNED: Final = payments.c.raw.is_(None)
_NEXT_NONCE: Final = select(func.coalesce(func.max(payments.c.nonce) + 1, 0)).where(
    payments.c.account_id == bindparam("account_id"), payments.c.blockhash == bindparam("blockhash")
)
_NEXT_EXPIRY: Final = select(func.min(payments.c.expires_us)).where(
    payments.c.transfer_id == chain_transactions.c.subject_id,
    chain_transactions.c.state == literal_column(f"'{State.PENDING}'"),
    chain_transactions.c.kind == literal_column(f"'{Kind.PAYMENT}'"),
)
_TRANSFER_COLUMNS: Final = len(transfers.columns)


def _both(row: Sequence[Any]) -> tuple[TransferRecord, PaymentRecord]:
    values = tuple(row)
    return TRANSFERS.record(values[:_TRANSFER_COLUMNS]), PAYMENTS.record(values[_TRANSFER_COLUMNS:])


PAGES: Final = Pages(
    select(transfers, payments).where(transfers.c.transfer_id == payments.c.transfer_id),
    _both,
    owner=payments.c.operator_id,
    place=payments.c.seq,
    filters={
        "account_id": (payments.c.account_id == bindparam("account_id"),),
        "origin": (payments.c.origin == bindparam("origin"),),
        "status": (transfers.c.status == bindparam("status"),),
        "transfer_id": (payments.c.transfer_id == bindparam("transfer_id"),),
        "since_us": (transfers.c.created_us > bindparam("since_us"),),
    },
)

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


def sign(connection: Connection, record: PaymentRecord) -> None:
    """Store the signed bytes of a payment.

    Raises:
        StaleRowError: the payment is already signed.
    """
    PAYMENTS.changed(
        connection,
        record,
        _IS_UNSIGNED,
        fee_payer=record.fee_payer,
        raw=record.raw,
        blockhash=record.blockhash,
        nonce=record.nonce,
        expires_us=record.expires_us,
    )


def next_nonce(connection: Connection, account_id: str, blockhash: str) -> int:
    """Return a nonce unused by the account's payments under a blockhash; requires the account's lock."""
    values = {"account_id": account_id, "blockhash": blockhash}
    return int(connection.execute(_NEXT_NONCE, values).scalar_one())


def next_expiry_us(connection: Connection) -> int | None:
    """Return the earliest expiry of the payments that may still land, if any."""
    expires_us: int | None = connection.execute(_NEXT_EXPIRY).scalar_one_or_none()
    return expires_us


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
        "sponsor_fees": pinned.sponsor_fees,
    }
    connection.execute(_INSERT_PIN, values)


def delete_pin(connection: Connection, operator_id: str, origin: str) -> bool:
    """Delete an operator's pin of an origin; False if there was no pin."""
    return connection.execute(_UNPIN, {"of_operator": operator_id, "of_origin": origin}).rowcount == 1


def pins(connection: Connection, operator_id: str, before: int, count: int) -> list[Pin]:
    """Return an operator's pins below a sequence number, newest first."""
    values = {"operator_id": operator_id, "before": before, "count": count}
    return [_pin(row) for row in connection.execute(_PINS, values)]


def _pin(row: Any) -> Pin:  # noqa: ANN401 - a row of the driver's
    seq, operator_id, origin, category, recipients, max_amount, blocked, updated_us, sponsor_fees = row
    return Pin(
        seq=seq,
        operator_id=operator_id,
        origin=origin,
        category=category,
        recipients=None if recipients is None else tuple(json.loads(recipients)),
        max_amount=max_amount,
        blocked=bool(blocked),
        updated_us=updated_us,
        sponsor_fees=bool(sponsor_fees),
    )
