"""Booking what a transaction of a session did that landed after it was believed expired.

An escrow cannot be made twice, nor settled twice, while it is there: of two openings or two settlements one
lands, and the other fails. So most often nothing has moved twice, and the session goes on from what has
landed.
"""

import attrs

from agentpay.contract import identifiers
from agentpay.contract.sessions import SessionStatus
from agentpay.contract.transactions import Direction, TransactionStatus, TransactionType
from agentpay_server.context import Context
from agentpay_server.database.connection import Connection
from agentpay_server.domain.sessions import check_transition, closes_us
from agentpay_server.domain.transfers import KEY_LIFETIME_US
from agentpay_server.services.sessions import booking
from agentpay_server.services.sessions.answers import limits_of
from agentpay_server.store import accounts as account_store
from agentpay_server.store import entries, spends
from agentpay_server.store import expired as expired_store
from agentpay_server.store import session_settlements as settlements
from agentpay_server.store import sessions as store
from agentpay_server.store.expired import Expired, Kind
from agentpay_server.store.sessions import SessionRecord


def book_opening(connection: Connection, context: Context, landed: Expired, now_us: int) -> str | None:
    """Book a funding of an escrow, and return the signature of the one in its place, if there is one."""
    session = store.session(connection, landed.subject_id, lock=True)
    assert session is not None  # noqa: S101 - sessions are never deleted
    if session.status == SessionStatus.OPENING:
        _watch(connection, session, Kind.SESSION_OPEN, landed, now_us)
        store.set_open(
            connection,
            session.session_id,
            tx_signature=landed.signature,
            opened_us=now_us,
            closes_us=closes_us(limits_of(context), opened_us=now_us, charged_us=None),
        )
        opened = attrs.evolve(session, tx_signature=landed.signature)
        booking.book_opened(connection, context, opened, now_us)
    elif session.status == SessionStatus.FAILED:
        check_transition(session.status, SessionStatus.OPEN)
        # Nobody counts on it any more: it closes by itself, and the cap comes back.
        store.reopen(
            connection,
            session.session_id,
            tx_signature=landed.signature,
            opened_us=now_us,
            closes_us=now_us,
        )
        account_store.reserve_cap(connection, session.account_id, session.cap)
        opened = attrs.evolve(session, tx_signature=landed.signature)
        booking.book_opened(connection, context, opened, now_us)
    elif session.status == SessionStatus.SETTLED:
        _book_loss(connection, context, session, landed.signature, now_us)
    return None if session.tx_signature == landed.signature else session.tx_signature


def book_settlement(connection: Connection, context: Context, landed: Expired, now_us: int) -> str | None:
    """Book a settlement, and return the signature of the one in its place, if there is one."""
    session = store.session(connection, landed.subject_id, lock=True)
    assert session is not None  # noqa: S101 - sessions are never deleted
    if session.status == SessionStatus.CLOSING:
        _watch(connection, session, Kind.SESSION_SETTLE, landed, now_us)
        settlements.set_settled(
            connection,
            session.session_id,
            tx_signature=landed.signature,
            settled_us=now_us,
            key_expires_us=now_us + KEY_LIFETIME_US,
        )
        settled = attrs.evolve(
            session, settlement_tx_signature=landed.signature, deposited=landed.detail or 0
        )
        booking.book_settled(connection, context, settled, now_us)
    replacement = session.settlement_tx_signature
    return None if replacement == landed.signature else replacement


def _watch(connection: Connection, session: SessionRecord, kind: Kind, landed: Expired, now_us: int) -> None:
    """Watch what took the place of a transaction, should there be one."""
    signed = session.signed
    if signed is not None and signed.signature != landed.signature:
        expired_store.watch(
            connection,
            signed,
            kind=kind,
            subject_id=session.session_id,
            account_id=session.account_id,
            now_us=now_us,
            detail=session.deposited if kind is Kind.SESSION_SETTLE else None,
        )


def _book_loss(
    connection: Connection, context: Context, session: SessionRecord, signature: str, now_us: int
) -> None:
    """Book a cap that has gone into an escrow whose session is over: it takes a person to bring it back."""
    source = account_store.account(connection, session.account_id, lock=True)
    assert source is not None  # noqa: S101 - accounts are never deleted
    spent_us, total = max(now_us, source.last_spend_us), source.spent_total + session.cap
    spends.insert_spend(connection, source.account_id, spent_us=spent_us, running_total=total)
    account_store.reserve(
        connection, source.account_id, spent_total=total, spent_us=spent_us, amount=session.cap
    )
    account_store.debit(connection, source.account_id, session.cap)
    entry: dict[str, object] = {
        "transaction_id": context.identifiers.new(identifiers.ENTRY),
        "account_id": session.account_id,
        "type": TransactionType.TRANSFER.value,
        "status": TransactionStatus.SETTLED.value,
        "direction": Direction.OUT.value,
        "amount": session.cap,
        "counterparty": session.escrow_token_account,
        "category": session.category,
        "tx_signature": signature,
        "session_id": session.session_id,
        "created_us": now_us,
    }
    entries.insert_entries(connection, entry)
