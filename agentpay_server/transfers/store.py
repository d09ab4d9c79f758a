"""SQL statements for transfers and the idempotency keys that they hold."""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from attrs import frozen
from sqlalchemy import Select, and_, bindparam, func, insert, literal_column, select, update

from agentpay.contract.transfers import TransferStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import transfers
from agentpay_server.money import held_keys
from agentpay_server.money.held_keys import HeldKeys
from agentpay_server.transfers.rules import Split


@frozen
class TransferRecord:
    """A row of `transfers`."""

    seq: int
    transfer_id: str
    operator_id: str
    account_id: str
    key_id: str
    to: str
    recipient_account_id: str | None
    recipient_token_account: str | None
    amount: int
    memo: str | None
    category: str | None
    idempotency_key: str
    held_key: str | None
    key_expires_us: int | None
    status: str
    error: str | None
    message: str | None
    tx_signature: str | None
    settled_us: int | None
    created_us: int
    approval_expires_us: int | None
    claimed_by_operator: bool
    payment_digest: str | None = None
    splits: str | None = None


_INSERT: Final = insert(transfers)
# A literal in the SQL text, as in the partial index: with a parameter the index would not be used.
_IS_PENDING: Final = transfers.c.status == literal_column(f"'{TransferStatus.PENDING_APPROVAL}'")
_IS_APPROVED: Final = transfers.c.status == literal_column(f"'{TransferStatus.APPROVED}'")
_BY_ID: Final = select(transfers).where(transfers.c.transfer_id == bindparam("transfer_id"))
_BY_ID_LOCKED: Final = _BY_ID.with_for_update()
_WAITING: Final = _BY_ID.where(_IS_PENDING).with_for_update()
_APPROVED: Final = _BY_ID.where(_IS_APPROVED).with_for_update()
_HELD_BY: Final = held_keys.statements(transfers, transfers.c.transfer_id)
_SET_SIGNATURE: Final = (
    update(transfers)
    .where(transfers.c.transfer_id == bindparam("of_transfer"))
    .values(tx_signature=bindparam("tx_signature"))
)
_FINISH: Final = (
    update(transfers)
    .where(transfers.c.transfer_id == bindparam("of_transfer"), transfers.c.status == bindparam("old_status"))
    .values(
        status=bindparam("new_status"),
        error=bindparam("error"),
        message=bindparam("message"),
        tx_signature=bindparam("tx_signature"),
        settled_us=bindparam("settled_us"),
        key_expires_us=bindparam("key_expires_us"),
    )
)
_DECIDE: Final = (
    update(transfers)
    .where(transfers.c.transfer_id == bindparam("of_transfer"), _IS_PENDING | _IS_APPROVED)
    .values(
        status=bindparam("new_status"),
        category=bindparam("category"),
        approval_expires_us=bindparam("approval_expires_us"),
        recipient_account_id=bindparam("recipient_account_id"),
        recipient_token_account=bindparam("recipient_token_account"),
        error=bindparam("error"),
        message=bindparam("message"),
        tx_signature=bindparam("tx_signature"),
        key_expires_us=bindparam("key_expires_us"),
    )
)
_PENDING_PAGE: Final = (
    select(transfers)
    .where(
        transfers.c.operator_id == bindparam("operator_id"),
        _IS_PENDING,
        transfers.c.seq < bindparam("before"),
    )
    .order_by(transfers.c.seq.desc())
    .limit(bindparam("count"))
)
# Identifiers begin with their creation time. So the last possible identifier of a time separates earlier
# transfers from later ones, without a scan.
_LAST_BEFORE: Final = (
    select(transfers.c.seq)
    .where(transfers.c.transfer_id < bindparam("before_id"))
    .order_by(transfers.c.transfer_id.desc())
    .limit(1)
    .scalar_subquery()
)
_FILTERS: Final = {
    "account_id": transfers.c.account_id == bindparam("account_id"),
    "status": transfers.c.status == bindparam("status"),
    "idempotency_key": transfers.c.idempotency_key == bindparam("idempotency_key"),
    "since_us": and_(
        transfers.c.created_us > bindparam("since_us"),
        transfers.c.seq > func.coalesce(_LAST_BEFORE, 0),
    ),
}
_PAGE: Final = (
    select(transfers)
    .where(transfers.c.operator_id == bindparam("operator_id"), transfers.c.seq < bindparam("before"))
    .order_by(transfers.c.seq.desc())
    .limit(bindparam("count"))
)
_PAGES: Final[dict[tuple[str, ...], Select[Any]]] = {
    names: _PAGE.where(*(_FILTERS[name] for name in names))
    for count in range(len(_FILTERS) + 1)
    for names in combinations(_FILTERS, count)
}
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
KEYS: Final = HeldKeys(_HELD_BY, TransferRecord, "transfer_id")
"""The idempotency keys that transfers hold."""

_COLUMNS: Final = tuple(column.name for column in transfers.columns if column.name != "seq")


def splits_text(splits: Sequence[Split]) -> str | None:
    """Return splits as they are stored."""
    return json.dumps([[split.recipient, split.amount_micro] for split in splits]) if splits else None


def splits_of(record: TransferRecord) -> list[Split]:
    """Return the splits of a payment; empty for other transfers."""
    return [Split(*split) for split in json.loads(record.splits or "[]")]


def insert_transfer(connection: Connection, record: TransferRecord) -> None:
    """Store a new transfer; the database assigns its `seq`."""
    connection.execute(_INSERT, {name: getattr(record, name) for name in _COLUMNS})


def transfer(connection: Connection, transfer_id: str, *, lock: bool = False) -> TransferRecord | None:
    """Return a transfer; with `lock`, locked until the unit of work ends."""
    row = connection.execute(_BY_ID_LOCKED if lock else _BY_ID, {"transfer_id": transfer_id}).one_or_none()
    return None if row is None else TransferRecord(*row)


def existing_transfer(connection: Connection, transfer_id: str, *, lock: bool = False) -> TransferRecord:
    """Return a transfer that must exist: transfers are never deleted."""
    found = transfer(connection, transfer_id, lock=lock)
    if found is None:
        raise LookupError(f"{transfer_id} is gone")
    return found


def waiting(connection: Connection, transfer_id: str) -> TransferRecord | None:
    """Lock and return a transfer that is pending approval; None if it is not.

    Transfers in other states are not locked, to avoid deadlocks: settling locks the transfer before its
    account, while approving locks the account first.
    """
    row = connection.execute(_WAITING, {"transfer_id": transfer_id}).one_or_none()
    return None if row is None else TransferRecord(*row)


def approved(connection: Connection, transfer_id: str) -> TransferRecord | None:
    """Lock and return a payment that is approved and not signed yet; None if it is not."""
    row = connection.execute(_APPROVED, {"transfer_id": transfer_id}).one_or_none()
    return None if row is None else TransferRecord(*row)


def set_signature(connection: Connection, transfer_id: str, tx_signature: str) -> None:
    """Store the newest transaction of a submitted transfer."""
    connection.execute(_SET_SIGNATURE, {"of_transfer": transfer_id, "tx_signature": tx_signature})


def finish(connection: Connection, end: TransferRecord, *, before: str) -> None:
    """Set a transfer with status `before` to the final state `end`.

    Its transaction has left `pending` in the same commit, so no other driver can do the same.

    Raises:
        ValueError: its status is not `before`.
    """
    values = {
        "of_transfer": end.transfer_id,
        "old_status": before,
        "new_status": end.status,
        "error": end.error,
        "message": end.message,
        "tx_signature": end.tx_signature,
        "settled_us": end.settled_us,
        "key_expires_us": end.key_expires_us,
    }
    if connection.execute(_FINISH, values).rowcount != 1:
        raise ValueError(f"{end.transfer_id} is not {before}")


def decide(connection: Connection, decided: TransferRecord) -> bool:
    """Store the decision about a transfer that is pending approval or approved; its terms do not change.

    Returns:
        False if the transfer is in another state; nothing was changed.
    """
    values = {
        "of_transfer": decided.transfer_id,
        "new_status": decided.status,
        "category": decided.category,
        "approval_expires_us": decided.approval_expires_us,
        "recipient_account_id": decided.recipient_account_id,
        "recipient_token_account": decided.recipient_token_account,
        "error": decided.error,
        "message": decided.message,
        "tx_signature": decided.tx_signature,
        "key_expires_us": decided.key_expires_us,
    }
    return connection.execute(_DECIDE, values).rowcount == 1


def pending_page(connection: Connection, operator_id: str, before: int, count: int) -> list[TransferRecord]:
    """Return an operator's transfers pending approval below a sequence number, newest first."""
    values = {"operator_id": operator_id, "before": before, "count": count}
    return [TransferRecord(*row) for row in connection.execute(_PENDING_PAGE, values)]


def page(
    connection: Connection, operator_id: str, before: int, count: int, filters: Mapping[str, object]
) -> list[TransferRecord]:
    """Return an operator's transfers below a sequence number, newest first.

    `filters` are required values of `account_id`, `status` and `idempotency_key`, and `since_us`, an
    exclusive lower bound of the creation time. `since_us` requires `before_id`, an upper bound of older
    identifiers.
    """
    statement = _PAGES[tuple(name for name in _FILTERS if name in filters)]
    values = {"operator_id": operator_id, "before": before, "count": count, **filters}
    return [TransferRecord(*row) for row in connection.execute(statement, values)]


def next_expiry_us(connection: Connection) -> int | None:
    """Return when the next pending or approved transfer expires, if any."""
    (due,) = connection.execute(_NEXT_EXPIRIES)
    return min((expires_us for expires_us in due if expires_us is not None), default=None)


def expired(connection: Connection, now_us: int, count: int) -> list[TransferRecord]:
    """Lock and return up to `count` pending and `count` approved transfers that have expired.

    Locked rows are skipped: another transaction is deciding about them.
    """
    values = {"now_us": now_us, "count": count}
    return [TransferRecord(*row) for waiting in _EXPIRED for row in connection.execute(waiting, values)]
