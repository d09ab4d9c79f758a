"""SQL statements for history entries."""

from typing import Final

from sqlalchemy import bindparam, literal_column, select, update

from agentpay_server.database import pages
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import EntryRecord, accounts, entries

ENTRIES: Final = Rows(EntryRecord, "seq")
PAGES: Final = ENTRIES.pages(
    "account_id",
    equal=("status",),
    filters={"since_us": (entries.c.created_us > bindparam("since_us"),)},
)
OF_OPERATOR: Final = ENTRIES.pages(
    "operator_id",
    equal=("account_id", "status"),
    filters={"since_us": pages.since(entries), "until_us": pages.until(entries)},
)
_IS_UNOWNED: Final = entries.c.operator_id == literal_column("''")
_UNOWNED: Final = select(entries.c.seq).where(_IS_UNOWNED).limit(1)
_OWN: Final = (
    update(entries)
    .where(_IS_UNOWNED)
    .values(
        operator_id=select(accounts.c.operator_id)
        .where(accounts.c.account_id == entries.c.account_id)
        .scalar_subquery()
    )
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


def insert_entries(connection: Connection, *rows: EntryRecord) -> None:
    """Store history entries."""
    ENTRIES.insert(connection, *rows)


def has_unowned(connection: Connection) -> bool:
    """Return whether entries lack their operator: the version before wrote them, during an upgrade."""
    return connection.execute(_UNOWNED).scalar_one_or_none() is not None


def own(connection: Connection) -> None:
    """Give such entries the operator of their account."""
    connection.execute(_OWN)


def is_deposit_posted(connection: Connection, account_id: str, tx_signature: str) -> bool:
    """Return whether an account's history has a deposit entry for a transaction."""
    values = {"account_id": account_id, "tx_signature": tx_signature}
    return connection.execute(_DEPOSIT, values).scalar_one_or_none() is not None


def newest_signatures(connection: Connection, account_id: str, count: int) -> set[str]:
    """Return the transaction signatures of an account's newest entries."""
    rows = connection.execute(_NEWEST, {"account_id": account_id, "count": count})
    return {signature for signature in rows.scalars() if signature is not None}
