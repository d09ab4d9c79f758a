"""SQL statements for history entries."""

from typing import Final

from attrs import frozen
from sqlalchemy import bindparam, insert, literal_column, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import entries


@frozen
class EntryRecord:
    """A row of `entries`."""

    seq: int
    transaction_id: str
    account_id: str
    type: str
    status: str
    direction: str
    amount: int
    counterparty: str | None
    memo: str | None
    category: str | None
    tx_signature: str | None
    transfer_id: str | None
    session_id: str | None
    rejection_reason: str | None
    created_us: int


_COLUMNS: Final = tuple(column.name for column in entries.columns if column.name != "seq")
_INSERT: Final = insert(entries)
_PAGE: Final = (
    select(entries)
    .where(entries.c.account_id == bindparam("account_id"), entries.c.seq < bindparam("before"))
    .order_by(entries.c.seq.desc())
    .limit(bindparam("count"))
)
_DEPOSIT: Final = select(entries.c.seq).where(
    # A literal in the SQL text: the partial index is not used for a bound parameter.
    entries.c.type == literal_column("'deposit'"),
    entries.c.account_id == bindparam("account_id"),
    entries.c.tx_signature == bindparam("tx_signature"),
)
_NEWEST: Final = (
    select(entries.c.tx_signature)
    .where(entries.c.account_id == bindparam("account_id"))
    .order_by(entries.c.seq.desc())
    .limit(bindparam("count"))
)
_BY_STATUS: Final = entries.c.status == bindparam("status")
_SINCE: Final = entries.c.created_us > bindparam("since_us")
_PAGES: Final = {
    (False, False): _PAGE,
    (True, False): _PAGE.where(_BY_STATUS),
    (False, True): _PAGE.where(_SINCE),
    (True, True): _PAGE.where(_BY_STATUS, _SINCE),
}


def insert_entries(connection: Connection, *rows: dict[str, object]) -> None:
    """Store history entries. A column that a row omits is NULL."""
    connection.execute(_INSERT, [{name: row.get(name) for name in _COLUMNS} for row in rows])


def is_deposit_booked(connection: Connection, account_id: str, tx_signature: str) -> bool:
    """Return whether an account's history has a deposit entry for a transaction."""
    values = {"account_id": account_id, "tx_signature": tx_signature}
    return connection.execute(_DEPOSIT, values).scalar_one_or_none() is not None


def newest_signatures(connection: Connection, account_id: str, count: int) -> set[str]:
    """Return the transaction signatures of an account's newest entries."""
    rows = connection.execute(_NEWEST, {"account_id": account_id, "count": count})
    return {signature for signature in rows.scalars() if signature is not None}


def page(
    connection: Connection,
    account_id: str,
    before: int,
    count: int,
    *,
    status: str | None,
    since_us: int | None,
) -> list[EntryRecord]:
    """Return an account's entries below a sequence number, newest first."""
    values: dict[str, object] = {"account_id": account_id, "before": before, "count": count}
    if status is not None:
        values["status"] = status
    if since_us is not None:
        values["since_us"] = since_us
    statement = _PAGES[status is not None, since_us is not None]
    return [EntryRecord(*row) for row in connection.execute(statement, values)]
