"""Opening a session: the decision about it, and its transaction.

`engine/authorization.py` checks the policy, reserves the whole cap in the balance and in the daily limit, and
stores the signed bytes in one commit. A refusal stores nothing. Nothing here sends or waits.
"""

from typing import Final

import attrs

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.sessions import OPEN_SESSION, OpenSession, SessionProtocol, SessionStatus
from agentpay.contract.usdc import to_micro
from agentpay_server.chain import transactions
from agentpay_server.chain.protocol import Blockhash, FailureReason, SignedTransaction
from agentpay_server.database.tables import AccountRecord, ChannelRecord, PurchaseKind, SessionRecord
from agentpay_server.engine import policy as rules
from agentpay_server.engine.authorization import Decided, Gate
from agentpay_server.engine.funding import Cost
from agentpay_server.engine.movement import (
    Ending,
    Movement,
    Replacement,
    Resigning,
    pending_transaction,
)
from agentpay_server.engine.policy import Purpose, Recipient, Refusal, Spend, stored_policy
from agentpay_server.ledger import audit, idempotency, spending
from agentpay_server.ledger.apply import Outcome, Posting
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US, Held, KeyHolder, RequestedKey
from agentpay_server.ledger.spending import HoldChange
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import outcomes, store
from agentpay_server.sessions.outcomes import limits_of, refused
from agentpay_server.sessions.rules import (
    OpeningTerms,
    check_transition,
    closes_us,
    escalation_refusal,
    session_limit_refusal,
    verdict_if_equal,
)

_SHORT: Final = Refusal(
    code=ErrorCode.INSUFFICIENT_BALANCE,
    message="The balance was below the cap when the transaction reached the chain, so nothing moved. Fund "
    "the account, then retry with the same key.",
)
_FAILED: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The chain refused to fund the session's escrow, so nothing moved. Retry with the same key.",
)


def new_session(
    gate: Gate,
    *,
    principal: Principal,
    request: OpenSession,
    key: RequestedKey,
    held: Held,
    rent_exempt_lamports: int,
) -> Decided[SessionRecord]:
    """Decide about a requested session: the policy judges the whole cap. A refusal stores nothing.

    Args:
        gate: the gate.
        principal: who opens it. Opening a session with an operator key approves its cap.
        request: the session.
        key: its idempotency key.
        held: the key's claims when the request was judged.
        rent_exempt_lamports: the rent of its escrow.

    Raises:
        ConstraintError: another request has taken the key.
        Problem: a refusal, `too_many_sessions`.
    """
    context, connection, now_us = gate.context, gate.connection, gate.now_us
    terms = terms_of(request)
    refusal = gate.paused(terms.cap_micro)
    if refusal is not None:
        raise refused(refusal, None)
    source, preflight = gate.source, gate.preflight
    spend = Spend(
        amount_micro=terms.cap_micro,
        to=terms.to,
        recipient=preflight.recipient,
        memo=None,
        category=terms.category,
        purpose=Purpose.SESSION,
    )
    cost = Cost(
        fees=transactions.opening_fee(preflight.blockhash) + transactions.settlement_fee(preflight.blockhash),
        rent=rent_exempt_lamports,
    )
    admit(gate, principal, terms.cap_micro, gate.refusal(spend, spending.key_of(principal)), cost)
    session_id = context.identifiers.new(identifiers.SESSION)
    signed = _signed(
        context,
        source,
        preflight.blockhash,
        session_id=session_id,
        cap_micro=terms.cap_micro,
        rent_exempt_lamports=rent_exempt_lamports,
    )
    record = session_row(
        principal,
        terms,
        preflight.recipient,
        session_id=session_id,
        idempotency_key=request.idempotency_key,
        escrow_token_account=transactions.escrow_address(
            context.signer, account_index=source.key_index, session_id=session_id
        ),
        tx_signature=signed.signature,
        opening_fee=signed.fee_lamports,
        by_operator=gate.by_operator,
        now_us=now_us,
    )
    tx = pending_transaction(
        signed,
        kind=Operation.SESSION_OPEN,
        subject_id=session_id,
        account_id=source.account_id,
        rent=rent_exempt_lamports,
        now_us=now_us,
    )
    idempotency.put(connection, key, held, PurchaseKind.SESSION, session_id)
    return opened(gate, principal, record, tx, cost, action=OPEN_SESSION.name)


def admit(gate: Gate, principal: Principal, cap_micro: int, refusal: Refusal | None, cost: Cost) -> None:
    """Require that an account may open a session of a cap that has a cost, given why the policy refuses it.

    Raises:
        Problem: a refusal, `too_many_sessions`.
    """
    if refusal is None and principal.is_agent and gate.needs_approval(cap_micro):
        # It cannot wait for an operator.
        refusal = escalation_refusal(gate.policy, cap_micro)
    if refusal is not None:
        raise refused(refusal, None)
    gate.pay(cost)
    # The account is locked, so no other session of it can be opened before this one is stored.
    unsettled = store.unsettled(gate.connection, gate.source.account_id)
    too_many = session_limit_refusal(unsettled, gate.context.settings.max_open_sessions)
    if too_many is not None:
        raise refused(too_many, None)


def opened(
    gate: Gate,
    principal: Principal,
    record: SessionRecord,
    tx: StoredTransaction,
    cost: Cost,
    *,
    action: str,
    **shown: object,
) -> Decided[SessionRecord]:
    """Store a new session with its transaction; the audit trail shows `shown` besides."""
    store.SESSIONS.insert(gate.connection, record)
    held = gate.hold_cap(tx, record.cap, cost, spending.key_of(principal))
    audit.record(
        gate.connection,
        principal,
        action=action,
        subject=record.session_id,
        now_us=gate.now_us,
        after=outcomes.audited(record) | shown,
    )
    return Decided(record=record, tx=held)


def session_row(
    principal: Principal,
    terms: OpeningTerms,
    recipient: Recipient,
    *,
    session_id: str,
    idempotency_key: str,
    escrow_token_account: str,
    by_operator: bool,
    now_us: int,
    tx_signature: str | None = None,
    opening_fee: int = 0,
    channel: ChannelRecord | None = None,
    url: str | None = None,
) -> SessionRecord:
    """Return the row of a new session: with an escrow of our own, or with the `channel` of a seller.

    Without a `tx_signature`, the seller broadcasts the funding. A channel's row has its fees.
    """
    check_transition(None, SessionStatus.OPENING)
    return SessionRecord(
        session_id=session_id,
        operator_id=principal.operator_id,
        account_id=terms.account_id,
        key_id=principal.key_id,
        to=terms.to,
        # If this service holds the payee of a channel, the deposit watcher posts the arrival.
        recipient_account_id=recipient.account_id if channel is None else None,
        recipient_token_account=recipient.token_account,
        category=terms.category,
        cap=terms.cap_micro,
        idempotency_key=idempotency_key,
        status=SessionStatus.OPENING.value,
        escrow_token_account=escrow_token_account,
        tx_signature=tx_signature,
        created_us=now_us,
        recipient_owner=recipient.owner,
        opening_fee=opening_fee,
        protocol=(SessionProtocol.ESCROW if channel is None else SessionProtocol.MPP).value,
        origin=None if channel is None else channel.origin,
        url=url,
        channel=None if channel is None else channel.address,
        by_operator=by_operator,
    )


def _landed(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    """Return the outcome of a session whose escrow is funded."""
    check_transition(SessionStatus.OPENING, SessionStatus.OPEN)
    limits, now_us = limits_of(ending.context), ending.now_us
    tx_signature = ending.tx.name or ending.tx.signature
    change = store.SESSIONS.to_change(
        ending.subject,
        store.IS_OPENING,
        status=SessionStatus.OPEN.value,
        tx_signature=tx_signature,
        opened_us=now_us,
        closes_us=closes_us(limits, opened_us=now_us, charged_us=None),
    )
    return outcomes.funded(change, tx_signature)


def _failed(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    """Return the outcome of a session whose funding the chain rejected."""
    assert ending.failure is not None  # noqa: S101 - it has failed
    is_short = ending.failure.reason is FailureReason.INSUFFICIENT_FUNDS
    return failed(ending, _SHORT if is_short else _FAILED)


async def _prepare(context: Context, _: SessionRecord) -> int:
    """Return the rent exemption of an escrow in lamports."""
    return await context.chain.rent_exemption(transactions.ESCROW_BYTES)


def _resign(resigning: Resigning[SessionRecord]) -> Replacement | Refusal:
    """Sign a replacement, unless the account is now paused.

    It is proved that the previous transaction never landed. Otherwise a closed escrow could be created
    again.
    """
    session, source = resigning.subject, resigning.source
    refusal = rules.paused_refusal(stored_policy(source.policy), session.cap)
    if refusal is not None:
        return refusal
    signed = _signed(
        resigning.unit.context,
        source,
        resigning.blockhash,
        session_id=session.session_id,
        cap_micro=session.cap,
        rent_exempt_lamports=resigning.prepared,
    )
    change = store.SESSIONS.to_change(
        session, store.IS_OPENING, tx_signature=signed.signature, opening_fee=signed.fee_lamports
    )
    return Replacement(signed=signed, change=change, rent=resigning.prepared)


def _expired(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    """Return the outcome of a failed session: its account was paused before a replacement was signed."""
    message = f"{ending.reason.message} The transaction had expired without landing; nothing was moved."
    return failed(ending, attrs.evolve(ending.reason, message=message))


def _late(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    """Return the outcome of a funding that landed after it was considered expired.

    An existing escrow cannot be created again: of two openings one lands, and the other fails. So usually
    nothing has moved twice, and the session continues with the one that landed.
    """
    tx, session, now_us = ending.tx, ending.subject, ending.now_us
    if session.status == SessionStatus.OPENING:
        return _landed(ending)
    if session.status == SessionStatus.FAILED:
        check_transition(session.status, SessionStatus.OPEN)
        # Callers no longer expect the session: it closes automatically, and the cap is returned.
        reopened = store.SESSIONS.to_change(
            session,
            store.IS_FAILED,
            status=SessionStatus.OPEN.value,
            error=None,
            message=None,
            tx_signature=tx.name or tx.signature,
            opened_us=now_us,
            closes_us=now_us,
            key_expires_us=None,
        )
        return outcomes.funded(reopened, tx.name or tx.signature, is_held=False)
    if session.status == SessionStatus.SETTLED:
        return outcomes.outcome_of(session, outcomes.escrow_of(session).lost(tx))
    return outcomes.outcome_of(session)


SESSION_OPEN: Final[Movement[SessionRecord]] = Movement(
    kind=Operation.SESSION_OPEN,
    load=store.SESSIONS.existing,
    newest=lambda session: session.tx_signature,
    landed=_landed,
    failed=_failed,
    expired=_expired,
    late=_late,
    resign=_resign,
    prepare=_prepare,
    report=outcomes.report_ending,
)
"""The transaction that funds a session's escrow."""


def failed(ending: Ending[SessionRecord], refusal: Refusal) -> Outcome[SessionRecord]:
    """Return the outcome of a session whose opening moved nothing and never will."""
    session = ending.subject
    check_transition(SessionStatus.OPENING, SessionStatus.FAILED)
    change = store.SESSIONS.to_change(
        session,
        store.IS_OPENING,
        status=SessionStatus.FAILED.value,
        tx_signature=ending.tx.name,
        error=refusal.code.value,
        message=refusal.message,
        key_expires_us=ending.now_us + KEY_LIFETIME_US,
    )
    record = audit.Record(
        actor=audit.ServerActor(session.operator_id),
        action=audit.SESSION_FAILED,
        subject=session.session_id,
        before={"status": SessionStatus.OPENING.value},
        after=outcomes.audited(change.after),
    )
    posting = Posting(account_id=session.account_id, release=session.cap)
    hold = HoldChange(session.session_id)
    return outcomes.outcome_of(change, posting).also(changes=(hold,), audit=(record,))


def _signed(
    context: Context,
    source: AccountRecord,
    blockhash: Blockhash,
    *,
    session_id: str,
    cap_micro: int,
    rent_exempt_lamports: int,
) -> SignedTransaction:
    return transactions.open_escrow(
        context.signer,
        blockhash,
        usdc_mint=context.chain.usdc_mint,
        account_index=source.key_index,
        session_id=session_id,
        source=source.usdc_token_account,
        cap_micro=cap_micro,
        rent_exempt_lamports=rent_exempt_lamports,
    )


def terms_of(request: OpenSession) -> OpeningTerms:
    """Return the request's terms."""
    return OpeningTerms(
        account_id=request.account_id,
        to=request.to,
        cap_micro=to_micro(request.cap_usdc),
        category=request.category,
    )


def key_holder_of(record: SessionRecord) -> KeyHolder:
    """Return a stored session as the holder of an idempotency key."""
    return KeyHolder(
        terms=OpeningTerms(
            account_id=record.account_id,
            to=record.to,
            cap_micro=record.cap,
            category=record.category,
        ),
        if_equal=verdict_if_equal(record.status),
    )
