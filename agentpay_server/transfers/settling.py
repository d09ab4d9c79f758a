"""The handler that books the outcomes of transfers: settled, failed, or replaced.

A reservation is released in two cases: the money has left the balance, or it certainly never will.
"""

from typing import Final

import attrs

from agentpay.contract.errors import ErrorCode
from agentpay.contract.transfers import TransferStatus
from agentpay_server.chain.protocol import Failure, FailureReason
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import TransferRecord
from agentpay_server.engine import policy as rules
from agentpay_server.engine.handlers import Handler, Replacement, SigningInputs, Unit
from agentpay_server.engine.policy import Refusal, stored_policy
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit, entries
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US
from agentpay_server.ledger.transactions import ChainTransaction, Kind
from agentpay_server.platform.crash_points import Operation
from agentpay_server.transfers import booking, store
from agentpay_server.transfers.reporting import report
from agentpay_server.transfers.rules import check_transition
from agentpay_server.transfers.signing import signed_transfer

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


class TransferHandler(Handler[TransferRecord]):
    """Books the outcomes of a transfer's transaction (interface T13, T14)."""

    kind = Kind.TRANSFER
    announces = True

    def operation(self, subject: TransferRecord) -> Operation:
        """Return the purpose: approved transfers have their own."""
        return Operation.TRANSFER if subject.approval_expires_us is None else Operation.APPROVE

    def load(self, connection: Connection, subject_id: str) -> TransferRecord:
        """Return the transfer."""
        return store.TRANSFERS.existing(connection, subject_id)

    def announced(self, unit: Unit, tx: ChainTransaction, subject: TransferRecord) -> None:
        """Write `transfer.initiated`."""
        sent = booking.initiated(subject, tx.signature)
        booking.record_events(unit.connection, unit.context, subject, unit.now_us, sent)

    def settled(self, unit: Unit, tx: ChainTransaction, subject: TransferRecord) -> TransferRecord:
        """Book a transfer that is final on chain."""
        booking.book_settled(unit, subject, tx.name, is_initiated=tx.announced_us is not None)
        # After the accounts, which all units lock first.
        return _finished(unit, tx, subject, TransferStatus.SETTLED, settled_us=unit.now_us)

    def failed(
        self, unit: Unit, tx: ChainTransaction, subject: TransferRecord, failure: Failure
    ) -> TransferRecord:
        """Book a transfer that the chain rejected."""
        return self._failed(unit, tx, subject, _FAILURES.get(failure.reason, _OTHER))

    def sign_replacement(
        self,
        unit: Unit,
        tx: ChainTransaction,  # noqa: ARG002
        subject: TransferRecord,
        means: SigningInputs,
    ) -> Replacement | Refusal:
        """Sign a replacement, unless the account is now paused."""
        refusal = rules.paused_refusal(stored_policy(means.source.policy))
        if refusal is not None:
            return refusal
        if subject.recipient_token_account is None:
            raise ValueError(f"{subject.transfer_id} has no recipient token account")
        signed = signed_transfer(
            unit.context,
            means.source,
            means.blockhash,
            transfer_id=subject.transfer_id,
            recipient=subject.recipient_token_account,
            amount_micro=subject.amount,
            memo=subject.memo,
        )
        store.TRANSFERS.changed(unit.connection, subject, store.IS_SUBMITTED, tx_signature=signed.signature)
        return Replacement(signed=signed)

    def dropped(
        self, unit: Unit, tx: ChainTransaction, subject: TransferRecord, reason: Refusal
    ) -> TransferRecord:
        """Book a failed transfer: its account was paused before a replacement could be signed."""
        message = f"{reason.message} The transaction had expired without landing; nothing was moved."
        return self._failed(unit, tx, subject, attrs.evolve(reason, message=message))

    def landed_late(self, unit: Unit, tx: ChainTransaction) -> str | None:
        """Book a transaction that landed after it was considered expired.

        The money has moved, whatever the transfer's status: it is booked and counted. A transfer that is in
        progress or failed becomes settled. A transfer that another transaction has settled was paid twice.
        """
        connection = unit.connection
        is_received = _is_received(
            connection, store.TRANSFERS.existing(connection, tx.subject_id), tx.signature
        )
        # `_is_received` has locked the accounts: they are locked before transfers.
        transfer = store.TRANSFERS.existing(connection, tx.subject_id, lock=True)
        is_initiated = tx.announced_us is not None
        if transfer.status != TransferStatus.SUBMITTED:
            # Its reservation was released, or belonged to another transaction.
            booking.spend_late(unit, tx, transfer.amount)
            is_initiated = True
        booking.book_settled(
            unit,
            transfer,
            tx.name,
            is_initiated=is_initiated,
            emits_settled=transfer.status != TransferStatus.SETTLED,
            is_received=is_received,
        )
        if transfer.status != TransferStatus.SETTLED:
            check_transition(transfer.status, TransferStatus.SETTLED)
            _finished(unit, tx, transfer, TransferStatus.SETTLED, settled_us=unit.now_us)
        return None if transfer.tx_signature == tx.signature else transfer.tx_signature

    def report(
        self,
        context: Context,
        tx: ChainTransaction,
        subject: TransferRecord,
        detail: str | None,  # noqa: ARG002
    ) -> None:
        """Count and log the transfer."""
        report(context, subject, spent_us=tx.spent_us)

    def _failed(
        self, unit: Unit, tx: ChainTransaction, subject: TransferRecord, refusal: Refusal
    ) -> TransferRecord:
        connection, now_us = unit.connection, unit.now_us
        account_store.release(connection, subject.account_id, tx.held)
        failed = _finished(
            unit, tx, subject, TransferStatus.FAILED, error=refusal.code.value, message=refusal.message
        )
        audit.record(
            connection,
            audit.Server(failed.operator_id),
            action=audit.TRANSFER_FAILED,
            subject=failed.transfer_id,
            now_us=now_us,
            before={"status": TransferStatus.SUBMITTED.value},
            after=booking.audited(failed),
        )
        before = () if tx.announced_us is not None else (booking.initiated(failed, failed.tx_signature),)
        booking.book_rejection(
            connection,
            unit.context,
            failed,
            now_us,
            code=refusal.code,
            message=refusal.message,
            before=before,
        )
        return failed


def _finished(
    unit: Unit,
    tx: ChainTransaction,
    transfer: TransferRecord,
    status: TransferStatus,
    *,
    settled_us: int | None = None,
    error: str | None = None,
    message: str | None = None,
) -> TransferRecord:
    """Set a transfer to a final status.

    Its transaction has left `pending` in the same commit, so no other driver can do the same.
    """
    return store.TRANSFERS.changed(
        unit.connection,
        transfer,
        store.WAS,
        given={"old_status": transfer.status},
        status=status.value,
        error=error,
        message=message,
        tx_signature=tx.name,
        settled_us=settled_us,
        key_expires_us=unit.now_us + KEY_LIFETIME_US,
    )


def _is_received(connection: Connection, transfer: TransferRecord, signature: str) -> bool:
    """Lock the accounts of both sides, and return whether the recipient has booked it as a deposit."""
    recipient = transfer.recipient_account_id
    # Lock them in one order, so that two transfers in opposite directions never deadlock.
    for account_id in sorted({transfer.account_id, recipient or transfer.account_id}):
        account_store.ACCOUNTS.get(connection, account_id, lock=True)
    return recipient is not None and entries.is_deposit_booked(connection, recipient, signature)
