"""SQL statements for the charges of sessions and their idempotency keys."""

from typing import Final

from attrs import frozen
from sqlalchemy import and_, bindparam, insert, select, update

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import accounts, session_charges, sessions
from agentpay_server.sessions.store import IS_OPEN, OF_SESSION, SessionRecord


@frozen(kw_only=True)
class Chargeable:
    """The data needed to judge a charge.

    Attributes:
        policy: the account's policy, as canonical JSON.
        charged: the amount already charged under the key; None if there is no such charge.
    """

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
    """Return the data needed to judge a charge under a key; None if the session does not exist."""
    values = {"session_id": session_id, "idempotency_key": idempotency_key}
    row = connection.execute(_CHARGEABLE, values).one_or_none()
    if row is None:
        return None
    *columns, policy, charged = row
    return Chargeable(session=SessionRecord(*columns), policy=policy, charged=charged)


def charge(connection: Connection, session_id: str, amount: int, *, closes_us: int | None) -> int | None:
    """Add to the running total of an open session, within its cap.

    Args:
        connection: the connection.
        session_id: the session.
        amount: micro-USDC, at least 1.
        closes_us: when the session now closes automatically.

    Returns:
        The new running total; None if the session is not open or the cap would be exceeded.
    """
    values = {"of_session": session_id, "amount": amount, "closes_us": closes_us}
    return connection.execute(_CHARGE, values).scalar_one_or_none()


def insert_charge(
    connection: Connection, session_id: str, idempotency_key: str, *, amount: int, now_us: int
) -> None:
    """Store a charge under its key.

    Raises:
        ConflictError: the key has already charged this session.
    """
    connection.execute(
        _INSERT,
        {
            "session_id": session_id,
            "idempotency_key": idempotency_key,
            "amount": amount,
            "created_us": now_us,
        },
    )
