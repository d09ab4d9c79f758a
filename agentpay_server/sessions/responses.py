"""Sessions as callers see them, their error responses, and their log lines."""

import logging
import math
from typing import Final

from agentpay.contract.errors import ErrorCode
from agentpay.contract.payments import PaymentHeader
from agentpay.contract.sessions import ClosingReason, Session, SessionProtocol, SessionStatus
from agentpay.contract.usdc import from_micro
from agentpay_server.database.tables import SessionRecord
from agentpay_server.engine.policy import Refusal
from agentpay_server.ledger.context import Context
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem
from agentpay_server.platform.logs import log
from agentpay_server.platform.settings import PUBLIC_IDLE_SECONDS
from agentpay_server.sessions.rules import SessionLimits

REJECTED: Final = "rejected"
"""The status in the response to a refused opening, which stores no session."""

logger: logging.Logger = logging.getLogger(__name__)


def to_response(record: SessionRecord, *, header: tuple[str, str] | None = None) -> Session:
    """Return a session as callers see it; `header` are name and value of the one that closes its channel."""
    total, reason = from_micro(record.running_total), record.closing_reason
    is_settled = record.status == SessionStatus.SETTLED
    settled = record.running_total if record.settled is None else record.settled
    return Session(
        session_id=record.session_id,
        account_id=record.account_id,
        to=record.to,
        category=record.category,
        status=SessionStatus(record.status).value,
        cap_usdc=from_micro(record.cap),
        running_total_usdc=total,
        settled_usdc=from_micro(settled) if is_settled else None,
        returned_usdc=from_micro(record.cap - settled) if is_settled else None,
        escrow_token_account=record.escrow_token_account,
        tx_signature=record.tx_signature,
        settlement_tx_signature=record.settlement_tx_signature,
        opened_at=None if record.opened_us is None else from_us(record.opened_us),
        settled_at=None if record.settled_us is None else from_us(record.settled_us),
        closing_reason=None if reason is None else ClosingReason(reason).value,
        protocol=SessionProtocol(record.protocol).value,
        origin=record.origin,
        url=record.url,
        channel=record.channel,
        header=None if header is None else PaymentHeader(name=header[0], value=header[1]),
    )


def refused(refusal: Refusal, session: SessionRecord | None) -> Problem:
    """Return the error for a refused opening, which has no session, or for a stored session."""
    if refusal.code is ErrorCode.CHAIN_UNAVAILABLE:
        return Problem(refusal.code, refusal.message, retry_after_seconds=RETRY_AFTER_SECONDS)
    if refusal.code in (ErrorCode.SESSION_CLOSED, ErrorCode.TOO_MANY_SESSIONS):
        return Problem(refusal.code, refusal.message)
    return Problem(
        refusal.code,
        refusal.message,
        session_id=None if session is None else session.session_id,
        status=REJECTED if session is None else session.status,
    )


def unresolved(record: SessionRecord) -> Problem:
    """Return the response while the outcome of an opening or of a settlement is unknown."""
    if record.status == SessionStatus.OPENING:
        message = (
            "The session is opening and its outcome is not known yet. Retry with the same idempotency_key, "
            "or read the session. Never open another under another key."
        )
    else:
        message = (
            "The session is closing and not settled yet. The server settles it; close it again to get the "
            "result."
        )
    return Problem(
        ErrorCode.CHAIN_UNAVAILABLE,
        message,
        says_what_to_do=True,
        session_id=record.session_id,
        status=record.status,
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


def stopped(record: SessionRecord) -> Problem:
    """Return the error for a session whose opening has failed, or whose settlement is refused."""
    return Problem(
        ErrorCode(record.error or ErrorCode.TRANSFER_FAILED),
        record.message or "The chain refused the transaction; nothing moved.",
        session_id=record.session_id,
        status=record.status,
    )


def report(record: SessionRecord, *, detail: str | None = None) -> None:
    """Log a change of a session, after its commit."""
    log(
        logger,
        logging.INFO if record.error is None else logging.WARNING,
        f"session.{record.status}",
        session_id=record.session_id,
        account_id=record.account_id,
        error=record.error,
        closing_reason=record.closing_reason,
        detail=detail,
        tx_signature=record.settlement_tx_signature or record.tx_signature,
    )


def limits_of(context: Context) -> SessionLimits:
    """Return the time limits of sessions. On a public cluster a forgotten session would tie up SOL."""
    settings = context.settings
    idle_seconds = settings.session_idle_seconds
    if idle_seconds is None and not context.chain.is_test_chain:
        idle_seconds = PUBLIC_IDLE_SECONDS
    return SessionLimits(
        idle_us=_microseconds(idle_seconds), lifetime_us=_microseconds(settings.session_lifetime_seconds)
    )


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None or math.isinf(seconds) else round(seconds * SECOND_US)
