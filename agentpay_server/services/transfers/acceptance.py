"""Deciding about a new transfer: one unit of work that refuses it, sets it aside, or reserves and signs it.

The policy check, the reservation and the signed bytes are one commit. Nothing here sends, and nothing here
waits: what is read from the chain comes in as `Sight`.
"""

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.policies import Policy
from agentpay.contract.transfers import CreateTransfer, TransferStatus
from agentpay.contract.usdc import to_micro
from agentpay_server.chain import transactions
from agentpay_server.chain.base import SignedTransaction
from agentpay_server.clock import real_now_us
from agentpay_server.domain import policy as rules
from agentpay_server.domain.policy import Means, Recipient, Refusal, Spend
from agentpay_server.domain.principals import Principal
from agentpay_server.domain.transfers import (
    KEY_LIFETIME_US,
    LEASE_US,
    KeyHolder,
    Terms,
    check_transition,
)
from agentpay_server.services import audit
from agentpay_server.services.context import Context
from agentpay_server.services.policies import stored_policy
from agentpay_server.services.sight import Contended, Sight
from agentpay_server.services.transfers import booking
from agentpay_server.store import accounts as account_store
from agentpay_server.store import spends
from agentpay_server.store import transfers as store
from agentpay_server.store.accounts import AccountRecord
from agentpay_server.store.connection import Connection
from agentpay_server.store.transfers import TransferRecord


class Acceptance:
    """The unit of work that decides about a new transfer and reserves, or refuses, in one commit.

    Args:
        context: the parts of the server.
        principal: who asks.
        request: what is asked.
        superseded: the ended transfer that holds the key of the request, if one does; it loses it.
        sight: what was read from the chain; None when the account was paused at the first look.
        is_last_look: whether there is no time left to read the balance again should it be contended.
    """

    def __init__(
        self,
        context: Context,
        principal: Principal,
        request: CreateTransfer,
        superseded: TransferRecord | None,
        sight: Sight | None,
        *,
        is_last_look: bool,
    ) -> None:
        self._context = context
        self._principal = principal
        self._request = request
        self._superseded = superseded
        self._sight = sight
        self._is_last_look = is_last_look
        self._amount = to_micro(request.amount)

    def __call__(self, connection: Connection) -> TransferRecord | None:
        """Decide, and return the new transfer.

        Returns:
            None when the world has moved since it was looked at, and must be looked at again.

        Raises:
            Contended: the balance must be read again.
            ConflictError: another transfer has taken the idempotency key.
        """
        source = account_store.account(connection, self._request.from_, lock=True)
        assert source is not None  # noqa: S101 - accounts are never deleted
        policy, sight = stored_policy(source.policy), self._sight
        refusal = rules.paused_refusal(policy)
        if refusal is None and sight is None:
            return None
        superseded = self._superseded
        if superseded is not None and not store.free_key(connection, superseded.transfer_id):
            return None
        now_us = self._context.clock.now_us()
        # Time never goes back within an account: the order of its spends is the order of their times.
        spent_us = max(now_us, source.last_spend_us)
        if refusal is None and sight is not None:
            refusal = self._refusal(connection, source, policy, sight, spent_us)
        if refusal is not None:
            return self._refused(connection, refusal, now_us)
        assert sight is not None  # noqa: S101 - without sight the account is paused, which is a refusal
        if rules.needs_approval(policy, self._amount):
            return self._pending(connection, policy, sight, now_us)
        return self._submitted(connection, source, sight, spent_us, now_us)

    def _refusal(
        self, connection: Connection, source: AccountRecord, policy: Policy, sight: Sight, spent_us: int
    ) -> Refusal | None:
        spend = Spend(
            amount_micro=self._amount,
            to=self._request.to,
            recipient=sight.recipient,
            memo=self._request.memo,
            category=self._request.category,
        )
        unsure_micro = sight.unsure_micro(source)
        means = Means(
            spent_micro=0
            if policy.max_daily_spend is None
            else spends.against_daily_limit(connection, source, spent_us),
            available_micro=sight.balance_micro - unsure_micro,
        )
        refusal = rules.spending_refusal(policy, spend, means)
        if (
            refusal is not None
            and refusal.code == ErrorCode.INSUFFICIENT_BALANCE
            and unsure_micro
            and not self._is_last_look
        ):
            raise Contended
        return refusal

    def _submitted(
        self, connection: Connection, source: AccountRecord, sight: Sight, spent_us: int, now_us: int
    ) -> TransferRecord:
        context, request = self._context, self._request
        transfer_id = context.identifiers.new(identifiers.TRANSFER)
        signed = transactions.transfer(
            context.signer,
            sight.blockhash,
            usdc_mint=context.chain.usdc_mint,
            account_index=source.key_index,
            source=source.usdc_token_account,
            recipient=sight.recipient.token_account,
            amount_micro=self._amount,
            memo=transactions.memo_text(transfer_id, request.memo, context.settings.onchain_memo.value),
        )
        transfer = self._inserted(
            connection,
            transfer_id=transfer_id,
            status=TransferStatus.SUBMITTED,
            recipient=sight.recipient,
            signed=signed,
            spent_us=spent_us,
            created_us=now_us,
        )
        total = source.spent_total + self._amount
        spends.insert_spend(connection, source.account_id, spent_us=spent_us, running_total=total)
        account_store.reserve(
            connection, source.account_id, spent_total=total, spent_us=spent_us, amount=self._amount
        )
        return transfer

    def _refused(self, connection: Connection, refusal: Refusal, now_us: int) -> TransferRecord:
        transfer = self._inserted(
            connection,
            transfer_id=self._context.identifiers.new(identifiers.TRANSFER),
            status=TransferStatus.REJECTED,
            recipient=None,
            error=refusal.code.value,
            message=refusal.message,
            key_expires_us=now_us + KEY_LIFETIME_US,
            created_us=now_us,
        )
        booking.book_rejection(
            connection, self._context, transfer, now_us, code=refusal.code, message=refusal.message
        )
        return transfer

    def _pending(self, connection: Connection, policy: Policy, sight: Sight, now_us: int) -> TransferRecord:
        transfer = self._inserted(
            connection,
            transfer_id=self._context.identifiers.new(identifiers.TRANSFER),
            status=TransferStatus.PENDING_APPROVAL,
            recipient=sight.recipient,
            created_us=now_us,
        )
        escalated = booking.escalated(transfer, policy.escalation_threshold)
        booking.record_events(connection, self._context, transfer, now_us, escalated)
        return transfer

    def _inserted(
        self,
        connection: Connection,
        *,
        transfer_id: str,
        status: TransferStatus,
        recipient: Recipient | None,
        created_us: int,
        signed: SignedTransaction | None = None,
        spent_us: int | None = None,
        error: str | None = None,
        message: str | None = None,
        key_expires_us: int | None = None,
    ) -> TransferRecord:
        check_transition(None, status)
        record = TransferRecord(
            seq=0,
            transfer_id=transfer_id,
            operator_id=self._principal.operator_id,
            account_id=self._request.from_,
            key_id=self._principal.key_id,
            to=self._request.to,
            recipient_account_id=None if recipient is None else recipient.account_id,
            recipient_token_account=None if recipient is None else recipient.token_account,
            amount=self._amount,
            memo=self._request.memo,
            category=self._request.category,
            idempotency_key=self._request.idempotency_key,
            held_key=self._request.idempotency_key,
            key_expires_us=key_expires_us,
            status=status.value,
            error=error,
            message=message,
            tx_signature=None if signed is None else signed.signature,
            tx_raw=None if signed is None else signed.raw,
            tx_last_valid_block_height=None if signed is None else signed.last_valid_block_height,
            initiated=False,
            spent_us=spent_us,
            settled_us=None,
            created_us=created_us,
            leased_until_us=0 if signed is None else real_now_us() + LEASE_US,
        )
        store.insert_transfer(connection, record)
        audit.record(
            connection,
            self._principal,
            action="transfers.create",
            subject=transfer_id,
            now_us=created_us,
        )
        return record


def terms_of(request: CreateTransfer) -> Terms:
    """Return the parameters of a request that its idempotency key stands for."""
    return Terms(
        account_id=request.from_,
        to=request.to,
        amount_micro=to_micro(request.amount),
        memo=request.memo,
        category=request.category,
    )


def key_holder_of(record: TransferRecord | None) -> KeyHolder | None:
    """Return what the rule of idempotency needs of the transfer that holds a key."""
    if record is None:
        return None
    return KeyHolder(
        terms=Terms(
            account_id=record.account_id,
            to=record.to,
            amount_micro=record.amount,
            memo=record.memo,
            category=record.category,
        ),
        status=record.status,
        error=record.error,
        key_expires_us=record.key_expires_us,
    )
