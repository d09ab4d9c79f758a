"""Statements for health and metrics: whether the database responds, and how much work is queued."""

from typing import Final

from attrs import frozen
from sqlalchemy import bindparam, func, literal_column, select

from agentpay_server.database import state
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import accounts, chain_transactions, deliveries
from agentpay_server.ledger.transactions import Kind, State

_SUSPENDED: Final = select(func.count()).where(accounts.c.suspended_us.is_not(None))
_DUE: Final = select(func.count(), func.min(deliveries.c.due_us)).where(
    deliveries.c.due_us <= bindparam("now_us")
)
# A literal, as in the partial index, which a parameter would prevent from being used.
_SUBMITTED: Final = select(func.count()).where(
    chain_transactions.c.state == literal_column(f"'{State.PENDING}'"),
    chain_transactions.c.kind == literal_column(f"'{Kind.TRANSFER}'"),
)


_WRITTEN: Final = "readiness"


@frozen(kw_only=True)
class Queue:
    """Work queued in the database, for any server process.

    Attributes:
        oldest_due_us: when the oldest due delivery became due.
        stopped_accounts: nothing is signed for them until an operator reviews them.
    """

    deliveries_due: int
    oldest_due_us: int | None
    transfers_submitted: int
    stopped_accounts: int


def write(connection: Connection, now_us: int) -> None:
    """Prove that the database can write: a full disk can still be read."""
    state.put(connection, _WRITTEN, str(now_us).encode("ascii"))


def stopped_accounts(connection: Connection) -> int:
    """Also proves that the database responds."""
    return int(connection.execute(_SUSPENDED).scalar_one())


def queue(connection: Connection, now_us: int) -> Queue:
    due = connection.execute(_DUE, {"now_us": now_us}).one_or_none()
    assert due is not None  # noqa: S101 - a count is always one row
    return Queue(
        deliveries_due=int(due[0]),
        oldest_due_us=None if due[1] is None else int(due[1]),
        transfers_submitted=int(connection.execute(_SUBMITTED).scalar_one()),
        stopped_accounts=stopped_accounts(connection),
    )
