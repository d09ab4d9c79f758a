"""Sessions as others see them: responses, errors and log lines; and what becomes of one, as data.

When the escrow is funded, the cap leaves the balance and counts as reserved. At the settlement the charges
become a spend, and the rest returns to the balance. The history contains only the settlement: until then the
money in the escrow still belongs to the account (interface S18, EV1, H2).
"""

import json
import logging
import math
from functools import partial
from typing import Final

from attrs import frozen

from agentpay.contract import events
from agentpay.contract.choices import EventType
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.payments import PaymentHeader
from agentpay.contract.ext.sessions import ClosingReason, Session, SessionProtocol, SessionStatus
from agentpay.contract.transactions import Direction, TransactionType
from agentpay.contract.usdc import from_micro
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import EntryRecord, SessionRecord
from agentpay_server.engine import funding
from agentpay_server.engine.movement import Ending
from agentpay_server.engine.policy import Refusal, facts_of
from agentpay_server.ledger import audit
from agentpay_server.ledger.apply import Outcome, Posting
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US
from agentpay_server.ledger.outbox import NewEvent
from agentpay_server.ledger.spending import HoldChange
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem
from agentpay_server.platform.logs import log
from agentpay_server.platform.settings import PUBLIC_IDLE_SECONDS
from agentpay_server.sessions.rules import SessionLimits, cap_events, check_transition
from agentpay_server.sessions.store import IS_CLOSING, SESSIONS


def audited(session: SessionRecord) -> dict[str, object]:
    """Return a session's request, and its outcome so far, for the audit trail."""
    return audit.given(
        account_id=session.account_id,
        to=session.to,
        cap_usdc=audit.usdc(session.cap),
        category=session.category,
        idempotency_key=session.idempotency_key,
        status=session.status,
        error=session.error,
        message=session.message,
        tx_signature=session.tx_signature,
    )


def outcome_of(
    session: SessionRecord | Change[SessionRecord], *postings: Posting, events: tuple[NewEvent, ...] = ()
) -> Outcome[SessionRecord]:
    """Return an outcome of a session."""
    record = session.row if isinstance(session, Change) else session
    return Outcome(
        operator_id=record.operator_id,
        account_id=record.account_id,
        subject=session,
        postings=postings,
        events=events,
    )


@frozen(kw_only=True)
class Escrow:
    """Money of an account that is locked on chain: in the escrow of a session, or in a channel.

    Attributes:
        owner_id: the session, or the payment that owns the channel.
        amount_micro: what was paid into it.
        token_account: it has the money.
        opening_fee: lamports of fees before the payout, which are lost if nothing is paid.
    """

    owner_id: str
    account_id: str
    amount_micro: int
    token_account: str
    category: str | None
    opening_fee: int
    is_payment: bool = False

    def funded(self, *, is_held: bool = True) -> Posting:
        """Return the posting of money that has arrived in it.

        Without `is_held`, its reservation was released because the transaction seemed lost.
        """
        amount, again = self.amount_micro, 0 if is_held else self.amount_micro
        return Posting(account_id=self.account_id, hold=again, release=amount, debit=amount)

    def reserved_again(self) -> HoldChange:
        """Return that its hold, which had ended, reserves it again."""
        return HoldChange(self.owner_id, amount=self.amount_micro, is_open=True)

    def paid_out(self, tx: StoredTransaction, spent: EntryRecord, *, deposited: int) -> tuple[Posting, ...]:
        """Return the postings of its payout.

        Args:
            tx: the transaction that paid it out.
            spent: the entry of what was paid; the rest returns.
            deposited: micro-USDC that came beyond that.
        """
        paid, history = spent.amount, [spent]
        if deposited:
            history.append(self._entry(TransactionType.DEPOSIT, Direction.IN, deposited, tx))
        posting = Posting(
            account_id=self.account_id,
            credit=self.amount_micro - paid + deposited,
            spent=paid,
            entries=tuple(history),
        )
        # The rent of a token account for the payee is gone; without a charge, so are both fees.
        return posting, *funding.lost(tx, tx.rent + (0 if paid else self.opening_fee + tx.fee))

    def lost(self, tx: StoredTransaction) -> Posting:
        """Return the posting of money that was paid into it once more, after it was paid out.

        An operator must recover it.
        """
        amount = self.amount_micro
        return Posting(
            account_id=self.account_id,
            hold=amount,
            release=amount,
            debit=amount,
            spent=amount,
            entries=(self._entry(TransactionType.TRANSFER, Direction.OUT, amount, tx, self.category),),
        )

    def _entry(
        self,
        kind: TransactionType,
        direction: Direction,
        amount: int,
        tx: StoredTransaction,
        category: str | None = None,
    ) -> EntryRecord:
        return EntryRecord(
            type=kind,
            direction=direction,
            amount=amount,
            counterparty=self.token_account,
            category=category,
            tx_signature=tx.signature,
            transfer_id=self.owner_id if self.is_payment else None,
            session_id=None if self.is_payment else self.owner_id,
        )


def escrow_of(session: SessionRecord) -> Escrow:
    """Return the escrow of a session."""
    return Escrow(
        owner_id=session.session_id,
        account_id=session.account_id,
        amount_micro=session.cap,
        token_account=session.escrow_token_account,
        category=session.category,
        opening_fee=session.opening_fee,
    )


def funded(
    change: Change[SessionRecord], tx_signature: str, *, is_held: bool = True
) -> Outcome[SessionRecord]:
    """Return the outcome of a session whose escrow a transaction has funded; see `Escrow.funded`."""
    session = change.row
    opened = NewEvent(
        type="session.opened",
        data=events.SessionOpenedData(
            session_id=session.session_id,
            cap_usdc=from_micro(session.cap),
            account_id=session.account_id,
            to=session.to,
            category=session.category,
            tx_signature=tx_signature,
        ),
    )
    escrow = escrow_of(session)
    outcome = outcome_of(change, escrow.funded(is_held=is_held), events=(opened,))
    return outcome if is_held else outcome.also(changes=(escrow.reserved_again(),))


def charged(session: SessionRecord, *, before_micro: int) -> Outcome[SessionRecord]:
    """Return the outcome of a charge: its events, if there are any.

    `session` is its state after the charge; `before_micro` is the running total before it.
    """
    fired = cap_events(session.cap, before_micro=before_micro, after_micro=session.running_total)
    return outcome_of(
        session, events=tuple(NewEvent(type=each, data=_cap_data(each, session)) for each in fired)
    )


def settled(
    session: SessionRecord, tx: StoredTransaction, now_us: int, *, escrow: Escrow, paid: int, deposited: int
) -> Outcome[SessionRecord]:
    """Return the outcome of a closing session that is settled, on both sides.

    Args:
        session: the session.
        tx: the transaction that settled it.
        now_us: the time.
        escrow: its escrow.
        paid: micro-USDC of the cap that did not come back.
        deposited: micro-USDC that came beyond the cap.
    """
    check_transition(session.status, SessionStatus.SETTLED)
    is_unused = session.channel is not None and not (paid or session.running_total)
    change = SESSIONS.to_change(
        session,
        IS_CLOSING,
        status=SessionStatus.SETTLED.value,
        settled=paid,
        settlement_tx_signature=tx.signature,
        settled_us=now_us,
        # A seller that was promised nothing and took nothing has sold nothing: the key is free in a day.
        key_expires_us=now_us + KEY_LIFETIME_US if is_unused else None,
        closes_us=None,
        error=None,
        message=None,
        stuck_reason=None,
    )
    entry = partial(
        EntryRecord, tx_signature=tx.signature, category=session.category, session_id=session.session_id
    )
    spent = entry(
        type=TransactionType.SESSION_SETTLEMENT,
        direction=Direction.OUT,
        amount=paid,
        counterparty=session.to,
    )
    postings = [*escrow.paid_out(tx, spent, deposited=deposited)]
    if paid and session.recipient_account_id is not None:
        arrived = entry(
            type=TransactionType.DEPOSIT, direction=Direction.IN, amount=paid, counterparty=session.account_id
        )
        postings.append(Posting(account_id=session.recipient_account_id, credit=paid, entries=(arrived,)))
    outcome = outcome_of(change, *postings, events=(_settled_event(session, paid, tx.signature, now_us),))
    return outcome.also(changes=(HoldChange(session.session_id, amount=paid),))


def _settled_event(session: SessionRecord, paid: int, tx_signature: str, now_us: int) -> NewEvent:
    return NewEvent(
        type="session.settled",
        data=events.SessionSettledData(
            session_id=session.session_id,
            account_id=session.account_id,
            cap_usdc=from_micro(session.cap),
            settled_usdc=from_micro(paid),
            returned_usdc=from_micro(session.cap - paid),
            tx_signature=tx_signature,
            settled_at=from_us(now_us),
        ),
    )


def detail_of(deposited: int) -> str:
    """Return a settlement's `detail`: the surplus beyond the cap, in micro-USDC."""
    return json.dumps({"deposited": deposited})


def deposited_micro(tx: StoredTransaction) -> int:
    """Return the surplus of a settlement beyond the cap, which third parties sent to the escrow."""
    return int(json.loads(tx.detail or "{}").get("deposited", 0))


def _cap_data(event_type: EventType, session: SessionRecord) -> object:
    running_total, cap = from_micro(session.running_total), from_micro(session.cap)
    if event_type == "session.cap_warning":
        return events.SessionCapWarningData(
            session_id=session.session_id, running_total_usdc=running_total, cap_usdc=cap
        )
    return events.SessionCapReachedData(
        session_id=session.session_id,
        account_id=session.account_id,
        running_total_usdc=running_total,
        cap_usdc=cap,
    )


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
        refusal=refusal.facts,
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
    code = ErrorCode(record.error or ErrorCode.TRANSFER_FAILED)
    return Problem(
        code,
        record.message or "The chain refused the transaction; nothing moved.",
        session_id=record.session_id,
        status=record.status,
        refusal=facts_of(code, record.cap),
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


def report_ending(ending: Ending[SessionRecord]) -> None:
    """Log a session, after the commit of a transaction's outcome."""
    report(ending.subject, detail=None if ending.failure is None else ending.failure.detail)


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
