"""Statements of those who run a server: whether the database answers, and how much work waits in it."""

from typing import Final

from attrs import frozen
from sqlalchemy import bindparam, func, literal_column, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import accounts, chain_transactions, deliveries
from agentpay_server.money.transactions import Kind, State

_STOPPED: Final = select(func.count()).where(accounts.c.stopped_us.is_not(None))
_DUE: Final = select(func.count(), func.min(deliveries.c.due_us)).where(
    deliveries.c.due_us <= bindparam("now_us")
)
# A constant in the text of the statement, as the partial index has it: a parameter would not use the index.
_SUBMITTED: Final = select(func.count()).where(
    chain_transactions.c.state == literal_column(f"'{State.PENDING}'"),
    chain_transactions.c.kind == literal_column(f"'{Kind.TRANSFER}'"),
)


@frozen(kw_only=True)
class Queue:
    """Work that waits in the database, whichever process will do it.

    Attributes:
        deliveries_due: deliveries whose time has come.
        oldest_due_us: since when the first of them waits; None when there is none.
        transfers_submitted: transfers whose transaction is under way.
        stopped_accounts: accounts for which nothing is signed until an operator has looked at them.
    """

    deliveries_due: int
    oldest_due_us: int | None
    transfers_submitted: int
    stopped_accounts: int


def stopped_accounts(connection: Connection) -> int:
    """Return for how many accounts nothing is signed; that it answers at all says that the database does."""
    return int(connection.execute(_STOPPED).scalar_one())


def queue(connection: Connection, now_us: int) -> Queue:
    """Return what waits at a time of the server's clock."""
    due = connection.execute(_DUE, {"now_us": now_us}).one_or_none()
    assert due is not None  # noqa: S101 - a count is always one row
    return Queue(
        deliveries_due=int(due[0]),
        oldest_due_us=None if due[1] is None else int(due[1]),
        transfers_submitted=int(connection.execute(_SUBMITTED).scalar_one()),
        stopped_accounts=stopped_accounts(connection),
    )
