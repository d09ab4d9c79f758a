"""SQL statements for transfers."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import BigInteger, bindparam, func, literal, literal_column, or_, select

from agentpay.contract import codec, identifiers
from agentpay.contract.errors import Refusal
from agentpay.contract.ext.spending import ListTransfers, TransferSort
from agentpay.contract.transfers import TransferStatus
from agentpay.contract.usdc import to_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import TransferRecord, transfers
from agentpay_server.ledger.finding import memo_range
from agentpay_server.platform.clock import HOUR_US, end_of_millisecond_us
from agentpay_server.platform.randomness import earliest_identifier
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

PENDING_BY_EXPIRY: Final = TRANSFERS.sorted_pages("operator_id", transfers.c.approval_expires_us, _IS_PENDING)
"""The same, the soonest to expire first. It reads all that wait for people, and soon expire."""

_near = transfers.alias("near")

# Identifiers begin with their creation time. So the last possible identifier of a time separates earlier
# transfers from later ones, without a scan.
_LAST_BEFORE: Final = (
    select(_near.c.seq)
    .where(_near.c.transfer_id < bindparam("before_id"))
    .order_by(_near.c.transfer_id.desc())
    .limit(1)
    .scalar_subquery()
)
_FIRST_AFTER: Final = (
    select(_near.c.seq)
    .where(_near.c.transfer_id > bindparam("after_id"))
    .order_by(_near.c.transfer_id)
    .limit(1)
    .scalar_subquery()
)
_CLOCKS_APART_US: Final = HOUR_US
"""Tolerated clock difference between servers: a list of a period misses no transfer within it."""
PERIOD: Final = {
    "since_us": (
        transfers.c.created_us > bindparam("since_us"),
        transfers.c.seq > func.coalesce(_LAST_BEFORE, 0),
    ),
    "until_us": (
        transfers.c.created_us <= bindparam("until_us"),
        transfers.c.seq < func.coalesce(_FIRST_AFTER, literal(2**63 - 1, BigInteger)),
    ),
}
"""Filters of lists of transfers and payments; `period` returns their parameters."""
# Without its own index, a filter walks along one of the others, at most once through the whole list.
_FILTERS: Final = {
    **TRANSFERS.equal("account_id", "status", "idempotency_key", "error", "key_id"),
    "memo": (transfers.c.memo_key >= bindparam("memo"), transfers.c.memo_key < bindparam("memo_end")),
    "min_amount": (transfers.c.amount >= bindparam("min_amount"),),
    "max_amount": (transfers.c.amount <= bindparam("max_amount"),),
    **PERIOD,
}
PAGES: Final = TRANSFERS.pages("operator_id", filters=_FILTERS)
SORTED: Final = {
    sort.value: TRANSFERS.sorted_pages(
        "operator_id", transfers.c.amount, filters=_FILTERS, is_descending=sort.value.startswith("-")
    )
    for sort in TransferSort
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


def given(query: ListTransfers, account_id: str | None) -> dict[str, object]:
    """Return the values of the filters that a query gives, for transfers out of an account or all."""
    values: dict[str, object] = {
        "account_id": account_id,
        "status": query.status,
        "idempotency_key": query.idempotency_key,
        "error": query.error,
        "key_id": query.key_id,
        "min_amount": None if query.min_amount is None else to_micro(query.min_amount),
        "max_amount": None if query.max_amount is None else to_micro(query.max_amount),
        **period(query.since, query.until),
    }
    if query.memo is not None:
        values["memo"], values["memo_end"] = memo_range(query.memo)
    return values


def period(since: datetime | None, until: datetime | None) -> dict[str, object]:
    """Return the parameters for transfers after `since`, up to and including `until`."""
    given: dict[str, object] = {}
    if since is not None:
        since_us = given["since_us"] = end_of_millisecond_us(since)
        given["before_id"] = earliest_identifier(identifiers.TRANSFER, since_us - _CLOCKS_APART_US)
    if until is not None:
        until_us = given["until_us"] = end_of_millisecond_us(until)
        given["after_id"] = earliest_identifier(identifiers.TRANSFER, until_us + 1 + _CLOCKS_APART_US)
    return given


def splits_text(splits: Sequence[Split]) -> str | None:
    """Return splits as they are stored."""
    return json.dumps([[split.recipient, split.amount_micro] for split in splits]) if splits else None


def splits_of(record: TransferRecord) -> list[Split]:
    """Return the splits of a payment; empty for other transfers."""
    return [Split(*split) for split in json.loads(record.splits or "[]")]


def refusal_text(refusal: Refusal | None) -> str | None:
    """Return the rule that refused a transfer as it is stored."""
    return None if refusal is None else codec.print_json(codec.unstructure(refusal)).decode()


def refusal_of(record: TransferRecord) -> Refusal | None:
    """Return the rule that refused a transfer; None without one."""
    return None if record.refusal is None else codec.structure(json.loads(record.refusal), Refusal)


def waiting(connection: Connection, transfer_id: str) -> TransferRecord | None:
    """Lock and return a transfer that is pending approval; None if it is not."""
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
