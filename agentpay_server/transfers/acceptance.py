"""Deciding about a transfer: one unit of work that refuses, escalates, or reserves and signs.

The policy check, the reservation and the signed bytes are one commit. A new transfer (`creation.py`) and an
approved one (`approvals.py`) differ in how they are stored, and in that approval replaces escalation. Nothing
here sends or
waits: on-chain data is passed in as `Sight`.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from attrs import evolve, frozen

from agentpay.contract.policies import Policy
from agentpay.contract.transfers import TransferStatus
from agentpay_server.accounts import store as account_store
from agentpay_server.accounts.store import AccountRecord
from agentpay_server.clock import SECOND_US
from agentpay_server.context import Context
from agentpay_server.database.connection import Connection
from agentpay_server.errors import signing_stopped
from agentpay_server.money import policy as rules
from agentpay_server.money import spending
from agentpay_server.money import transactions as chain_transactions
from agentpay_server.money.authorization import Decided
from agentpay_server.money.handlers import pending_transaction
from agentpay_server.money.idempotency import KEY_LIFETIME_US
from agentpay_server.money.policy import Means, Purpose, Recipient, Refusal, Spend, stored_policy
from agentpay_server.money.preflight import Sight
from agentpay_server.money.transactions import ChainTransaction, Kind
from agentpay_server.transfers import booking
from agentpay_server.transfers.rules import Terms
from agentpay_server.transfers.signing import signed_transfer
from agentpay_server.transfers.store import TransferRecord


@frozen(kw_only=True)
class Decision:
    """The decision about a transfer.

    Attributes:
        status: the transfer's status now.
        recipient: the recipient, unless it is refused.
        refusal: why it is refused, if it is.
        tx_signature: of its transaction, if money may leave.
    """

    status: TransferStatus
    recipient: Recipient | None = None
    refusal: Refusal | None = None
    tx_signature: str | None = None

    def columns(self, now_us: int) -> dict[str, Any]:
        """Return the columns of `transfers` that a decision sets."""
        recipient, refusal = self.recipient, self.refusal
        return {
            "status": self.status.value,
            "recipient_account_id": None if recipient is None else recipient.account_id,
            "recipient_token_account": None if recipient is None else recipient.token_account,
            "error": None if refusal is None else refusal.code.value,
            "message": None if refusal is None else refusal.message,
            "key_expires_us": None if refusal is None else now_us + KEY_LIFETIME_US,
            "tx_signature": self.tx_signature,
        }


class Acceptance(ABC):
    """The unit of work that decides about one transfer, and reserves and signs, or refuses, in one commit.

    Args:
        context: the parts of the server.
        transfer_id: identifier of the transfer.
        terms: the requested parameters.
    """

    is_approved: ClassVar[bool]
    """Whether an operator has approved it, so that it is not escalated again."""

    again: ClassVar[str]
    """For `insufficient_balance`: what to do after funding the account, as the end of a sentence."""

    purpose: ClassVar[Purpose] = Purpose.TRANSFER
    """Term for the request in refusals."""

    def __init__(self, context: Context, *, transfer_id: str, terms: Terms) -> None:
        self._context = context
        self._transfer_id = transfer_id
        self._terms = terms

    @property
    def to(self) -> str:
        """The recipient, as sent."""
        return self._terms.to

    @abstractmethod
    def _claim(self, connection: Connection) -> bool:
        """Check that the transfer is still undecided, and claim the decision for this unit."""

    @abstractmethod
    def _store(self, connection: Connection, decision: Decision, now_us: int) -> TransferRecord:
        """Store the decided transfer, and its requester."""

    def __call__(
        self, connection: Connection, sight: Sight | None, *, is_last_look: bool
    ) -> Decided[TransferRecord] | None:
        """Decide, as a `SpendUnit`, and return the transfer; a refusal is stored.

        Raises:
            Problem: the account is blocked; nothing is stored.
        """
        # Policy changes and all spends of the account take this lock, which orders them.
        source = account_store.existing_account(connection, self._terms.account_id, lock=True)
        if must_look_again(source, sight):
            return None
        if not self._claim(connection):
            return None
        now_us = self._context.clock.now_us()
        # Times never decrease within an account: its spends are in the order of their times.
        spent_us = max(now_us, source.last_spend_us)
        refusal = self._refusal(connection, source, sight, spent_us, is_last_look=is_last_look)
        if refusal is not None:
            return self._refused(connection, refusal, now_us)
        assert sight is not None  # noqa: S101 - without sight the account is paused, which is a refusal
        policy = stored_policy(source.policy)
        if not self.is_approved and rules.needs_approval(policy, self._terms.amount_micro):
            return self._set_aside(connection, policy, sight, now_us)
        return self._submitted(connection, source, sight, spent_us, now_us)

    def _refusal(
        self,
        connection: Connection,
        source: AccountRecord,
        sight: Sight | None,
        spent_us: int,
        *,
        is_last_look: bool,
    ) -> Refusal | None:
        return refusal_of(
            connection,
            source,
            self._terms,
            sight,
            spent_us,
            is_last_look=is_last_look,
            again=self.again,
            purpose=self.purpose,
        )

    def _signed(
        self,
        connection: Connection,  # noqa: ARG002
        source: AccountRecord,
        sight: Sight,
        now_us: int,
    ) -> ChainTransaction:
        """Return the transaction, signed, without what it takes from the account."""
        signed = signed_transfer(
            self._context,
            source,
            sight.blockhash,
            transfer_id=self._transfer_id,
            recipient=sight.recipient.token_account,
            amount_micro=self._terms.amount_micro,
            memo=self._terms.memo,
        )
        return pending_transaction(
            signed,
            kind=Kind.TRANSFER,
            subject_id=self._transfer_id,
            account_id=source.account_id,
            credits_account_id=sight.recipient.account_id,
            now_us=now_us,
        )

    def _submitted(
        self, connection: Connection, source: AccountRecord, sight: Sight, spent_us: int, now_us: int
    ) -> Decided[TransferRecord]:
        amount_micro, account_id = self._terms.amount_micro, source.account_id
        signed = self._signed(connection, source, sight, now_us)
        decision = Decision(
            status=TransferStatus.SUBMITTED,
            recipient=evolve(sight.recipient, account_id=signed.credits_account_id),
            tx_signature=signed.name,
        )
        transfer = self._store(connection, decision, now_us)
        total = source.spent_total + amount_micro
        tx = evolve(signed, held=amount_micro, spent_us=spent_us, spent_total=total)
        chain_transactions.insert_transaction(connection, tx)
        account_store.reserve(
            connection, account_id, spent_total=total, spent_us=spent_us, amount=amount_micro
        )
        return Decided(record=transfer, tx=tx)

    def _refused(self, connection: Connection, refusal: Refusal, now_us: int) -> Decided[TransferRecord]:
        decision = Decision(status=TransferStatus.REJECTED, refusal=refusal)
        transfer = self._store(connection, decision, now_us)
        booking.book_rejection(
            connection, self._context, transfer, now_us, code=refusal.code, message=refusal.message
        )
        return Decided(record=transfer)

    def _set_aside(
        self, connection: Connection, policy: Policy, sight: Sight, now_us: int
    ) -> Decided[TransferRecord]:
        decision = Decision(status=TransferStatus.PENDING_APPROVAL, recipient=sight.recipient)
        transfer = self._store(connection, decision, now_us)
        threshold = policy.escalation_threshold
        assert threshold is not None  # noqa: S101 - it is what the decision was for
        escalated = booking.escalated(transfer, threshold)
        booking.record_events(connection, self._context, transfer, now_us, escalated)
        return Decided(record=transfer)


def waits_until_us(context: Context, now_us: int) -> int:
    """Return until when a transfer waits that begins to wait now."""
    return now_us + round(context.settings.approval_ttl_seconds * SECOND_US)


def must_look_again(source: AccountRecord, sight: Sight | None) -> bool:
    """Return whether the chain must be read again, because the account was resumed since the first look.

    Raises:
        Problem: the account is blocked.
    """
    if source.paused:
        return False
    if sight is None:
        return True
    if source.stopped_us is not None:
        raise signing_stopped(source.account_id)
    return False


def refusal_of(
    connection: Connection,
    source: AccountRecord,
    terms: Terms,
    sight: Sight | None,
    spent_us: int,
    *,
    is_last_look: bool,
    again: str,
    purpose: Purpose = Purpose.TRANSFER,
) -> Refusal | None:
    """Return why a transfer is refused, or None; escalation is judged separately.

    Args:
        connection: within a unit of work.
        source: the paying account's current row.
        terms: the requested parameters.
        sight: the data read from the chain; None only while the account is paused.
        spent_us: when it would be spent.
        is_last_look: whether there is no time left to read the balance again should it be contended.
        again: what to do once an account that holds too little is funded, as the end of a sentence.
        purpose: term for the request in refusals.

    Raises:
        Contended: the balance must be read again.
    """
    policy = stored_policy(source.policy)
    paused = rules.paused_refusal(policy)
    if paused is not None or sight is None:
        return paused
    spend = Spend(
        amount_micro=terms.amount_micro,
        to=terms.to,
        recipient=sight.recipient,
        memo=terms.memo,
        category=terms.category,
        purpose=purpose,
        others=sight.others,
    )
    means = Means(
        spent_micro=0
        if policy.max_daily_spend is None
        else spending.against_daily_limit(connection, source, spent_us),
        available_micro=sight.available_micro(source),
    )
    refusal = rules.spending_refusal(policy, spend, means, again=again)
    return sight.confirmed(connection, refusal, source, is_last_look=is_last_look)
