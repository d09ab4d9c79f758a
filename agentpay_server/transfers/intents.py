"""Authorization of transfers: how a decision is stored, signed and reserved.

`engine/authorization.py` decides. New transfers (`creation.py`) and approved ones (`approvals.py`) are
claimed and stored differently, and only new ones are escalated. Nothing here sends or waits.
"""

from abc import abstractmethod
from typing import Any

from attrs import evolve, frozen

from agentpay.contract.policies import Policy
from agentpay.contract.transfers import TransferStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import TransferRecord
from agentpay_server.engine.authorization import Decided, Intent, SpendUnit
from agentpay_server.engine.fees import Cost
from agentpay_server.engine.handlers import pending_transaction
from agentpay_server.engine.policy import Recipient, Refusal, Spend
from agentpay_server.engine.preflight import Preflight
from agentpay_server.engine.treasury import transfer_fee
from agentpay_server.ledger.apply import Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US
from agentpay_server.ledger.transactions import Kind, StoredTransaction
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.failpoints import Operation
from agentpay_server.transfers import outcomes
from agentpay_server.transfers.rules import TransferTerms


@frozen(kw_only=True)
class Decision:
    """The decision about a transfer.

    Attributes:
        recipient: None if the transfer is refused.
        tx_signature: None unless the transfer is submitted.
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


class TransferIntent(Intent[TransferRecord]):
    """A requested transfer, new or approved."""

    operation = Operation.TRANSFER

    def __init__(self, context: Context, *, transfer_id: str, terms: TransferTerms) -> None:
        self._context = context
        self._transfer_id = transfer_id
        self._terms = terms

    @property
    def account_id(self) -> str:
        """The paying account."""
        return self._terms.account_id

    @property
    def to(self) -> str:
        """The recipient, as the caller named it."""
        return self._terms.to

    def spend(self, preflight: Preflight) -> Spend:
        """Return the spend that the policy judges."""
        return spend_of(self._terms, preflight)

    def cost(self, preflight: Preflight) -> Cost:
        """Return the most lamports that the transfer takes from the treasury."""
        return cost_of_transfer(preflight)

    def submitted(self, unit: SpendUnit) -> Decided[TransferRecord]:
        """Sign the transfer, store it and reserve its amount."""
        signed = self._signed(unit)
        decision = Decision(
            status=TransferStatus.SUBMITTED,
            recipient=evolve(unit.preflight.recipient, account_id=signed.credits_account_id),
            tx_signature=signed.name,
        )
        # The amount first: what follows is then one statement.
        tx = self._hold(unit, signed)
        return Decided(record=self._store(unit.connection, decision, unit.now_us), tx=tx)

    def refused(self, unit: Unit, refusal: Refusal) -> Decided[TransferRecord]:
        """Store the transfer as rejected."""
        decision = Decision(status=TransferStatus.REJECTED, refusal=refusal)
        transfer = self._store(unit.connection, decision, unit.now_us)
        apply(unit, outcomes.rejection(transfer, refusal.code, refusal.message))
        return Decided(record=transfer)

    def escalated(self, unit: SpendUnit, policy: Policy) -> Decided[TransferRecord]:
        """Store the transfer as pending approval."""
        decision = Decision(status=TransferStatus.PENDING_APPROVAL, recipient=unit.preflight.recipient)
        transfer = self._store(unit.connection, decision, unit.now_us)
        threshold = policy.escalation_threshold
        assert threshold is not None  # noqa: S101 - only a threshold escalates
        apply(unit, outcomes.reported(transfer, outcomes.escalated(transfer, threshold)))
        return Decided(record=transfer)

    @abstractmethod
    def _store(self, connection: Connection, decision: Decision, now_us: int) -> TransferRecord:
        """Store the decided transfer and its audit record."""

    def _hold(self, unit: SpendUnit, tx: StoredTransaction) -> StoredTransaction:
        """Store the signed transaction, with its amount."""
        return unit.hold(tx, self._terms.amount_micro)

    def _signed(self, unit: SpendUnit) -> StoredTransaction:
        """Return the signed transaction; `_hold` sets its amount."""
        source, preflight = unit.source, unit.preflight
        signed = outcomes.signed_transfer(
            self._context,
            source,
            preflight.blockhash,
            transfer_id=self._transfer_id,
            recipient=preflight.recipient.token_account,
            amount_micro=self._terms.amount_micro,
            memo=self._terms.memo,
        )
        return pending_transaction(
            signed,
            kind=Kind.TRANSFER,
            subject_id=self._transfer_id,
            account_id=source.account_id,
            credits_account_id=preflight.recipient.account_id,
            now_us=unit.now_us,
        )


def spend_of(terms: TransferTerms, preflight: Preflight) -> Spend:
    """Return the spend that the policy judges for a transfer."""
    return Spend(
        amount_micro=terms.amount_micro,
        to=terms.to,
        recipient=preflight.recipient,
        memo=terms.memo,
        category=terms.category,
    )


def cost_of_transfer(preflight: Preflight) -> Cost:
    """Return the most lamports that a transfer takes from the treasury."""
    return Cost(fees=transfer_fee(preflight.blockhash))


def approval_deadline_us(context: Context, now_us: int) -> int:
    """Return when a transfer that becomes pending now expires."""
    return now_us + round(context.settings.approval_ttl_seconds * SECOND_US)
