"""SQL statements for transfers."""

import json
from collections.abc import Sequence
from typing import Final

from sqlalchemy import bindparam, func, literal_column, or_, select

from agentpay.contract.transfers import TransferStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import TransferRecord, transfers
from agentpay_server.transfers.rules import Split

TRANSFERS: Final = Rows(TransferRecord, "transfer_id")

# A literal in the SQL text, as in the partial index: with a parameter the index would not be used.
_IS_PENDING: Final = transfers.c.status == literal_column(f"'{TransferStatus.PENDING_APPROVAL}'")
_IS_APPROVED: Final = transfers.c.status == literal_column(f"'{TransferStatus.APPROVED}'")
IS_WAITING: Final = or_(_IS_PENDING, _IS_APPROVED)
"""Whether a transfer is pending approval, or a payment that is approved and not signed yet."""

IS_SUBMITTED: Final = transfers.c.status == literal_column(f"'{TransferStatus.SUBMITTED}'")
WAS: Final = transfers.c.status == bindparam("old_status")

_PENDING_OF_KEY: Final = select(func.count()).where(transfers.c.key_id == bindparam("key_id"), _IS_PENDING)

PENDING: Final = TRANSFERS.pages("operator_id", _IS_PENDING)
"""An operator's transfers that are pending approval."""

# Identifiers begin with their creation time. So the last possible identifier of a time separates earlier
# transfers from later ones, without a scan.
_LAST_BEFORE: Final = (
    select(transfers.c.seq)
    .where(transfers.c.transfer_id < bindparam("before_id"))
    .order_by(transfers.c.transfer_id.desc())
    .limit(1)
    .scalar_subquery()
)
PAGES: Final = TRANSFERS.pages(
    "operator_id",
    equal=("account_id", "status", "idempotency_key"),
    filters={
        # An exclusive bound of the creation time; requires `before_id`, an upper bound of older identifiers.
        "since_us": (
            transfers.c.created_us > bindparam("since_us"),
            transfers.c.seq > func.coalesce(_LAST_BEFORE, 0),
        )
    },
)
_DUE: Final = func.min(transfers.c.approval_expires_us)
# Each subquery uses its own partial index.
_NEXT_EXPIRIES: Final = select(
    select(_DUE).where(_IS_PENDING).scalar_subquery(), select(_DUE).where(_IS_APPROVED).scalar_subquery()
)
_EXPIRED: Final = tuple(
    select(transfers)
    .where(waits, transfers.c.approval_expires_us <= bindparam("now_us"))
    .order_by(transfers.c.approval_expires_us, transfers.c.seq)
    .limit(bindparam("count"))
    .with_for_update(skip_locked=True)
    for waits in (_IS_PENDING, _IS_APPROVED)
)


def splits_text(splits: Sequence[Split]) -> str | None:
    """Return splits as they are stored."""
    return json.dumps([[split.recipient, split.amount_micro] for split in splits]) if splits else None


def splits_of(record: TransferRecord) -> list[Split]:
    """Return the splits of a payment; empty for other transfers."""
    return [Split(*split) for split in json.loads(record.splits or "[]")]


def waiting(connection: Connection, transfer_id: str) -> TransferRecord | None:
    """Lock and return a transfer that is pending approval; None if it is not.

    Transfers in other states are not locked, to avoid deadlocks: settling locks the transfer before its
    account, while approving locks the account first.
    """
    return TRANSFERS.get(connection, transfer_id, _IS_PENDING, lock=True)


def pending_of_key(connection: Connection, key_id: str) -> int:
    """Return how many transfers that a key has requested are pending approval."""
    return int(connection.execute(_PENDING_OF_KEY, {"key_id": key_id}).scalar_one())


def approved(connection: Connection, transfer_id: str) -> TransferRecord | None:
    """Lock and return a payment that is approved and not signed yet; None if it is not."""
    return TRANSFERS.get(connection, transfer_id, _IS_APPROVED, lock=True)


def next_expiry_us(connection: Connection) -> int | None:
    """Return when the next pending or approved transfer expires, if any."""
    (due,) = connection.execute(_NEXT_EXPIRIES)
    return min((expires_us for expires_us in due if expires_us is not None), default=None)


def expired(connection: Connection, now_us: int, count: int) -> list[TransferRecord]:
    """Lock and return up to `count` pending and `count` approved transfers that have expired.

    Locked rows are skipped: another transaction is deciding about them.
    """
    return [
        each
        for statement in _EXPIRED
        for each in TRANSFERS.all(connection, statement, now_us=now_us, count=count)
    ]
