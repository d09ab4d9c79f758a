"""What becomes of a session, as data: postings, history and events (interface S18, EV1, H2).

When the escrow is funded, the cap leaves the balance and counts as reserved. At the settlement the charges
become a spend, and the rest returns to the balance. The history contains only the settlement: until then the
money in the escrow still belongs to the account.
"""

import json
from functools import partial

from agentpay.contract import events
from agentpay.contract.choices import EventType
from agentpay.contract.transactions import Direction, TransactionType
from agentpay.contract.usdc import from_micro
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import SessionRecord
from agentpay_server.engine import fees
from agentpay_server.ledger import audit
from agentpay_server.ledger.apply import Entry, Outcome, Posting
from agentpay_server.ledger.outbox import NewEvent
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import from_us
from agentpay_server.sessions.rules import cap_events


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


def funded(
    change: Change[SessionRecord], tx_signature: str, *, is_held: bool = True
) -> Outcome[SessionRecord]:
    """Return the outcome of an escrow that a transaction has funded.

    Without `is_held`, its cap was released because the transaction seemed lost.
    """
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
    again = 0 if is_held else session.cap
    posting = Posting(
        account_id=session.account_id,
        hold=again,
        cap_hold=again,
        release=session.cap,
        debit=session.cap,
    )
    return outcome_of(change, posting, events=(opened,))


def charged(session: SessionRecord, *, before_micro: int) -> Outcome[SessionRecord]:
    """Return the outcome of a charge: its events, if there are any.

    `session` is its state after the charge; `before_micro` is the running total before it.
    """
    fired = cap_events(session.cap, before_micro=before_micro, after_micro=session.running_total)
    return outcome_of(
        session, events=tuple(NewEvent(type=each, data=_cap_data(each, session)) for each in fired)
    )


def settled(
    change: Change[SessionRecord],
    tx: StoredTransaction,
    now_us: int,
    *,
    paid: int | None = None,
    deposited: int | None = None,
    shown: tuple[Entry, NewEvent] | None = None,
) -> Outcome[SessionRecord]:
    """Return the outcome of a session that is settled, on both sides.

    Args:
        change: the change of the session.
        tx: the transaction that settled it.
        now_us: the time.
        paid: micro-USDC of the cap that did not come back; by default what was charged.
        deposited: micro-USDC that came beyond the cap; by default as the transaction's row says.
        shown: the entry of what was paid, and the event, if they are not those of a session.
    """
    session = change.row
    paid = session.running_total if paid is None else paid
    deposited = deposited_micro(tx) if deposited is None else deposited
    entry = partial(Entry, tx_signature=tx.signature, session_id=session.session_id)
    deposit = partial(entry, type=TransactionType.DEPOSIT, direction=Direction.IN)
    spent, event = shown or (
        entry(
            type=TransactionType.SESSION_SETTLEMENT,
            direction=Direction.OUT,
            amount=paid,
            counterparty=session.to,
            category=session.category,
        ),
        _settled_event(session, paid, tx.signature, now_us),
    )
    history = [spent]
    if deposited:
        history.append(deposit(amount=deposited, counterparty=session.escrow_token_account))
    postings = [
        Posting(
            account_id=session.account_id,
            cap_release=session.cap,
            credit=session.cap - paid + deposited,
            spent=paid,
            entries=tuple(history),
        ),
        # The rent of a token account for the payee is gone; without a charge, so are both fees.
        *fees.lost(tx, tx.rent + (0 if paid else session.opening_fee + tx.fee)),
    ]
    if paid and session.recipient_account_id is not None:
        arrived = deposit(amount=paid, counterparty=session.account_id, category=session.category)
        postings.append(Posting(account_id=session.recipient_account_id, credit=paid, entries=(arrived,)))
    return outcome_of(change, *postings, events=(event,))


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


def lost(session: SessionRecord, tx: StoredTransaction) -> Outcome[SessionRecord]:
    """Return the outcome of a cap that was paid into the escrow of a settled session.

    An operator must recover it.
    """
    entry = Entry(
        type=TransactionType.TRANSFER,
        direction=Direction.OUT,
        amount=session.cap,
        counterparty=session.escrow_token_account,
        category=session.category,
        tx_signature=tx.signature,
        session_id=session.session_id,
    )
    posting = Posting(
        account_id=session.account_id,
        hold=session.cap,
        release=session.cap,
        debit=session.cap,
        spent=session.cap,
        entries=(entry,),
    )
    return outcome_of(session, posting)


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
