"""SQL statements for the on-chain records of policies, and when to write them (interface PO12)."""

from typing import Final

from sqlalchemy import bindparam, exists, func, insert, literal_column, not_, select, update

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import PolicyRecord as PolicyRecord
from agentpay_server.database.tables import chain_transactions, policy_records
from agentpay_server.ledger.transactions import Kind, State

_INSERT: Final = insert(policy_records)
_BY_ACCOUNT: Final = select(policy_records).where(policy_records.c.account_id == bindparam("account_id"))
# An account has at most one write in flight; the next one becomes due when it ends.
_IS_IDLE: Final = not_(
    exists().where(
        chain_transactions.c.subject_id == policy_records.c.account_id,
        chain_transactions.c.kind == literal_column(f"'{Kind.POLICY_RECORD}'"),
        chain_transactions.c.state == literal_column(f"'{State.PENDING}'"),
    )
)
_DUE: Final = (
    select(policy_records.c.account_id)
    .where(policy_records.c.due_us <= bindparam("now_us"), _IS_IDLE)
    .order_by(policy_records.c.due_us, policy_records.c.account_id)
    .limit(bindparam("count"))
)
_NEXT_DUE: Final = select(func.min(policy_records.c.due_us)).where(_IS_IDLE)
_SET_DUE: Final = (
    update(policy_records)
    .where(policy_records.c.account_id == bindparam("of_account"))
    .values(due_us=bindparam("due_us"), failures=bindparam("failures"))
)
_SET_WRITTEN: Final = (
    update(policy_records)
    .where(policy_records.c.account_id == bindparam("of_account"))
    .values(
        written_version=bindparam("written_version"),
        tx_signature=bindparam("tx_signature"),
        due_us=bindparam("due_us"),
        failures=0,
    )
)


def record(connection: Connection, account_id: str) -> PolicyRecord | None:
    """Return the record of an account; None if its policy never changed."""
    row = connection.execute(_BY_ACCOUNT, {"account_id": account_id}).one_or_none()
    return None if row is None else PolicyRecord(*row)


def existing_record(connection: Connection, account_id: str) -> PolicyRecord:
    """Return a record that must exist: records are never deleted."""
    found = record(connection, account_id)
    if found is None:
        raise LookupError(f"the policy record of {account_id} is gone")
    return found


def insert_record(connection: Connection, account_id: str, *, address: str, due_us: int) -> None:
    """Store that an account's policy must be written to chain for the first time."""
    connection.execute(
        _INSERT,
        {
            "account_id": account_id,
            "address": address,
            "written_version": 0,
            "tx_signature": None,
            "due_us": due_us,
            "failures": 0,
        },
    )


def set_due(connection: Connection, account_id: str, *, due_us: int, failures: int) -> None:
    """Store when the record must be written next."""
    connection.execute(_SET_DUE, {"of_account": account_id, "due_us": due_us, "failures": failures})


def set_written(
    connection: Connection, account_id: str, *, version: int, tx_signature: str, due_us: int | None
) -> None:
    """Store which version is on chain; `due_us` is set if a newer one must be written."""
    connection.execute(
        _SET_WRITTEN,
        {
            "of_account": account_id,
            "written_version": version,
            "tx_signature": tx_signature,
            "due_us": due_us,
        },
    )


def due(connection: Connection, now_us: int, count: int) -> list[str]:
    """Return accounts whose record is due and not being written, longest due first."""
    return list(connection.execute(_DUE, {"now_us": now_us, "count": count}).scalars())


def next_due_us(connection: Connection) -> int | None:
    """Return when the next record is due; None if all are written or being written."""
    value = connection.execute(_NEXT_DUE).scalar_one()
    return None if value is None else int(value)
