"""SQL statements for the charges of sessions and their idempotency keys."""

from typing import Final

from attrs import frozen
from sqlalchemy import and_, bindparam, insert, select, update

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import accounts, session_charges, sessions
from agentpay_server.sessions.store import IS_OPEN, OF_SESSION, SessionRecord


@frozen(kw_only=True)
class Chargeable:
    """`policy` is canonical JSON; `charged` is None if nothing was charged under the key."""

    session: SessionRecord
    policy: str
    charged: int | None


_INSERT: Final = insert(session_charges)
_CHARGEABLE: Final = (
    select(sessions, accounts.c.policy, session_charges.c.amount)
    .join(accounts, accounts.c.account_id == sessions.c.account_id)
    .outerjoin(
        session_charges,
        and_(
            session_charges.c.session_id == sessions.c.session_id,
            session_charges.c.idempotency_key == bindparam("idempotency_key"),
        ),
    )
    .where(sessions.c.session_id == bindparam("session_id"))
)
# Checks status and cap in one statement, so that concurrent charges cannot exceed the cap.
_CHARGE: Final = (
    update(sessions)
    .where(
        OF_SESSION,
        IS_OPEN,
        sessions.c.running_total + bindparam("amount") <= sessions.c.cap,
    )
    .values(running_total=sessions.c.running_total + bindparam("amount"), closes_us=bindparam("closes_us"))
    .returning(sessions.c.running_total)
)


def chargeable(connection: Connection, session_id: str, idempotency_key: str) -> Chargeable | None:
    """None if the session does not exist."""
    values = {"session_id": session_id, "idempotency_key": idempotency_key}
    row = connection.execute(_CHARGEABLE, values).one_or_none()
    if row is None:
        return None
    *columns, policy, charged = row
    return Chargeable(session=SessionRecord(*columns), policy=policy, charged=charged)


def charge(connection: Connection, session_id: str, amount: int, *, closes_us: int | None) -> int | None:
    """Add at least 1 micro-USDC; return the new running total.

    None: the session is not open, or the cap would be exceeded. `closes_us`: when it now closes
    automatically.
    """
    values = {"of_session": session_id, "amount": amount, "closes_us": closes_us}
    return connection.execute(_CHARGE, values).scalar_one_or_none()


def insert_charge(
    connection: Connection, session_id: str, idempotency_key: str, *, amount: int, now_us: int
) -> None:
    """Raises `ConflictError` if the key has already charged this session."""
    connection.execute(
        _INSERT,
        {
            "session_id": session_id,
            "idempotency_key": idempotency_key,
            "amount": amount,
            "created_us": now_us,
        },
    )
