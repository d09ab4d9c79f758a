"""Statements about the closing of sessions: who claims it, the transaction that settles it, its end."""

from typing import Final

from sqlalchemy import bindparam, func, null, select, update

from agentpay.contract.sessions import SessionStatus
from agentpay_server.chain.protocol import SignedTransaction
from agentpay_server.database.connection import Connection
from agentpay_server.store.sessions import IS_CLOSING, IS_OPEN, OF_SESSION, transaction_of
from agentpay_server.store.tables import sessions

_BY_SETTLEMENT: Final = select(sessions.c.seq).where(
    sessions.c.settlement_tx_signature == bindparam("tx_signature")
)
_CLAIM_CLOSING: Final = (
    update(sessions)
    .where(OF_SESSION, IS_OPEN)
    .values(
        status=SessionStatus.CLOSING.value, closes_us=null(), leased_until_us=bindparam("leased_until_us")
    )
)
# A charge may have come since it was found due, and have moved the limit on.
_CLAIM_DUE: Final = _CLAIM_CLOSING.where(sessions.c.closes_us <= bindparam("now_us")).values(
    closed_by=bindparam("closed_by")
)
_CLAIM_PUT_OFF: Final = (
    update(sessions)
    .where(OF_SESSION, IS_CLOSING, sessions.c.closes_us.is_not(None))
    .values(error=null(), message=null(), closes_us=null(), leased_until_us=bindparam("leased_until_us"))
)
_SIGN_SETTLEMENT: Final = (
    update(sessions)
    .where(OF_SESSION, IS_CLOSING)
    .values(
        error=null(),
        message=null(),
        stuck_reason=null(),
        settlement_tx_signature=bindparam("settlement_tx_signature"),
        tx_raw=bindparam("tx_raw"),
        tx_last_valid_block_height=bindparam("tx_last_valid_block_height"),
        settlements=sessions.c.settlements + 1,
        deposited=bindparam("deposited"),
        payee_created_us=bindparam("payee_created_us"),
        # It may have been put off meanwhile.
        closes_us=null(),
        leased_until_us=bindparam("leased_until_us"),
    )
)
_DROP_SETTLEMENT: Final = (
    update(sessions)
    .where(OF_SESSION, IS_CLOSING)
    .values(
        settlement_tx_signature=null(),
        tx_raw=null(),
        tx_last_valid_block_height=null(),
        deposited=0,
        payee_created_us=null(),
        leased_until_us=bindparam("leased_until_us"),
    )
)
_PUT_OFF: Final = _DROP_SETTLEMENT.values(
    error=bindparam("error"),
    message=bindparam("message"),
    stuck_reason=bindparam("stuck_reason"),
    closes_us=bindparam("closes_us"),
    put_offs=sessions.c.put_offs + 1,
    leased_until_us=null(),
)
_SET_SETTLED: Final = (
    update(sessions)
    .where(OF_SESSION, IS_CLOSING)
    .values(
        status=SessionStatus.SETTLED.value,
        settlement_tx_signature=bindparam("settlement_tx_signature"),
        tx_raw=null(),
        tx_last_valid_block_height=null(),
        settled_us=bindparam("settled_us"),
        closes_us=null(),
        key_expires_us=bindparam("key_expires_us"),
        leased_until_us=null(),
    )
)


_PAYEES_CREATED: Final = select(func.count()).where(
    sessions.c.account_id == bindparam("account_id"), sessions.c.payee_created_us > bindparam("after_us")
)


def payees_created(connection: Connection, account_id: str, *, after_us: int) -> int:
    """Return for how many sessions of an account the payee's token account was created again since a time."""
    values = {"account_id": account_id, "after_us": after_us}
    return int(connection.execute(_PAYEES_CREATED, values).scalar_one())


def is_settlement(connection: Connection, tx_signature: str) -> bool:
    """Return whether a transaction settles a session: what it pays, to either side, is booked with that."""
    return connection.execute(_BY_SETTLEMENT, {"tx_signature": tx_signature}).scalar_one_or_none() is not None


def claim_closing(connection: Connection, session_id: str, *, until_us: int) -> bool:
    """Make an open session a closing one, leased until `until_us` of real time: no charge is accepted now."""
    values = {"of_session": session_id, "leased_until_us": until_us}
    return connection.execute(_CLAIM_CLOSING, values).rowcount == 1


def claim_due(connection: Connection, session_id: str, *, now_us: int, closed_by: str, until_us: int) -> bool:
    """Make an open session that is due to close by itself a closing one, as `claim_closing` does.

    Args:
        connection: the connection.
        session_id: the session.
        now_us: the time by which it must be due.
        closed_by: which limit of time closes it.
        until_us: the end of the lease, in real time.
    """
    values = {"of_session": session_id, "now_us": now_us, "closed_by": closed_by, "leased_until_us": until_us}
    return connection.execute(_CLAIM_DUE, values).rowcount == 1


def claim_put_off(connection: Connection, session_id: str, *, until_us: int) -> bool:
    """Lease a closing session that was put off until `until_us` of real time: it is tried anew."""
    values = {"of_session": session_id, "leased_until_us": until_us}
    return connection.execute(_CLAIM_PUT_OFF, values).rowcount == 1


def set_settled(
    connection: Connection, session_id: str, *, tx_signature: str, settled_us: int, key_expires_us: int
) -> bool:
    """Make a closing session a settled one."""
    values = {
        "of_session": session_id,
        "settlement_tx_signature": tx_signature,
        "settled_us": settled_us,
        "key_expires_us": key_expires_us,
    }
    return connection.execute(_SET_SETTLED, values).rowcount == 1


def sign_settlement(
    connection: Connection,
    session_id: str,
    signed: SignedTransaction,
    *,
    deposited: int,
    payee_created_us: int | None,
    until_us: int,
) -> None:
    """Store the settling transaction of a closing session.

    Args:
        connection: the connection.
        session_id: the session.
        signed: the transaction.
        deposited: micro-USDC that it returns beyond the cap.
        payee_created_us: the time, if it creates a token account for the payee.
        until_us: the end of its lease, in real time.
    """
    values = {
        **transaction_of(session_id, signed),
        "settlement_tx_signature": signed.signature,
        "deposited": deposited,
        "payee_created_us": payee_created_us,
        "leased_until_us": until_us,
    }
    connection.execute(_SIGN_SETTLEMENT, values)


def drop_settlement(connection: Connection, session_id: str, *, until_us: int) -> None:
    """Store that another settlement is to be signed, by who leases it until `until_us` of real time."""
    connection.execute(_DROP_SETTLEMENT, {"of_session": session_id, "leased_until_us": until_us})


def put_off(
    connection: Connection,
    session_id: str,
    *,
    closes_us: int,
    error: str,
    message: str,
    stuck_reason: str,
) -> None:
    """Store that no settlement of a closing session can be made for now; nobody drives it.

    Args:
        connection: the connection.
        session_id: the session.
        closes_us: when it is tried again by itself.
        error: the code of what is in the way.
        message: the sentence that explains it.
        stuck_reason: what it waits for.
    """
    values = {
        "of_session": session_id,
        "error": error,
        "message": message,
        "stuck_reason": stuck_reason,
        "closes_us": closes_us,
    }
    connection.execute(_PUT_OFF, values)
