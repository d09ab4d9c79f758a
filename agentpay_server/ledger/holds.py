"""What purchases hold of the limits of their account and of their key, one row for each.

    (none) ── a session's cap, or the most of a payment, is reserved ──► open
    (none) ── a key with a limited total requests a transfer ──────────► closed
    open ── paid out, or it never moved anything ──────────────────────► closed, with what it cost
    closed ── its money moved after all ───────────────────────────────► open, or closed with the amount

An open hold reserves its amount, toward the daily limit, and its fees, toward the fee budget. A transfer's is
closed from the start: until it is final its transaction reserves both, and once signed it counts as a spend
(`spending.py`). The amount of a hold, open or closed, counts toward the total of its key.

A hold is stored with its account locked, in the commit of the signed bytes or of the request, and changed in
that of the outcome. What has waited is refused without that lock: it only releases.
"""

from typing import Any, Final

from attrs import evolve, frozen
from sqlalchemy import Boolean, ColumnElement, Select, Text, bindparam, func, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import HoldRecord, holds

HOLDS: Final = Rows(HoldRecord, "subject_id")

_OF_KEY: Final = select(func.coalesce(func.sum(holds.c.amount), 0)).where(
    holds.c.key_id == bindparam("key_id")
)


def reserved(account_id: ColumnElement[str]) -> Select[Any]:
    """Return the statement that sums the micro-USDC which the open holds of an account reserve."""
    total = func.coalesce(func.sum(holds.c.amount), 0)
    return select(total).where(holds.c.account_id == account_id, ~holds.c.closed)


_ACCOUNT: Final = bindparam("account_id", type_=Text)
RESERVED: Final = reserved(_ACCOUNT)
OPEN_SUBJECTS: Final = select(holds.c.subject_id).where(holds.c.account_id == _ACCOUNT, ~holds.c.closed)
"""The purchases of an account whose holds are open."""

FEES: Final = select(func.coalesce(func.sum(holds.c.fees), 0)).where(
    holds.c.account_id == _ACCOUNT,
    holds.c.by_operator == bindparam("by_operator", type_=Boolean),
    ~holds.c.closed,
)
"""The lamports that an account's open holds reserve, of operators' or of agents' work."""


@frozen
class HoldChange:
    """What becomes of a hold, as data: its amount in micro-USDC, and whether it is open.

    A transfer of a key without a limit has no hold, so that nothing changes.
    """

    subject_id: str
    amount: int = 0
    is_open: bool = False

    def write(self, connection: Connection) -> None:
        """Write it."""
        HOLDS.change(connection, self.subject_id, amount=self.amount, closed=not self.is_open)


def reserve(connection: Connection, hold: HoldRecord, *, fees: int) -> None:
    """Store a hold as open, with the fees that it reserves. What has waited for approval has one already."""
    values: dict[str, Any] = {"by_operator": hold.by_operator, "fees": fees, "closed": False}
    if hold.key_id is None or HOLDS.change(connection, hold, **values) is None:
        HOLDS.insert(connection, evolve(hold, **values))


def spent_by_key(connection: Connection, key_id: str) -> int:
    """Return the micro-USDC that count toward a key's total. For a decision, its account must be locked."""
    return int(connection.execute(_OF_KEY, {"key_id": key_id}).scalar_one())
