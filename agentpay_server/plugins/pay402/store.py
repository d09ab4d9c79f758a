"""SQL statements for payments behind HTTP 402, and for pinned origins."""

import json
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import bindparam, func, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Pages, Rows
from agentpay_server.database.tables import (
    PaymentRow,
    PinRecord,
    TransferRecord,
    payments,
    transfers,
)
from agentpay_server.transfers.store import PERIOD, TRANSFERS

PINS: Final = Rows(PinRecord, "operator_id", "origin")
PIN_PAGES: Final = PINS.pages("operator_id")
PAYMENTS: Final = Rows(PaymentRow, "transfer_id")
_IS_UNSIGNED: Final = payments.c.raw.is_(None)
IS_UNDELIVERED: Final = payments.c.outcome_status.is_(None) | ~payments.c.outcome_status.between(200, 299)
"""No delivery is reported: the last report is of a failure or a redirect, or no report exists."""

_NEXT_NONCE: Final = select(func.coalesce(func.max(payments.c.nonce) + 1, 0)).where(
    payments.c.account_id == bindparam("account_id"), payments.c.blockhash == bindparam("blockhash")
)
_TRANSFER_COLUMNS: Final = len(transfers.columns)


def _both(row: Sequence[Any]) -> tuple[TransferRecord, PaymentRow]:
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
        # The value is the status of a payment that has settled.
        "undelivered": (
            transfers.c.status == bindparam("undelivered"),
            ~payments.c.outcome_status.between(200, 399),
            transfers.c.amount > 0,
        ),
        "transfer_id": (payments.c.transfer_id == bindparam("transfer_id"),),
        "idempotency_key": (
            transfers.c.operator_id == payments.c.operator_id,
            transfers.c.idempotency_key == bindparam("idempotency_key"),
        ),
        **PERIOD,
    },
    few="idempotency_key",
)


def sign(connection: Connection, record: PaymentRow) -> None:
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


def addresses_of(pin: PinRecord) -> tuple[str, ...] | None:
    """Return the only recipients that a pin allows; None for all."""
    return None if pin.recipients is None else tuple(json.loads(pin.recipients))


def addresses_text(addresses: Sequence[str] | None) -> str | None:
    """Return the recipients of a pin as they are stored."""
    return None if addresses is None else json.dumps(addresses)
