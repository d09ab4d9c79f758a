"""What is booked for a transfer at each end of its transaction: settled, failed, or signed again.

Every step checks and changes the transfer in one unit of work, so that repeating it does nothing more. A
reservation is given back in two places, both here: when the money has left the balance, and when it is proved
that it never will.
"""

from typing import Final

import attrs

from agentpay.contract.errors import ErrorCode
from agentpay.contract.transfers import TransferStatus
from agentpay_server import audit
from agentpay_server.chain import transactions
from agentpay_server.chain.protocol import (
    Blockhash,
    ChainUnavailableError,
    Failure,
    FailureReason,
    SignedTransaction,
)
from agentpay_server.context import Context
from agentpay_server.crash_points import Operation
from agentpay_server.database.connection import Connection
from agentpay_server.domain import policy as rules
from agentpay_server.domain.transfers import KEY_LIFETIME_US, check_transition
from agentpay_server.services import low_balance
from agentpay_server.services.policies import stored_policy
from agentpay_server.services.settlement import Ended, Landed
from agentpay_server.services.transfers import booking
from agentpay_server.services.transfers.reporting import report
from agentpay_server.store import accounts as account_store
from agentpay_server.store import confirmed, spends
from agentpay_server.store import expired as expired_store
from agentpay_server.store import transfers as store
from agentpay_server.store.expired import Kind
from agentpay_server.store.transfers import TransferRecord

_FAILURE_CODES: Final = {
    FailureReason.INSUFFICIENT_FUNDS: ErrorCode.INSUFFICIENT_BALANCE,
    FailureReason.ACCOUNT_FROZEN: ErrorCode.TRANSFER_FAILED,
    FailureReason.ACCOUNT_MISSING: ErrorCode.TRANSFER_FAILED,
    FailureReason.OTHER: ErrorCode.TRANSFER_FAILED,
}
_FAILURE_MESSAGES: Final = {
    FailureReason.INSUFFICIENT_FUNDS: "The balance had fallen below the amount when the transaction reached "
    "the chain; nothing was moved. Fund the account, then send the same key again.",
    FailureReason.ACCOUNT_FROZEN: "A token account of this transfer was frozen when the transaction reached "
    "the chain; nothing was moved. Send the same key again once it is thawed.",
    FailureReason.ACCOUNT_MISSING: "The recipient's token account was gone when the transaction reached the "
    "chain; nothing was moved. Send the same key again once it exists.",
    FailureReason.OTHER: "The chain refused the transaction; nothing was moved. Send the same key again to "
    "retry.",
}


class TransferSteps:
    """What is booked for one transfer at each end of its transaction."""

    def __init__(self, context: Context, transfer: TransferRecord) -> None:
        self._context = context
        self._database = context.database
        self._transfer = transfer

    @property
    def operation(self) -> Operation:
        """What the transaction is for, for fault points."""
        is_approved = self._transfer.approval_expires_us is not None
        return Operation.APPROVE if is_approved else Operation.TRANSFER

    async def sent(self) -> None:
        """Write `transfer.initiated`: it was handed over, and finality is awaited (interface T14)."""
        await self._database.run(self._initiate)
        self._context.wakeup.set()

    async def landed(self, signed: SignedTransaction, end: Landed) -> TransferRecord:
        """Book a transfer that is final on chain."""
        is_watched = not end.is_irreversible
        settled, is_ours, is_low = await self._database.run(self._settle, signed, is_watched=is_watched)
        self._context.wakeup.set()
        if is_ours:
            report(self._context, settled)
        if is_low:
            await low_balance.judge(self._context, settled.account_id)
        return settled

    async def failed(self, signed: SignedTransaction, failure: Failure) -> TransferRecord:
        """Book a transfer that the chain refused (interface T13)."""
        reason = failure.reason if failure.reason in _FAILURE_CODES else FailureReason.OTHER
        code, message = _FAILURE_CODES[reason], _FAILURE_MESSAGES[reason]
        failed, is_ours = await self._database.run(self._fail, signed, code, message)
        self._context.wakeup.set()
        if is_ours:
            report(self._context, failed)
        return failed

    async def expired(self, signed: SignedTransaction) -> SignedTransaction | Ended[TransferRecord]:
        """Sign again, unless the account is paused by now (interface T13)."""
        blockhash = await self._context.chain.latest_blockhash()
        if blockhash.last_valid_block_height <= signed.last_valid_block_height:
            # Of a node that lags: the height that proved the expiry was already above it.
            raise ChainUnavailableError("the chain offered a blockhash that has expired")
        following, is_ours = await self._database.run(self._sign_again, signed, blockhash)
        self._context.wakeup.set()
        if is_ours and isinstance(following, Ended):
            report(self._context, following.result)
        return following

    def _initiate(self, connection: Connection) -> None:
        if store.set_initiated(connection, self._transfer.transfer_id):
            now_us = self._context.clock.now_us()
            # Read again, since it may have been signed again: the event names what was handed over.
            happening = booking.initiated(self._current(connection))
            booking.record_events(connection, self._context, self._transfer, now_us, happening)

    # What brings the transfer to an end also returns whether it did, and not another driver before it.

    def _settle(
        self, connection: Connection, signed: SignedTransaction, *, is_watched: bool
    ) -> tuple[TransferRecord, bool, bool]:
        """Return the transfer, whether it was settled here, and whether its account looks low."""
        now_us = self._context.clock.now_us()
        end = attrs.evolve(
            self._transfer,
            status=TransferStatus.SETTLED.value,
            tx_signature=signed.signature,
            settled_us=now_us,
            key_expires_us=now_us + KEY_LIFETIME_US,
        )
        finished = self._finished(connection, end)
        if finished is None:
            return self._current(connection), False, False
        is_low = booking.book_settled(connection, self._context, end, now_us, is_initiated=finished.initiated)
        if is_watched:
            confirmed.watch(connection, signed, end.transfer_id)
        return finished, True, is_low

    def _fail(
        self, connection: Connection, signed: SignedTransaction, code: ErrorCode, message: str
    ) -> tuple[TransferRecord, bool]:
        now_us = self._context.clock.now_us()
        end = attrs.evolve(
            self._transfer,
            status=TransferStatus.FAILED.value,
            error=code.value,
            message=message,
            tx_signature=signed.signature,
            key_expires_us=now_us + KEY_LIFETIME_US,
        )
        finished = self._finished(connection, end)
        if finished is None:
            return self._current(connection), False
        account_store.release(connection, end.account_id, end.amount)
        audit.record(
            connection,
            audit.Server(end.operator_id),
            action=audit.TRANSFER_FAILED,
            subject=end.transfer_id,
            now_us=now_us,
            before={"status": TransferStatus.SUBMITTED.value},
            after=booking.audited(end),
        )
        assert end.spent_us is not None  # noqa: S101 - a submitted transfer has been spent
        spends.insert_release(
            connection,
            end.account_id,
            spent_us=end.spent_us,
            source_id=end.transfer_id,
            amount=end.amount,
        )
        before = () if finished.initiated else (booking.initiated(end),)
        booking.book_rejection(
            connection, self._context, end, now_us, code=code, message=message, before=before
        )
        return finished, True

    def _finished(self, connection: Connection, end: TransferRecord) -> TransferRecord | None:
        """Bring the transfer to `end`, and return it; None when it has ended before."""
        check_transition(TransferStatus.SUBMITTED, end.status)
        if store.finish(connection, end):
            return end
        current = store.transfer(connection, end.transfer_id, lock=True)
        if current is None or current.status != TransferStatus.SUBMITTED:
            return None
        # `transfer.initiated` was written since this driver read the transfer.
        end = attrs.evolve(end, initiated=current.initiated)
        return end if store.finish(connection, end) else None

    def _sign_again(
        self, connection: Connection, expired: SignedTransaction, blockhash: Blockhash
    ) -> tuple[SignedTransaction | Ended[TransferRecord], bool]:
        context = self._context
        source = account_store.account(connection, self._transfer.account_id, lock=True)
        assert source is not None  # noqa: S101 - accounts are never deleted
        transfer = self._current(connection)
        if transfer.status != TransferStatus.SUBMITTED:
            return Ended(transfer), False
        if transfer.signed.signature != expired.signature:
            return transfer.signed, False
        if source.stopped_us is not None:
            raise ChainUnavailableError("nothing is signed for the account")
        now_us = context.clock.now_us()
        expired_store.watch(
            connection,
            expired,
            kind=Kind.TRANSFER,
            subject_id=transfer.transfer_id,
            account_id=transfer.account_id,
            now_us=now_us,
        )
        refusal = rules.paused_refusal(stored_policy(source.policy))
        if refusal is not None:
            message = f"{refusal.message} The transaction had expired without landing; nothing was moved."
            failed, is_ours = self._fail(connection, expired, refusal.code, message)
            return Ended(failed), is_ours
        assert transfer.recipient_token_account is not None  # noqa: S101 - resolved before it was submitted
        signed = transactions.transfer(
            context.signer,
            blockhash,
            usdc_mint=context.chain.usdc_mint,
            account_index=source.key_index,
            source=source.usdc_token_account,
            recipient=transfer.recipient_token_account,
            amount_micro=transfer.amount,
            memo=transactions.memo_text(
                transfer.transfer_id, transfer.memo, context.settings.onchain_memo.value
            ),
        )
        store.sign_again(connection, transfer.transfer_id, signed)
        return signed, False

    def _current(self, connection: Connection) -> TransferRecord:
        record = store.transfer(connection, self._transfer.transfer_id)
        assert record is not None  # noqa: S101 - transfers are never deleted
        return record
