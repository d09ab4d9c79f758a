"""A transfer's transaction: how it is signed, what its outcome changes, and how callers see it.

What an outcome changes is data (interface T13, T14, H2). A hold is released in two cases: the money has left
the balance, or it certainly never will. Callers, logs and metrics see a transfer as T2, T4, T5 and AP2 say.
"""

import logging
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import attrs

from agentpay.contract import events
from agentpay.contract.errors import ErrorCode, RejectionReason
from agentpay.contract.ext.payments import PaymentSplit
from agentpay.contract.transactions import Direction, TransactionStatus, TransactionType
from agentpay.contract.transfers import Transfer, TransferStatus
from agentpay.contract.usdc import from_micro
from agentpay_server.chain import transactions
from agentpay_server.chain.protocol import Blockhash, Chain, FailureReason, SignedTransaction
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import AccountRecord, EntryRecord, TransferRecord
from agentpay_server.engine import policy as rules
from agentpay_server.engine.movement import Ending, Movement, Replacement, Resigning
from agentpay_server.engine.policy import Refusal, stored_policy
from agentpay_server.ledger import audit
from agentpay_server.ledger.apply import Outcome, Posting
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US
from agentpay_server.ledger.outbox import NewEvent
from agentpay_server.ledger.spending import HoldChange
from agentpay_server.ledger.transactions import TRANSACTIONS, StoredTransaction
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.logs import log
from agentpay_server.transfers import store
from agentpay_server.transfers.store import splits_of

_OTHER: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The chain refused the transaction; nothing was moved. Retry with the same key.",
)
_FAILURES: Final = {
    FailureReason.INSUFFICIENT_FUNDS: Refusal(
        code=ErrorCode.INSUFFICIENT_BALANCE,
        message="The balance had fallen below the amount when the transaction reached the chain; nothing was "
        "moved. Fund the account, then retry with the same key.",
    ),
    FailureReason.ACCOUNT_FROZEN: Refusal(
        code=ErrorCode.TRANSFER_FAILED,
        message="A token account of this transfer was frozen when the transaction reached the chain; nothing "
        "was moved. Retry with the same key once it is thawed.",
    ),
    FailureReason.ACCOUNT_MISSING: Refusal(
        code=ErrorCode.TRANSFER_FAILED,
        message="The recipient's token account did not exist when the transaction reached the chain; "
        "nothing was moved. Retry with the same key once it exists.",
    ),
}


def _accounts(tx: StoredTransaction, transfer: TransferRecord) -> tuple[str, ...]:
    """Return both sides."""
    recipient = transfer.recipient_account_id
    return (tx.account_id,) if recipient is None else (tx.account_id, recipient)


def _announced(ending: Ending[TransferRecord]) -> Outcome[TransferRecord]:
    return reported(ending.subject, initiated(ending.subject, ending.tx.signature))


def _landed(ending: Ending[TransferRecord]) -> Outcome[TransferRecord]:
    tx, transfer = ending.tx, ending.subject
    events = [settled(transfer, tx.name, ending.now_us)]
    if tx.announced_us is None:
        events.insert(0, initiated(transfer, tx.name))
    amount, payee, sent = transfer.amount, transfer.recipient_account_id, sent_entry(transfer, tx.name)
    postings = [Posting(account_id=transfer.account_id, release=amount, debit=amount, entries=(sent,))]
    if payee is not None and payee not in ending.received_by:
        arrived = attrs.evolve(
            sent, type=TransactionType.DEPOSIT, direction=Direction.IN, counterparty=transfer.account_id
        )
        postings.append(Posting(account_id=payee, credit=amount, entries=(arrived,)))
    return Outcome(
        operator_id=transfer.operator_id,
        account_id=transfer.account_id,
        subject=ended(transfer, TransferStatus.SETTLED, tx_signature=tx.name, now_us=ending.now_us),
        postings=tuple(postings),
        events=tuple(events),
    )


def _failed(ending: Ending[TransferRecord]) -> Outcome[TransferRecord]:
    assert ending.failure is not None  # noqa: S101 - it has failed
    return failed(ending, _FAILURES.get(ending.failure.reason, _OTHER))


def _resign(resigning: Resigning[TransferRecord]) -> Replacement | Refusal:
    """Sign a replacement, unless the account is now paused."""
    transfer, source = resigning.subject, resigning.source
    refusal = rules.paused_refusal(stored_policy(source.policy), transfer.amount)
    if refusal is not None:
        return refusal
    if transfer.recipient_token_account is None:
        raise ValueError(f"{transfer.transfer_id} has no recipient token account")
    signed = signed_transfer(
        resigning.unit.context,
        source,
        resigning.blockhash,
        transfer_id=transfer.transfer_id,
        recipient=transfer.recipient_token_account,
        amount_micro=transfer.amount,
        memo=transfer.memo,
    )
    change = store.TRANSFERS.to_change(transfer, store.IS_SUBMITTED, tx_signature=signed.signature)
    return Replacement(signed=signed, change=change, budgeted=signed.fee_lamports)


def _expired(ending: Ending[TransferRecord]) -> Outcome[TransferRecord]:
    """Return the outcome of a failed transfer: its account was paused before a replacement was signed."""
    message = f"{ending.reason.message} The transaction had expired without landing; nothing was moved."
    return failed(ending, attrs.evolve(ending.reason, message=message))


def _late(ending: Ending[TransferRecord]) -> Outcome[TransferRecord]:
    """Return the outcome of a transaction that landed after it was considered expired.

    The money has moved, whatever the transfer's status: it is posted and counted. A transfer that is in
    progress or failed becomes settled. A transfer that another transaction has settled was paid twice.
    """
    tx, transfer = ending.tx, ending.subject
    if transfer.status == TransferStatus.SUBMITTED:
        return _landed(ending)
    # Its events are written, and its hold was released, or belonged to another transaction.
    ending = attrs.evolve(ending, tx=attrs.evolve(tx, announced_us=tx.announced_us or ending.now_us))
    outcome = _landed(ending)
    if transfer.status == TransferStatus.SETTLED:
        outcome = attrs.evolve(outcome, subject=transfer, events=())
    hold = Posting(account_id=tx.account_id, hold=transfer.amount)
    outcome = outcome.also(changes=(HoldChange(transfer.transfer_id, amount=transfer.amount),))
    if tx.released_us is None:
        return outcome.also(attrs.evolve(hold, spent=transfer.amount))
    # It counts again, at its original time.
    return outcome.also(hold, changes=(TRANSACTIONS.to_change(tx, released_us=None),))


def _report(ending: Ending[TransferRecord]) -> None:
    report(ending.context, ending.subject, spent_us=ending.tx.spent_us)


TRANSFER: Final[Movement[TransferRecord]] = Movement(
    kind=Operation.TRANSFER,
    load=store.TRANSFERS.existing,
    newest=lambda transfer: transfer.tx_signature,
    landed=_landed,
    failed=_failed,
    expired=_expired,
    late=_late,
    announced=_announced,
    resign=_resign,
    accounts=_accounts,
    report=_report,
    changes_due_times=False,
)
"""The transaction of a transfer (interface T13, T14)."""


def failed(ending: Ending[TransferRecord], refusal: Refusal) -> Outcome[TransferRecord]:
    """Return the outcome of a transfer that moved nothing and never will."""
    tx = ending.tx
    change = ended(
        ending.subject,
        TransferStatus.FAILED,
        tx_signature=tx.name,
        now_us=ending.now_us,
        error=refusal.code.value,
        message=refusal.message,
        refusal=store.refusal_text(refusal.facts or rules.facts_of(refusal.code, ending.subject.amount)),
    )
    after = change.after
    record = audit.Record(
        actor=audit.ServerActor(after.operator_id),
        action=audit.TRANSFER_FAILED,
        subject=after.transfer_id,
        before={"status": TransferStatus.SUBMITTED.value},
        after=audited(after),
    )
    before = () if tx.announced_us is not None else (initiated(after, after.tx_signature),)
    outcome = rejection(change, refusal.code, refusal.message, before=before)
    return outcome.also(Posting(account_id=after.account_id, release=tx.hold), audit=(record,))


def ended(
    transfer: TransferRecord,
    status: TransferStatus,
    *,
    tx_signature: str | None,
    now_us: int,
    error: str | None = None,
    message: str | None = None,
    **columns: Any,  # noqa: ANN401 - each as its column
) -> Change[TransferRecord]:
    """Return the change of a transfer to a final status.

    Its transaction leaves `pending` in the same commit, so no other driver can do the same. The key of a
    payment that settled is never released.
    """
    is_paid = status is TransferStatus.SETTLED
    return store.TRANSFERS.to_change(
        transfer,
        store.WAS,
        given={"old_status": transfer.status},
        status=status.value,
        error=error,
        message=message,
        tx_signature=tx_signature,
        settled_us=now_us if is_paid else None,
        key_expires_us=None if is_paid and transfer.payment_digest is not None else now_us + KEY_LIFETIME_US,
        **columns,
    )


def signed_transfer(
    context: Context,
    source: AccountRecord,
    blockhash: Blockhash,
    *,
    transfer_id: str,
    recipient: str,
    amount_micro: int,
    memo: str | None,
) -> SignedTransaction:
    """Return the transaction that moves a transfer's amount to `recipient`, a token account."""
    return transactions.transfer(
        context.signer,
        blockhash,
        usdc_mint=context.chain.usdc_mint,
        account_index=source.key_index,
        source=source.usdc_token_account,
        recipient=recipient,
        amount_micro=amount_micro,
        memo=transactions.memo_text(transfer_id, memo, context.settings.onchain_memo.value),
    )


def rejection(
    transfer: TransferRecord | Change[TransferRecord],
    code: ErrorCode | RejectionReason,
    message: str,
    *,
    before: tuple[NewEvent, ...] = (),
) -> Outcome[TransferRecord]:
    """Return the outcome of a transfer that is rejected or has failed: a history entry and an event.

    The events in `before` come first.
    """
    record = transfer.after if isinstance(transfer, Change) else transfer
    # What was refused at once counts toward nothing.
    has_hold = isinstance(transfer, Change) or record.approval_expires_us is not None
    entry = EntryRecord(
        type=TransactionType.REJECTION,
        status=TransactionStatus.REJECTED,
        direction=Direction.OUT,
        amount=record.amount,
        counterparty=record.to,
        memo=record.memo,
        category=record.category,
        tx_signature=record.tx_signature,
        transfer_id=record.transfer_id,
        rejection_reason=code.value,
    )
    rejected = NewEvent(
        type="transfer.rejected",
        data=events.TransferRejectedData(
            account_id=record.account_id,
            rejection_reason=code.value,
            transfer_id=record.transfer_id,
            to=record.to,
            amount_usdc=from_micro(record.amount),
            message=message,
        ),
    )
    return Outcome(
        operator_id=record.operator_id,
        account_id=record.account_id,
        subject=transfer,
        postings=(Posting(account_id=record.account_id, entries=(entry,)),),
        changes=(HoldChange(record.transfer_id),) if has_hold else (),
        events=(*before, rejected),
    )


def reported(transfer: TransferRecord, *new_events: NewEvent) -> Outcome[TransferRecord]:
    """Return the outcome that only reports events about a transfer."""
    return Outcome(
        operator_id=transfer.operator_id,
        account_id=transfer.account_id,
        subject=transfer,
        events=new_events,
    )


def audited(transfer: TransferRecord) -> dict[str, object]:
    """Return a transfer's request, and its outcome so far, for the audit trail."""
    return audit.given(
        account_id=transfer.account_id,
        to=transfer.to,
        amount_usdc=audit.usdc(transfer.amount),
        memo=transfer.memo,
        category=transfer.category,
        idempotency_key=transfer.idempotency_key,
        status=transfer.status,
        error=transfer.error,
        message=transfer.message,
        tx_signature=transfer.tx_signature,
    )


def initiated(transfer: TransferRecord, tx_signature: str | None) -> NewEvent:
    """Return the event that a transfer was sent as a transaction."""
    return NewEvent(
        type="transfer.initiated",
        data=events.TransferInitiatedData(
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            to=transfer.to,
            amount_usdc=from_micro(transfer.amount),
            tx_signature=tx_signature,
        ),
    )


def settled(transfer: TransferRecord, tx_signature: str | None, now_us: int) -> NewEvent:
    """Return the event that a transfer is final on chain."""
    assert tx_signature is not None  # noqa: S101 - set when it was signed
    return NewEvent(
        type="transfer.settled",
        data=events.TransferSettledData(
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            amount_usdc=from_micro(transfer.amount),
            tx_signature=tx_signature,
            settled_at=from_us(now_us),
        ),
    )


def escalated(transfer: TransferRecord, threshold: Decimal) -> NewEvent:
    """Return the event that a transfer is pending an operator's approval."""
    return NewEvent(
        type="escalation.required",
        data=events.EscalationRequiredData(
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            to=transfer.to,
            amount_usdc=from_micro(transfer.amount),
            memo=transfer.memo,
            escalation_threshold=threshold,
        ),
    )


def sent_entry(transfer: TransferRecord, tx_signature: str | None) -> EntryRecord:
    """Return the payer's history entry of a settled transfer."""
    return EntryRecord(
        type=TransactionType.TRANSFER,
        direction=Direction.OUT,
        amount=transfer.amount,
        counterparty=transfer.to,
        memo=transfer.memo,
        category=transfer.category,
        tx_signature=tx_signature,
        transfer_id=transfer.transfer_id,
    )


# --- As callers, logs and metrics see a transfer

_REASONS: Final = frozenset(RejectionReason)

logger: logging.Logger = logging.getLogger(__name__)


def to_response(record: TransferRecord, chain: Chain) -> Transfer:
    """Return the current state of a transfer."""
    signature = record.tx_signature
    return Transfer(
        transfer_id=record.transfer_id,
        status=TransferStatus(record.status).value,
        from_=record.account_id,
        to=record.to,
        amount_usdc=from_micro(record.amount),
        memo=record.memo,
        idempotency_key=record.idempotency_key,
        tx_signature=signature,
        chain_explorer_url=None if signature is None else chain.explorer_url(signature),
        settled_at=None if record.settled_us is None else from_us(record.settled_us),
        error=record.error,
        message=record.message,
        refusal=store.refusal_of(record),
    )


def split_responses(record: TransferRecord) -> tuple[PaymentSplit, ...] | None:
    """Return what other recipients than `to` get; None if all of it goes to `to`."""
    splits = [
        PaymentSplit(recipient=split.recipient, amount_usdc=from_micro(split.amount_micro))
        for split in splits_of(record)
    ]
    return tuple(splits) or None


def final_response(record: TransferRecord, chain: Chain, *, is_replay: bool = False) -> Transfer:
    """Return a transfer that is settled, approved or pending approval.

    `is_replay` tells whether an earlier request under its idempotency key had this outcome.

    Raises:
        Problem: it was refused, has failed, or its outcome is not known yet.
    """
    if record.status in (TransferStatus.SETTLED, TransferStatus.PENDING_APPROVAL, TransferStatus.APPROVED):
        return to_response(record, chain)
    if record.status == TransferStatus.SUBMITTED:
        raise Problem(
            ErrorCode.CHAIN_UNAVAILABLE,
            "The transfer is in flight and its outcome is unknown. Read it, or retry with the same "
            "idempotency_key; never pay again under another key.",
            says_what_to_do=True,
            transfer_id=record.transfer_id,
            status=TransferStatus.SUBMITTED,
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    raise refused(record, is_replay=is_replay)


def refused(record: TransferRecord, *, is_replay: bool = False) -> Problem:
    """Return the error for a transfer that was refused or has failed (interface I10 for a replay)."""
    return Problem(
        _code(record.error),
        record.message or "The transfer was refused.",
        transfer_id=record.transfer_id,
        status=record.status,
        refusal=store.refusal_of(record),
        decided_at=decided_at(record) if is_replay else None,
    )


def decided_at(record: TransferRecord) -> datetime | None:
    """Return when a transfer became final, which is when the lifetime of its key began (interface I8)."""
    expires_us = record.key_expires_us
    return None if expires_us is None else from_us(expires_us - KEY_LIFETIME_US)


def _code(error: str | None) -> ErrorCode:
    # Callers see a rejection by an operator, or an expiry, as a policy violation (interface AP4).
    return ErrorCode.POLICY_VIOLATION if error in _REASONS else ErrorCode(error or ErrorCode.TRANSFER_FAILED)


def report(context: Context, transfer: TransferRecord, *, spent_us: int | None = None) -> None:
    """Count and log a transfer that this process has decided or ended.

    `spent_us`, for an ended transfer, is the time at which it was spent.
    """
    context.metrics.transfers[transfer.status, transfer.error or ""] += 1
    duration_us = None
    if transfer.settled_us is not None and spent_us is not None:
        duration_us = max(transfer.settled_us - spent_us, 0)
        context.metrics.settlement_seconds.observe(duration_us / SECOND_US)
    if logger.isEnabledFor(logging.INFO):
        log(
            logger,
            logging.INFO,
            f"transfer.{transfer.status}",
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            error=transfer.error,
            tx_signature=transfer.tx_signature,
            duration_ms=None if duration_us is None else duration_us / 1000,
        )
