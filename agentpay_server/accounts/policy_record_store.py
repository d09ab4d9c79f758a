"""SQL statements for the on-chain records of policies, and when to write them (interface PO12)."""

from typing import Final

from sqlalchemy import bindparam, exists, func, literal_column, not_, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import PolicyRecordRow as PolicyRecordRow
from agentpay_server.database.tables import chain_transactions, policy_records
from agentpay_server.ledger.transactions import Kind, State

RECORDS: Final = Rows(PolicyRecordRow, "account_id")
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


def new_record(account_id: str, *, address: str, due_us: int) -> PolicyRecordRow:
    """Return the record of a policy that must be written to chain for the first time."""
    return PolicyRecordRow(
        account_id=account_id,
        address=address,
        written_version=0,
        tx_signature=None,
        due_us=due_us,
        failures=0,
    )


def due(connection: Connection, now_us: int, count: int) -> list[str]:
    """Return accounts whose record is due and not being written, longest due first."""
    return list(connection.execute(_DUE, {"now_us": now_us, "count": count}).scalars())


def next_due_us(connection: Connection) -> int | None:
    """Return when the next record is due; None if all are written or being written."""
    value = connection.execute(_NEXT_DUE).scalar_one()
    return None if value is None else int(value)
