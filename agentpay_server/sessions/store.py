"""SQL statements for sessions and their idempotency keys.

`charge_store.py` has those for charges, `settlement_store.py` those for closing.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

from attrs import field, frozen
from sqlalchemy import Select, bindparam, func, insert, literal_column, null, select, update

from agentpay.contract.sessions import SessionStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import sessions
from agentpay_server.money import held_keys
from agentpay_server.money.held_keys import HeldKeys


@frozen
class SessionRecord:
    """A row of `sessions`."""

    seq: int
    session_id: str
    operator_id: str
    account_id: str
    key_id: str
    to: str
    recipient_account_id: str | None
    recipient_token_account: str
    category: str | None
    cap: int
    running_total: int
    idempotency_key: str
    held_key: str | None
    key_expires_us: int | None
    status: str
    error: str | None
    message: str | None
    escrow_token_account: str
    tx_signature: str
    settlement_tx_signature: str | None
    settlements: int
    postponements: int
    opened_us: int | None
    settled_us: int | None
    closes_us: int | None
    created_us: int
    claimed_by_operator: bool = field(converter=bool)
    recipient_owner: str | None
    closed_by: str | None
    stuck_reason: str | None
    payee_created_us: int | None

    @property
    def closing_reason(self) -> str | None:
        """Why the settlement is stuck, else which time limit closed the session, else None."""
        return self.stuck_reason or self.closed_by


_INSERT: Final = insert(sessions)
_IS_OPENING: Final = sessions.c.status == literal_column(f"'{SessionStatus.OPENING}'")
IS_OPEN: Final = sessions.c.status == literal_column(f"'{SessionStatus.OPEN}'")
IS_CLOSING: Final = sessions.c.status == literal_column(f"'{SessionStatus.CLOSING}'")
OF_SESSION: Final = sessions.c.session_id == bindparam("of_session")
_BY_ID: Final = select(sessions).where(sessions.c.session_id == bindparam("session_id"))
_BY_ID_LOCKED: Final = _BY_ID.with_for_update()
_HELD_BY: Final = held_keys.statements(sessions, sessions.c.session_id)
_BY_ESCROW: Final = select(sessions.c.seq).where(sessions.c.escrow_token_account == bindparam("address"))
_SET_OPEN: Final = (
    update(sessions)
    .where(OF_SESSION, _IS_OPENING)
    .values(
        status=SessionStatus.OPEN.value,
        tx_signature=bindparam("tx_signature"),
        opened_us=bindparam("opened_us"),
        closes_us=bindparam("closes_us"),
    )
)
_SET_FAILED: Final = (
    update(sessions)
    .where(OF_SESSION, _IS_OPENING)
    .values(
        status=SessionStatus.FAILED.value,
        tx_signature=bindparam("tx_signature"),
        error=bindparam("error"),
        message=bindparam("message"),
        key_expires_us=bindparam("key_expires_us"),
    )
)
_REOPEN: Final = (
    update(sessions)
    .where(OF_SESSION, sessions.c.status == SessionStatus.FAILED.value)
    .values(
        status=SessionStatus.OPEN.value,
        error=null(),
        message=null(),
        tx_signature=bindparam("tx_signature"),
        opened_us=bindparam("opened_us"),
        closes_us=bindparam("closes_us"),
        key_expires_us=null(),
    )
)
_SET_SIGNATURE: Final = (
    update(sessions)
    .where(OF_SESSION, _IS_OPENING)
    .values(
        tx_signature=bindparam("tx_signature"),
    )
)

_PAGE: Final = (
    select(sessions)
    .where(sessions.c.operator_id == bindparam("operator_id"), sessions.c.seq < bindparam("before"))
    .order_by(sessions.c.seq.desc())
    .limit(bindparam("count"))
)
_FILTERS: Final = {
    "account_id": sessions.c.account_id == bindparam("account_id"),
    "status": sessions.c.status == bindparam("status"),
    "idempotency_key": sessions.c.idempotency_key == bindparam("idempotency_key"),
}
_PAGES: Final[dict[tuple[str, ...], Select[Any]]] = {
    names: _PAGE.where(*(_FILTERS[name] for name in names))
    for count in range(len(_FILTERS) + 1)
    for names in combinations(_FILTERS, count)
}
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
_CLAIMED: Final = (
    select(sessions.c.session_id)
    .where(IS_CLOSING, sessions.c.closes_us.is_not(None), sessions.c.error.is_(None))
    .order_by(sessions.c.closes_us)
)
KEYS: Final = HeldKeys(_HELD_BY, SessionRecord, "session_id")
"""The idempotency keys that sessions hold."""

_COLUMNS: Final = tuple(name for name in sessions.columns.keys() if name != "seq")  # noqa: SIM118


def insert_session(connection: Connection, record: SessionRecord) -> None:
    """Store a new session; the database assigns its `seq`."""
    connection.execute(_INSERT, {name: getattr(record, name) for name in _COLUMNS})


def session(connection: Connection, session_id: str, *, lock: bool = False) -> SessionRecord | None:
    """Return a session; with `lock`, locked until the unit of work ends."""
    row = connection.execute(_BY_ID_LOCKED if lock else _BY_ID, {"session_id": session_id}).one_or_none()
    return None if row is None else SessionRecord(*row)


def existing_session(connection: Connection, session_id: str, *, lock: bool = False) -> SessionRecord:
    """Return a session that must exist: sessions are never deleted."""
    found = session(connection, session_id, lock=lock)
    if found is None:
        raise LookupError(f"{session_id} is gone")
    return found


def is_escrow(connection: Connection, address: str) -> bool:
    """Return whether an address is the escrow of a session, current or past."""
    return connection.execute(_BY_ESCROW, {"address": address}).scalar_one_or_none() is not None


# --- Changes of status. Each returns False if another server was faster.


def set_open(
    connection: Connection, session_id: str, *, tx_signature: str, opened_us: int, closes_us: int | None
) -> bool:
    """Set an opening session to open."""
    values = {
        "of_session": session_id,
        "tx_signature": tx_signature,
        "opened_us": opened_us,
        "closes_us": closes_us,
    }
    return connection.execute(_SET_OPEN, values).rowcount == 1


def set_failed(
    connection: Connection,
    session_id: str,
    *,
    tx_signature: str,
    error: str,
    message: str,
    key_expires_us: int,
) -> bool:
    """Set an opening session to failed."""
    values = {
        "of_session": session_id,
        "tx_signature": tx_signature,
        "error": error,
        "message": message,
        "key_expires_us": key_expires_us,
    }
    return connection.execute(_SET_FAILED, values).rowcount == 1


def reopen(
    connection: Connection, session_id: str, *, tx_signature: str, opened_us: int, closes_us: int
) -> bool:
    """Set a failed session to open, because its escrow was funded after all."""
    values = {
        "of_session": session_id,
        "tx_signature": tx_signature,
        "opened_us": opened_us,
        "closes_us": closes_us,
    }
    return connection.execute(_REOPEN, values).rowcount == 1


def set_signature(connection: Connection, session_id: str, tx_signature: str) -> None:
    """Store the newest transaction that funds the escrow of an opening session."""
    connection.execute(_SET_SIGNATURE, {"of_session": session_id, "tx_signature": tx_signature})


# --- Lists


def page(
    connection: Connection, operator_id: str, before: int, count: int, filters: Mapping[str, object]
) -> list[SessionRecord]:
    """Return an operator's sessions below a sequence number, newest first.

    `filters` are required values of `account_id`, `status` and `idempotency_key`.
    """
    values = {"operator_id": operator_id, "before": before, "count": count, **filters}
    statement = _PAGES[tuple(name for name in _FILTERS if name in filters)]
    return [SessionRecord(*row) for row in connection.execute(statement, values)]


def unsettled(connection: Connection, account_id: str) -> int:
    """Return how many sessions of an account are unsettled; none is added while it is locked."""
    return int(connection.execute(_UNSETTLED, {"account_id": account_id}).scalar_one())


def due(connection: Connection, count: int) -> list[tuple[str, int]]:
    """Return up to `count` sessions to close or settle automatically, each with its time, earliest first."""
    return [(row[0], int(row[1])) for row in connection.execute(_DUE, {"count": count})]


def claimed(connection: Connection) -> list[str]:
    """Return the sessions that are claimed for closing and whose settlement is not signed yet."""
    return list(connection.execute(_CLAIMED).scalars())
