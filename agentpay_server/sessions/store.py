"""SQL statements for sessions and their charges, and which sessions a key may see."""

from operator import itemgetter
from typing import Final

from sqlalchemy import and_, bindparam, exists, func, literal_column, or_, select

from agentpay.contract import identifiers
from agentpay.contract.ext.sessions import SessionStatus
from agentpay_server.database import pages
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows, lock_of
from agentpay_server.database.tables import (
    ChargeRecord,
    SessionRecord,
    accounts,
    channels,
    session_charges,
    sessions,
)
from agentpay_server.platform.errors import not_found
from agentpay_server.platform.principals import Principal

SESSIONS: Final = Rows(SessionRecord, "session_id")
LOCK: Final = lock_of(sessions.c.session_id)
"""Locks sessions."""

CHARGES: Final = Rows(ChargeRecord, "session_id", "idempotency_key")
PAGES: Final = SESSIONS.pages(
    "operator_id",
    equal=("account_id", "status", "idempotency_key"),
    filters={"since_us": pages.since(sessions), "until_us": pages.until(sessions)},
)

IS_OPENING: Final = sessions.c.status == literal_column(f"'{SessionStatus.OPENING}'")
IS_FAILED: Final = sessions.c.status == literal_column(f"'{SessionStatus.FAILED}'")
IS_OPEN: Final = sessions.c.status == literal_column(f"'{SessionStatus.OPEN}'")
IS_CLOSING: Final = sessions.c.status == literal_column(f"'{SessionStatus.CLOSING}'")
IS_DUE: Final = sessions.c.closes_us <= bindparam("now_us")
IS_UNSIGNED: Final = sessions.c.closes_us.is_not(None)
FITS: Final = sessions.c.running_total + bindparam("amount") <= sessions.c.cap
"""Whether a charge of `amount` fits into the cap."""

_IS_ESCROW: Final = select(
    or_(
        exists().where(sessions.c.escrow_token_account == bindparam("address")),
        exists().where(channels.c.escrow_token_account == bindparam("address")),
    )
)
_UNSETTLED: Final = select(func.count()).where(
    sessions.c.account_id == bindparam("account_id"),
    sessions.c.status.in_(
        literal_column(f"'{status}'")
        for status in (SessionStatus.OPENING, SessionStatus.OPEN, SessionStatus.CLOSING)
    ),
)
_DUE: Final = (
    select(sessions.c.session_id, sessions.c.closes_us)
    .where(sessions.c.closes_us.is_not(None))
    .order_by(sessions.c.closes_us)
    .limit(bindparam("count"))
)
_DUE_CHANNELS: Final = (
    select(channels.c.owner_id, channels.c.due_us)
    .where(channels.c.due_us.is_not(None))
    .order_by(channels.c.due_us)
    .limit(bindparam("count"))
)
_CLOSING_CHANNELS: Final = (
    select(channels.c.owner_id)
    .where(channels.c.due_us.is_not(None), channels.c.status == literal_column(f"'{SessionStatus.CLOSING}'"))
    .order_by(channels.c.due_us)
)
_CLAIMED: Final = (
    select(sessions.c.session_id)
    .where(IS_CLOSING, IS_UNSIGNED, sessions.c.error.is_(None))
    .order_by(sessions.c.closes_us)
)
_PAYEES_CREATED: Final = select(func.count()).where(
    sessions.c.account_id == bindparam("account_id"), sessions.c.payee_created_us > bindparam("after_us")
)
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


def is_escrow(connection: Connection, address: str) -> bool:
    """Return whether an address is the escrow of a session or of a channel, current or past."""
    return bool(connection.execute(_IS_ESCROW, {"address": address}).scalar_one())


def unsettled(connection: Connection, account_id: str) -> int:
    """Return how many sessions of an account are unsettled; none is added while it is locked."""
    return int(connection.execute(_UNSETTLED, {"account_id": account_id}).scalar_one())


def due(connection: Connection, count: int) -> list[tuple[str, int]]:
    """Return up to `count` due sessions and owners of channels, each with its time, earliest first."""
    found = [
        (row[0], int(row[1]))
        for statement in (_DUE, _DUE_CHANNELS)
        for row in connection.execute(statement, {"count": count})
    ]
    return sorted(found, key=itemgetter(1))[:count]


def claimed(connection: Connection) -> list[str]:
    """Return what is claimed for closing and has no transaction yet: sessions, and owners of channels."""
    return [
        owner_id
        for statement in (_CLAIMED, _CLOSING_CHANNELS)
        for owner_id in connection.execute(statement).scalars()
    ]


def payees_created(connection: Connection, account_id: str, *, after_us: int) -> int:
    """Return how many of an account's settlements since `after_us` created a payee's token account."""
    values = {"account_id": account_id, "after_us": after_us}
    return int(connection.execute(_PAYEES_CREATED, values).scalar_one())


def chargeable(
    connection: Connection, session_id: str, idempotency_key: str
) -> tuple[SessionRecord | None, str, int | None]:
    """Return a session, its account's policy, and what is charged under a key, if anything is."""
    values = {"session_id": session_id, "idempotency_key": idempotency_key}
    row = connection.execute(_CHARGEABLE, values).one_or_none()
    if row is None:
        return None, "", None
    *columns, policy, charged = row
    return SESSIONS.record(columns), policy, charged


def own_session(connection: Connection, principal: Principal, session_id: str) -> SessionRecord:
    """Return a session that a key may see.

    Raises:
        Problem: `not_found`.
    """
    record = None
    if identifiers.is_identifier(session_id, identifiers.SESSION):
        record = SESSIONS.get(connection, session_id)
    return visible(record, principal, session_id)


def visible(record: SessionRecord | None, principal: Principal, session_id: str) -> SessionRecord:
    """Return a session that was looked up, if a key may see it.

    Raises:
        Problem: `not_found`, the same for a missing session as for one that the key may not see.
    """
    if (
        record is None
        or record.operator_id != principal.operator_id
        or (principal.is_agent and record.account_id != principal.account_id)
    ):
        raise not_found("session", session_id)
    return record
