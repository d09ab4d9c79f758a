"""The operator's name, and counts for the console.

Each count has an index that contains only the counted rows, so history costs nothing.
"""

from typing import Final

from sqlalchemy import BindParameter, bindparam, func, literal_column, select, true

from agentpay.contract.sessions import SessionStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import accounts, deliveries, operators, sessions, transfers, webhooks
from agentpay_server.ledger.deliveries import NEEDS_ATTENTION

UNDELIVERED_MAX: Final = 10_000
"""Maximum count of undelivered deliveries that no replay has delivered."""

_OPERATOR: Final[BindParameter[str]] = bindparam("operator_id")
_NAME: Final = select(operators.c.name).where(operators.c.operator_id == _OPERATOR)
_ACCOUNTS: Final = select(func.count()).where(accounts.c.operator_id == _OPERATOR)
_PAUSED: Final = _ACCOUNTS.where(accounts.c.paused == true())
# Literals, as in the partial indexes: with parameters the indexes would not be used.
_PENDING: Final = select(func.count()).where(
    transfers.c.operator_id == _OPERATOR, transfers.c.status == literal_column("'pending_approval'")
)
_UNDELIVERED: Final = select(func.count()).select_from(
    select(deliveries.c.seq)
    .where(deliveries.c.operator_id == _OPERATOR, *NEEDS_ATTENTION)
    .limit(UNDELIVERED_MAX)
    .subquery()
)
_RETRYING: Final = select(func.count()).select_from(
    select(deliveries.c.seq)
    .where(
        # Of a deleted webhook none is retried.
        deliveries.c.webhook_id.in_(
            select(webhooks.c.webhook_id).where(
                webhooks.c.operator_id == _OPERATOR, webhooks.c.deleted_us.is_(None)
            )
        ),
        deliveries.c.due_us.is_not(None),
        deliveries.c.status == literal_column("'retrying'"),
    )
    .limit(UNDELIVERED_MAX)
    .subquery()
)
_OPEN: Final = select(func.count()).where(
    sessions.c.operator_id == _OPERATOR,
    sessions.c.status.in_(
        [
            literal_column(f"'{status}'")
            for status in (SessionStatus.OPENING, SessionStatus.OPEN, SessionStatus.CLOSING)
        ]
    ),
)


def operator_name(connection: Connection, operator_id: str) -> str:
    return str(connection.execute(_NAME, {"operator_id": operator_id}).scalar_one())


def counts(connection: Connection, operator_id: str) -> dict[str, int]:
    statements = {
        "accounts": _ACCOUNTS,
        "paused_accounts": _PAUSED,
        "pending_approvals": _PENDING,
        "undelivered_deliveries": _UNDELIVERED,
        "retrying_deliveries": _RETRYING,
        "open_sessions": _OPEN,
    }
    operator = {"operator_id": operator_id}
    return {name: int(connection.execute(each, operator).scalar_one()) for name, each in statements.items()}
