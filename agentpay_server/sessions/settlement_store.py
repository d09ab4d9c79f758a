"""SQL statements for the closing of sessions: the claim, the settling transaction, the end."""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Boolean, Integer, bindparam, func, null, select, type_coerce, update
from sqlalchemy.sql.dml import ReturningUpdate

from agentpay.contract.sessions import SessionStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import sessions
from agentpay_server.sessions.store import IS_CLOSING, IS_OPEN, OF_SESSION, SessionRecord

_UPDATED: Final = tuple(
    # SQLite has no booleans, and SQLAlchemy converts them only in the results of a SELECT.
    type_coerce(each, Integer) if isinstance(each.type, Boolean) else each
    for each in sessions.columns
)
_CLAIM_CLOSING: Final = (
    update(sessions)
    .where(OF_SESSION, IS_OPEN)
    .values(status=SessionStatus.CLOSING.value, closes_us=bindparam("sign_us"))
    .returning(*_UPDATED)
)
# A charge may have extended the time limit since the session was found due.
_CLAIM_DUE: Final = _CLAIM_CLOSING.where(sessions.c.closes_us <= bindparam("now_us")).values(
    closed_by=bindparam("closed_by")
)
_CLAIM_POSTPONED: Final = (
    update(sessions)
    .where(OF_SESSION, IS_CLOSING, sessions.c.closes_us.is_not(None))
    .values(error=null(), message=null(), closes_us=bindparam("sign_us"))
)
_SIGN_SETTLEMENT: Final = (
    update(sessions)
    .where(OF_SESSION, IS_CLOSING)
    .values(
        error=null(),
        message=null(),
        stuck_reason=null(),
        settlement_tx_signature=bindparam("settlement_tx_signature"),
        settlements=sessions.c.settlements + 1,
        payee_created_us=bindparam("payee_created_us"),
        # Another process may have postponed it meanwhile.
        closes_us=null(),
    )
    .returning(*_UPDATED)
)
_DROP_SETTLEMENT: Final = (
    update(sessions)
    .where(OF_SESSION, IS_CLOSING)
    .values(
        settlement_tx_signature=null(),
        payee_created_us=null(),
        closes_us=bindparam("sign_us"),
    )
    .returning(*_UPDATED)
)
_POSTPONE: Final = _DROP_SETTLEMENT.values(
    error=bindparam("error"),
    message=bindparam("message"),
    stuck_reason=bindparam("stuck_reason"),
    postponements=sessions.c.postponements + 1,
)
_SET_SETTLED: Final = (
    update(sessions)
    .where(OF_SESSION, IS_CLOSING)
    .values(
        status=SessionStatus.SETTLED.value,
        settlement_tx_signature=bindparam("settlement_tx_signature"),
        settled_us=bindparam("settled_us"),
        closes_us=null(),
        key_expires_us=bindparam("key_expires_us"),
    )
)


_PAYEES_CREATED: Final = select(func.count()).where(
    sessions.c.account_id == bindparam("account_id"), sessions.c.payee_created_us > bindparam("after_us")
)


def payees_created(connection: Connection, account_id: str, *, after_us: int) -> int:
    """Return how many of an account's settlements since `after_us` created a payee's token account."""
    values = {"account_id": account_id, "after_us": after_us}
    return int(connection.execute(_PAYEES_CREATED, values).scalar_one())


def claim_closing(connection: Connection, session_id: str, *, sign_us: int) -> SessionRecord | None:
    """Set an open session to closing, to be settled from `sign_us` on. It accepts no more charges.

    Returns:
        The updated session; None if it is not open.
    """
    values = {"of_session": session_id, "sign_us": sign_us}
    return _updated(connection, _CLAIM_CLOSING, values)


def claim_due(
    connection: Connection, session_id: str, *, now_us: int, closed_by: str, sign_us: int
) -> SessionRecord | None:
    """Set an open session to closing if its time limit has passed at `now_us`; see `claim_closing`.

    `closed_by` is the time limit that closes it.
    """
    values = {"of_session": session_id, "now_us": now_us, "closed_by": closed_by, "sign_us": sign_us}
    return _updated(connection, _CLAIM_DUE, values)


def claim_postponed(connection: Connection, session_id: str, *, sign_us: int) -> bool:
    """Schedule the retry of a postponed settlement, from `sign_us` on."""
    values = {"of_session": session_id, "sign_us": sign_us}
    return connection.execute(_CLAIM_POSTPONED, values).rowcount == 1


def set_settled(
    connection: Connection, session_id: str, *, tx_signature: str, settled_us: int, key_expires_us: int
) -> bool:
    """Set a closing session to settled."""
    values = {
        "of_session": session_id,
        "settlement_tx_signature": tx_signature,
        "settled_us": settled_us,
        "key_expires_us": key_expires_us,
    }
    return connection.execute(_SET_SETTLED, values).rowcount == 1


def sign_settlement(
    connection: Connection, session_id: str, tx_signature: str, *, payee_created_us: int | None
) -> SessionRecord:
    """Store the transaction that settles a closing session, and return the session.

    `payee_created_us` is the current time if the transaction creates the payee's token account.
    """
    values = {
        "of_session": session_id,
        "settlement_tx_signature": tx_signature,
        "payee_created_us": payee_created_us,
    }
    return _still_closing(connection, _SIGN_SETTLEMENT, values)


def drop_settlement(connection: Connection, session_id: str, *, sign_us: int) -> SessionRecord:
    """Store that another settlement must be signed, from `sign_us` on, and return the session."""
    return _still_closing(connection, _DROP_SETTLEMENT, {"of_session": session_id, "sign_us": sign_us})


def postpone(
    connection: Connection,
    session_id: str,
    *,
    closes_us: int,
    error: str,
    message: str,
    stuck_reason: str,
) -> SessionRecord:
    """Store why a closing session cannot be settled now, and when to retry (`closes_us`); return the session.

    `stuck_reason` is the public code of the condition.
    """
    values = {
        "of_session": session_id,
        "error": error,
        "message": message,
        "stuck_reason": stuck_reason,
        "sign_us": closes_us,
    }
    return _still_closing(connection, _POSTPONE, values)


def _updated(
    connection: Connection, statement: ReturningUpdate[Any], values: Mapping[str, object]
) -> SessionRecord | None:
    row = connection.execute(statement, values).one_or_none()
    return None if row is None else SessionRecord(*row)


def _still_closing(
    connection: Connection, statement: ReturningUpdate[Any], values: Mapping[str, object]
) -> SessionRecord:
    session = _updated(connection, statement, values)
    if session is None:
        raise ValueError(f"{values['of_session']} is not closing")
    return session
