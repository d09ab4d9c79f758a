"""Statements about sessions and their idempotency keys.

Those about charges are in `session_charges.py`, those about closing in `session_settlements.py`.
"""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any, Final

from attrs import field, frozen
from sqlalchemy import Select, bindparam, func, insert, literal_column, null, select, update

from agentpay.contract.sessions import SessionStatus
from agentpay_server.chain.protocol import SignedTransaction
from agentpay_server.database.connection import Connection
from agentpay_server.store import held_keys
from agentpay_server.store.accounts import AccountRecord
from agentpay_server.store.held_keys import HeldKeys
from agentpay_server.store.tables import confirmed_transactions, sessions


@frozen
class SessionRecord:
    """A row of `sessions`, column by column."""

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
    tx_raw: bytes | None = field(repr=False)
    tx_last_valid_block_height: int | None
    settlements: int
    put_offs: int
    deposited: int
    opened_us: int | None
    settled_us: int | None
    closes_us: int | None
    created_us: int
    leased_until_us: int | None
    claimed_by_operator: bool
    recipient_owner: str | None
    closed_by: str | None
    stuck_reason: str | None
    payee_created_us: int | None

    @property
    def closing_reason(self) -> str | None:
        """What the settlement waits for, else which limit of time has closed the session, else None."""
        return self.stuck_reason or self.closed_by

    @property
    def signed(self) -> SignedTransaction | None:
        """The transaction under way, which may land, may have landed, and may be sent again; None if none."""
        is_opening = self.status == SessionStatus.OPENING
        signature = self.tx_signature if is_opening else self.settlement_tx_signature
        if signature is None or self.tx_raw is None or self.tx_last_valid_block_height is None:
            return None
        return SignedTransaction(
            signature=signature,
            raw=self.tx_raw,
            last_valid_block_height=self.tx_last_valid_block_height,
        )


_INSERT: Final = insert(sessions)
_IS_OPENING: Final = sessions.c.status == literal_column(f"'{SessionStatus.OPENING}'")
IS_OPEN: Final = sessions.c.status == literal_column(f"'{SessionStatus.OPEN}'")
IS_CLOSING: Final = sessions.c.status == literal_column(f"'{SessionStatus.CLOSING}'")
_IS_UNDER_WAY: Final = sessions.c.leased_until_us.is_not(None)
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
        tx_raw=null(),
        tx_last_valid_block_height=null(),
        opened_us=bindparam("opened_us"),
        closes_us=bindparam("closes_us"),
        leased_until_us=null(),
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
        tx_raw=null(),
        tx_last_valid_block_height=null(),
        key_expires_us=bindparam("key_expires_us"),
        leased_until_us=null(),
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
_SIGN_OPENING: Final = (
    update(sessions)
    .where(OF_SESSION, _IS_OPENING)
    .values(
        tx_signature=bindparam("tx_signature"),
        tx_raw=bindparam("tx_raw"),
        tx_last_valid_block_height=bindparam("tx_last_valid_block_height"),
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
_OPENING_OF_ACCOUNT: Final = (
    select(sessions)
    .where(_IS_OPENING, sessions.c.account_id == bindparam("account_id"))
    .order_by(sessions.c.seq)
)
_OPENING_CAPS: Final = select(func.coalesce(func.sum(sessions.c.cap), 0)).where(
    _IS_OPENING, sessions.c.account_id == bindparam("account_id")
)
_UNSETTLED: Final = select(func.count()).where(
    sessions.c.account_id == bindparam("account_id"),
    sessions.c.status.in_(
        literal_column(f"'{status}'")
        for status in (SessionStatus.OPENING, SessionStatus.OPEN, SessionStatus.CLOSING)
    ),
)
# Of sessions whose opening was undone, and is sent again.
_VANISHED_CAPS: Final = (
    select(func.coalesce(func.sum(confirmed_transactions.c.reserved), 0))
    .join(sessions, sessions.c.session_id == confirmed_transactions.c.subject)
    .where(
        confirmed_transactions.c.reserved > literal_column("0"),
        sessions.c.account_id == bindparam("account_id"),
    )
)
_ABANDONED: Final = (
    select(sessions)
    .where(_IS_UNDER_WAY, sessions.c.leased_until_us <= bindparam("now_us"))
    .order_by(sessions.c.leased_until_us, sessions.c.seq)
    .limit(bindparam("count"))
)
_ABANDONED_LOCKED: Final = _ABANDONED.with_for_update(skip_locked=True)
_LEASE: Final = (
    update(sessions).where(OF_SESSION, _IS_UNDER_WAY).values(leased_until_us=bindparam("until_us"))
)
_FREE_ALL: Final = update(sessions).where(_IS_UNDER_WAY).values(leased_until_us=0)
_NEXT_CLOSE: Final = select(func.min(sessions.c.closes_us)).where(sessions.c.closes_us.is_not(None))
_DUE: Final = (
    select(sessions.c.session_id)
    .where(sessions.c.closes_us.is_not(None), sessions.c.closes_us <= bindparam("now_us"))
    .order_by(sessions.c.closes_us)
    .limit(bindparam("count"))
)
KEYS: Final = HeldKeys(_HELD_BY, SessionRecord, "session_id")
"""The idempotency keys that sessions hold."""

_COLUMNS: Final = tuple(column.name for column in sessions.columns if column.name != "seq")


def insert_session(connection: Connection, record: SessionRecord) -> None:
    """Store a new session; its `seq` is given by the database."""
    connection.execute(_INSERT, {name: getattr(record, name) for name in _COLUMNS})


def session(connection: Connection, session_id: str, *, lock: bool = False) -> SessionRecord | None:
    """Return a session; with `lock`, nobody else changes it before the transaction ends."""
    row = connection.execute(_BY_ID_LOCKED if lock else _BY_ID, {"session_id": session_id}).one_or_none()
    return None if row is None else SessionRecord(*row)


def is_escrow(connection: Connection, address: str) -> bool:
    """Return whether an address is that of a session's escrow, ended or not."""
    return connection.execute(_BY_ESCROW, {"address": address}).scalar_one_or_none() is not None


# --- Changes of status. Each returns whether it was made: somebody else may have been faster.


def set_open(
    connection: Connection, session_id: str, *, tx_signature: str, opened_us: int, closes_us: int | None
) -> bool:
    """Make an opening session an open one."""
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
    """Make an opening session a failed one."""
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
    """Make a failed session an open one, because its escrow has been funded after all."""
    values = {
        "of_session": session_id,
        "tx_signature": tx_signature,
        "opened_us": opened_us,
        "closes_us": closes_us,
    }
    return connection.execute(_REOPEN, values).rowcount == 1


# --- Transactions under way


def sign_opening(connection: Connection, session_id: str, signed: SignedTransaction) -> None:
    """Put a new transaction in the place of an opening session's one."""
    values = {**transaction_of(session_id, signed), "tx_signature": signed.signature}
    connection.execute(_SIGN_OPENING, values)


def transaction_of(session_id: str, signed: SignedTransaction) -> dict[str, object]:
    """Return the values that put a transaction under way in the place of a session's one."""
    return {
        "of_session": session_id,
        "tx_raw": signed.raw,
        "tx_last_valid_block_height": signed.last_valid_block_height,
    }


# --- Lists


def page(
    connection: Connection, operator_id: str, before: int, count: int, filters: Mapping[str, object]
) -> list[SessionRecord]:
    """Return sessions of an operator, newest first, below a sequence number.

    Args:
        connection: the connection.
        operator_id: whose.
        before: the sequence number.
        count: at most how many.
        filters: what `account_id`, `status` and `idempotency_key` must be.
    """
    values = {"operator_id": operator_id, "before": before, "count": count, **filters}
    statement = _PAGES[tuple(name for name in _FILTERS if name in filters)]
    return [SessionRecord(*row) for row in connection.execute(statement, values)]


def opening(connection: Connection, account_id: str) -> list[SessionRecord]:
    """Return the sessions of an account whose funding is under way, oldest first."""
    return [
        SessionRecord(*row) for row in connection.execute(_OPENING_OF_ACCOUNT, {"account_id": account_id})
    ]


def reserved(connection: Connection, account: AccountRecord) -> int:
    """Return the micro-USDC of an account that count as spent and may yet be given back.

    They are the amounts of its transfers in flight, and the caps of its sessions that are not settled.
    """
    # What is in flight of sessions is a part of what they reserve: it counts once.
    values = {"account_id": account.account_id}
    opening_caps = int(connection.execute(_OPENING_CAPS, values).scalar_one())
    vanished_caps = int(connection.execute(_VANISHED_CAPS, values).scalar_one())
    return account.in_flight - opening_caps - vanished_caps + account.session_reserved


def unsettled(connection: Connection, account_id: str) -> int:
    """Return how many sessions of an account are opening, open or closing.

    While the account is locked none is added.
    """
    return int(connection.execute(_UNSETTLED, {"account_id": account_id}).scalar_one())


def next_close_us(connection: Connection) -> int | None:
    """Return when the next session closes, or is tried to be settled again, by itself; None when none is."""
    value: int | None = connection.execute(_NEXT_CLOSE).scalar_one_or_none()
    return value


def due_to_close(connection: Connection, now_us: int, count: int) -> list[str]:
    """Return up to `count` sessions that close by themselves by now, the longest due first."""
    return list(connection.execute(_DUE, {"now_us": now_us, "count": count}).scalars())


def abandoned(connection: Connection, now_us: int, count: int, *, lock: bool = False) -> list[SessionRecord]:
    """Return up to `count` sessions of all accounts that are opening or closing and leased by nobody.

    Args:
        connection: the connection.
        now_us: the real time: leases that have run out by then are none.
        count: the most to return.
        lock: whether to leave out what another transaction has locked, and to lock what is returned.
    """
    values = {"now_us": now_us, "count": count}
    rows = connection.execute(_ABANDONED_LOCKED if lock else _ABANDONED, values)
    return [SessionRecord(*row) for row in rows]


def lease(connection: Connection, session_ids: Iterable[str], until_us: int) -> None:
    """Lease sessions, those of them that are opening or closing, until `until_us` of real time."""
    values = [{"of_session": session_id, "until_us": until_us} for session_id in session_ids]
    if values:
        connection.execute(_LEASE, values)


def free_all(connection: Connection) -> None:
    """Void all leases: whoever held them is gone."""
    connection.execute(_FREE_ALL)
