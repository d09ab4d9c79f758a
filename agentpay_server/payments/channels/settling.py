"""The changes in the books at the end of a channel, as data: for its payout and the transactions before it.

The settled amount is the part that did not return to the account in the transaction that paid the channel
out.
"""

import json
from collections.abc import Mapping
from typing import Final

from attrs import evolve

from agentpay.contract.errors import ErrorCode
from agentpay.contract.sessions import ClosingReason, SessionStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import SessionRecord
from agentpay_server.engine.movement import Ending, Movement
from agentpay_server.engine.policy import Refusal
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.apply import Outcome, Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US
from agentpay_server.ledger.transactions import Kind, State, StoredTransaction
from agentpay_server.payments.channels import upto
from agentpay_server.payments.channels.rules import Act, ChannelPayout
from agentpay_server.sessions import outcomes, unknown_payouts
from agentpay_server.sessions.rules import check_transition, retry_us
from agentpay_server.sessions.store import IS_CLOSING, SESSIONS
from agentpay_server.transfers.store import TRANSFERS

_REFUSED: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The chain refused a transaction that closes the channel; the service will sign another later.",
)


def post(
    connection: Connection, context: Context, session_id: str, payout: ChannelPayout
) -> SessionRecord | None:
    """Post the payout of a closing channel; return its session, or None if another server was faster.

    Raises:
        ChainUnreachableError: the clocks differ.
    """
    unit = Unit.begin(connection, context)
    session = SESSIONS.existing(connection, session_id)
    account_store.ACCOUNTS.existing(connection, session.account_id, lock=True)
    session = SESSIONS.existing(connection, session_id, lock=True)
    if session.status != SessionStatus.CLOSING:
        return None
    tx = _row_of(connection, session, payout.signature, unit.now_us)
    check_transition(SessionStatus.CLOSING, SessionStatus.SETTLED)
    has_paid = session.running_total > 0 or payout.settled_micro > 0
    change = SESSIONS.to_change(
        session,
        IS_CLOSING,
        status=SessionStatus.SETTLED.value,
        settled=payout.settled_micro,
        settlement_tx_signature=payout.signature,
        settled_us=unit.now_us,
        key_expires_us=None if has_paid else unit.now_us + KEY_LIFETIME_US,
        closes_us=None,
        error=None,
        message=None,
        stuck_reason=None,
    )
    # With another channel of the account that it pays out, or before: this one may have been empty.
    is_posted = account_store.is_deposit_posted(connection, session.account_id, payout.signature)
    payment = None
    if upto.is_upto(session):
        payment = upto.settled(
            TRANSFERS.existing(connection, session_id, lock=True),
            paid_micro=payout.settled_micro,
            tx_signature=payout.signature,
            now_us=unit.now_us,
        )
    outcome = outcomes.settled(
        change,
        tx,
        unit.now_us,
        paid=payout.settled_micro,
        deposited=0 if is_posted else payout.deposited_micro,
        shown=None if payment is None else payment[1:],
    )
    if payment is not None:
        outcome = evolve(outcome, changes=payment[:1])
    if payout.is_beyond(upto.handed_out_micro(session)):
        outcome = unknown_payouts.suspending(
            outcome, session, payout.signature, settled_micro=payout.settled_micro
        )
    return apply(unit, outcome, tx)


def _row_of(connection: Connection, session: SessionRecord, signature: str, now_us: int) -> StoredTransaction:
    """Return the row of a payout: the service's own, or a new one for the seller's."""
    for tx in chain_transactions.of_subject(connection, signature, session.session_id):
        return tx
    tx = StoredTransaction(
        signature=signature,
        kind=Kind.CHANNEL_CLOSE,
        subject_id=session.session_id,
        account_id=session.account_id,
        state=State.FINALIZED,
        raw=None,
        last_valid_block_height=0,
        created_us=now_us,
        ended_us=now_us,
        by_operator=session.by_operator,
    )
    chain_transactions.insert_transaction(connection, tx)
    return tx


def postponed(
    session: SessionRecord, refusal: Refusal, reason: ClosingReason, now_us: int
) -> Change[SessionRecord]:
    """Return that a closing session is polled again later, and why."""
    return SESSIONS.to_change(
        session,
        IS_CLOSING,
        add={"postponements": 1},
        error=refusal.code.value,
        message=refusal.message,
        stuck_reason=reason.value,
        closes_us=now_us + retry_us(session.postponements),
    )


def _landed(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    """Look at the chain again. The fees of a session that pays nothing count at its end."""
    fee = ending.tx.fee if _is_request(ending.tx) else 0
    return _again(ending, add={"opening_fee": fee})


def _failed(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    """Look at the chain again, later: the seller may have been faster."""
    session = ending.subject
    if session.status != SessionStatus.CLOSING:
        return outcomes.outcome_of(session)
    reason = ClosingReason.SETTLEMENT_REFUSED
    return outcomes.outcome_of(postponed(session, _REFUSED, reason, ending.now_us))


def _again(ending: Ending[SessionRecord], add: Mapping[str, int] | None = None) -> Outcome[SessionRecord]:
    session = ending.subject
    if session.status != SessionStatus.CLOSING:
        return outcomes.outcome_of(session)
    return outcomes.outcome_of(
        SESSIONS.to_change(session, IS_CLOSING, add=add or {}, closes_us=ending.now_us)
    )


def _is_request(tx: StoredTransaction) -> bool:
    return bool(json.loads(tx.detail or "{}").get("act") == Act.REQUEST.value)


CHANNEL_CLOSE: Final[Movement[SessionRecord]] = Movement(
    kind=Kind.CHANNEL_CLOSE,
    load=SESSIONS.existing,
    newest=lambda _: None,
    landed=_landed,
    failed=_failed,
    expired=_again,
    late=_again,
    # It only returns money to the account, also to one that may not sign, and what is due may be another step
    # by now.
    resign=None,
    # The subject is read again under the account's lock: another server may have settled the session.
    needs_accounts=True,
)
"""The service's own transactions that close a channel.

By themselves they move nothing in the books: `ChannelClosing` polls the chain again.
"""
