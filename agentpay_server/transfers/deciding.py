"""Decisions about transfers: judged by the policy, stored, signed and reserved (interface T4, I1 to I9).

`new_transfer` decides about a new one. `approvals.py` and `plugins/pay402/authorizing.py` decide with the
same steps about approved ones, and about payments. Nothing here sends or waits. `Checks` predicts a decision
(interface B4): it creates, locks, claims, reserves, signs and stores nothing.
"""

from typing import Any, Final

from attrs import frozen

from agentpay.contract.endpoints import CREATE_TRANSFER
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.payments import AUTHORIZE_PAYMENT
from agentpay.contract.ext.spending import CHECK_TRANSFER, CheckTransfer, PredictedOutcome, TransferCheck
from agentpay.contract.policies import Policy
from agentpay.contract.transfers import CreateTransfer, TransferStatus
from agentpay.contract.usdc import format_string, from_micro, to_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import PurchaseKind, TransferRecord
from agentpay_server.engine import policy as rules
from agentpay_server.engine.authorization import (
    Authorizer,
    Decided,
    Gate,
    Preflight,
    must_read_again,
    own_parties,
)
from agentpay_server.engine.funding import Cost, transfer_fee
from agentpay_server.engine.movement import pending_transaction
from agentpay_server.engine.policy import Recipient, Refusal, Spend, stored_policy
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit, idempotency, spending
from agentpay_server.ledger.accounts import own_account
from agentpay_server.ledger.apply import apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.finding import memo_key
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US, Held, KeyHolder, RequestedKey
from agentpay_server.ledger.spending import remaining
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.principals import Principal
from agentpay_server.transfers import outcomes, store
from agentpay_server.transfers.rules import TransferTerms, check_transition, verdict_if_equal

_MAX_PENDING: Final = 20
"""Transfers of an agent's key that may be pending approval."""

_PENDING_SECONDS: Final = 60
"""`Retry-After` beyond it: an operator may decide at any time."""

_ACTIONS: Final = {
    PurchaseKind.TRANSFER: CREATE_TRANSFER.name,
    PurchaseKind.PAYMENT: AUTHORIZE_PAYMENT.name,
}
"""Names of actions in the audit trail."""


@frozen(kw_only=True)
class NewSpend:
    """A requested transfer or payment.

    Attributes:
        transfer_id: the identifier that it gets.
        key: its idempotency key.
        held: the key's claims when the request was judged.
    """

    transfer_id: str
    principal: Principal
    terms: TransferTerms
    key: RequestedKey
    held: Held
    kind: PurchaseKind = PurchaseKind.TRANSFER


def new_transfer(gate: Gate, new: NewSpend) -> Decided[TransferRecord]:
    """Decide about a new transfer.

    Raises:
        ConstraintError: another request has taken its key.
    """
    terms, key = new.terms, spending.key_of(new.principal)
    refusal = gate.paused(terms.amount_micro) or gate.refusal(spend_of(terms, gate.preflight), key)
    if refusal is not None:
        return refused(gate, store_new(gate, new, rejected(gate, refusal)), refusal)
    if gate.needs_approval(terms.amount_micro):
        require_room_to_wait(gate, new.principal)
        gate.hold_of_key(new.transfer_id, terms.amount_micro, key)
        return escalated(gate, store_new(gate, new, waiting(gate, gate.preflight.recipient)))
    gate.pay(cost_of_transfer(gate.preflight))
    # The amount first: what follows is then one statement.
    tx = gate.hold(signed(gate, new.transfer_id, terms), terms.amount_micro, key)
    return Decided(record=store_new(gate, new, submitted(gate.preflight.recipient, tx)), tx=tx)


# --- What a decision stores of a transfer


def rejected(gate: Gate, refusal: Refusal) -> dict[str, Any]:
    """Return the columns that a refusal sets."""
    return {
        "status": TransferStatus.REJECTED.value,
        "error": refusal.code.value,
        "message": refusal.message,
        "refusal": store.refusal_text(refusal.facts),
        "key_expires_us": gate.now_us + KEY_LIFETIME_US,
    }


def submitted(recipient: Recipient, tx: StoredTransaction) -> dict[str, Any]:
    """Return the columns that a signature sets."""
    return {
        "status": TransferStatus.SUBMITTED.value,
        "recipient_account_id": recipient.account_id,
        "recipient_token_account": recipient.token_account,
        "tx_signature": tx.name,
    }


def waiting(
    gate: Gate, recipient: Recipient, status: TransferStatus = TransferStatus.PENDING_APPROVAL
) -> dict[str, Any]:
    """Return the columns that an escalation sets, or the approval of a payment, which is signed later."""
    ttl_us = round(gate.context.settings.approval_ttl_seconds * SECOND_US)
    return {
        "status": status.value,
        "recipient_account_id": recipient.account_id,
        "recipient_token_account": recipient.token_account,
        "approval_expires_us": gate.now_us + ttl_us,
    }


_UNDECIDED: Final = dict.fromkeys(
    (
        "recipient_account_id",
        "recipient_token_account",
        "error",
        "message",
        "refusal",
        "key_expires_us",
        "tx_signature",
        "approval_expires_us",
    )
)


def store_new(gate: Gate, new: NewSpend, decision: dict[str, Any]) -> TransferRecord:
    """Store a decided transfer under its key, with its audit record."""
    check_transition(None, decision["status"])
    terms, principal = new.terms, new.principal
    record = TransferRecord(
        seq=0,
        transfer_id=new.transfer_id,
        operator_id=principal.operator_id,
        account_id=terms.account_id,
        key_id=principal.key_id,
        to=terms.to,
        amount=terms.amount_micro,
        memo=terms.memo,
        category=terms.category,
        idempotency_key=new.key.idempotency_key,
        settled_us=None,
        created_us=gate.now_us,
        payment_digest=terms.payment_digest,
        splits=store.splits_text(terms.splits),
        memo_key=None if terms.memo is None else memo_key(terms.memo),
        **{**_UNDECIDED, **decision},
    )
    store.TRANSFERS.insert(gate.connection, record)
    idempotency.put(gate.connection, new.key, new.held, new.kind, new.transfer_id)
    audit.record(
        gate.connection,
        principal,
        action=_ACTIONS[new.kind],
        subject=new.transfer_id,
        now_us=gate.now_us,
        after=outcomes.audited(record),
    )
    return record


def refused(gate: Gate, transfer: TransferRecord, refusal: Refusal) -> Decided[TransferRecord]:
    """Report a transfer that was stored as rejected."""
    apply(gate, outcomes.rejection(transfer, refusal.code, refusal.message))
    return Decided(record=transfer)


def require_funds(refusal: Refusal, waiting: TransferRecord) -> None:
    """Leave a transfer as it waits if only funds are missing: no policy rule is violated.

    Raises:
        Problem: `insufficient_balance`.
    """
    if refusal.code == ErrorCode.INSUFFICIENT_BALANCE:
        raise Problem(
            refusal.code,
            refusal.message,
            transfer_id=waiting.transfer_id,
            status=waiting.status,
            refusal=refusal.facts,
        )


def escalated(gate: Gate, transfer: TransferRecord) -> Decided[TransferRecord]:
    """Report a transfer that was stored as pending approval."""
    threshold = gate.policy.escalation_threshold
    assert threshold is not None  # noqa: S101 - only a threshold escalates
    apply(gate, outcomes.reported(transfer, outcomes.escalated(transfer, threshold)))
    return Decided(record=transfer)


# --- What is judged and signed


def require_room_to_wait(gate: Gate, principal: Principal) -> None:
    """Require that another transfer of a key may wait for approval.

    Raises:
        Problem: `rate_limited`.
    """
    if principal.is_agent and store.pending_of_key(gate.connection, principal.key_id) >= _MAX_PENDING:
        raise Problem(
            ErrorCode.RATE_LIMITED,
            f"{_MAX_PENDING} transfers of this agent key are pending approval, and no more may be. Wait "
            "until an operator has decided about one.",
            retry_after_seconds=_PENDING_SECONDS,
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


def signed(gate: Gate, transfer_id: str, terms: TransferTerms) -> StoredTransaction:
    """Return the signed transaction of a transfer."""
    source, preflight = gate.source, gate.preflight
    return pending_transaction(
        outcomes.signed_transfer(
            gate.context,
            source,
            preflight.blockhash,
            transfer_id=transfer_id,
            recipient=preflight.recipient.token_account,
            amount_micro=terms.amount_micro,
            memo=terms.memo,
        ),
        kind=Operation.TRANSFER,
        subject_id=transfer_id,
        account_id=source.account_id,
        credits_account_id=preflight.recipient.account_id,
        now_us=gate.now_us,
    )


# --- Terms


def terms_of(request: CreateTransfer | CheckTransfer) -> TransferTerms:
    """Return the request's terms."""
    return TransferTerms(
        account_id=request.from_,
        to=request.to,
        amount_micro=to_micro(request.amount),
        memo=request.memo or None,
        category=request.category,
    )


def terms_of_record(record: TransferRecord) -> TransferTerms:
    """Return the terms that a stored transfer was created with."""
    return TransferTerms(
        account_id=record.account_id,
        to=record.to,
        amount_micro=record.amount,
        memo=record.memo,
        category=record.category,
        payment_digest=record.payment_digest,
    )


def key_holder_of(record: TransferRecord) -> KeyHolder:
    """Return a stored transfer as the holder of an idempotency key."""
    return KeyHolder(
        terms=terms_of_record(record),
        if_equal=verdict_if_equal(record.status, record.error),
    )


# --- Predictions


class Checks:
    """Predicts the outcome of transfers."""

    def __init__(self, context: Context, authorizer: Authorizer) -> None:
        self._context = context
        self._authorizer = authorizer

    async def check(self, principal: Principal, request: CheckTransfer) -> TransferCheck:
        """Return the outcome that `POST /v1/transfers` would have now.

        Raises:
            Problem: `not_found` of `from`, `invalid_recipient`, `fee_budget_exceeded`, `rate_limited`,
                `chain_unavailable`.
        """
        principal.require_account(request.from_, CHECK_TRANSFER.operation)
        terms = terms_of(request)
        while True:
            found = await self._context.database.read(account_store.parties, terms.account_id, terms.to)
            parties = own_parties(principal, terms.account_id, terms.to, found)
            preflight = await self._authorizer.preflight(parties)
            checked = await self._context.database.read(self._checked, principal, terms, preflight)
            if checked is not None:
                return checked

    def _checked(
        self, connection: Connection, principal: Principal, terms: TransferTerms, preflight: Preflight | None
    ) -> TransferCheck | None:
        source = own_account(connection, principal, terms.account_id)
        if must_read_again(source, preflight):
            return None
        policy, key = stored_policy(source.policy), spending.key_of(principal)
        gate = Gate(
            connection,
            self._context,
            self._context.clock.now_us(),
            source=source,
            policy=policy,
            by_operator=not principal.is_agent,
            read=preflight,
            is_last_try=True,
            promise=lambda _: None,
        )
        refusal = gate.paused(terms.amount_micro) or gate.refusal(spend_of(terms, gate.preflight), key)
        decision, error, message = PredictedOutcome.SETTLE, None, None
        if refusal is not None:
            decision, error, message = PredictedOutcome.REJECT, refusal.code.value, refusal.message
        elif gate.needs_approval(terms.amount_micro):
            require_room_to_wait(gate, principal)
            decision, message = PredictedOutcome.ESCALATE, _escalated(policy, terms)
        else:
            gate.pay(cost_of_transfer(gate.preflight))
        limit = None if policy.max_daily_spend is None else to_micro(policy.max_daily_spend)
        spent = spending.against_daily_limit(connection, source, gate.spent_us)
        left, of_key = (
            remaining(limit_micro=limit, spent_micro=spent),
            spending.left_of_key(connection, key),
        )
        # One that is pending approval counts toward the key's total, and not toward the daily limit.
        if left is not None and decision is PredictedOutcome.SETTLE:
            left = max(left - terms.amount_micro, 0)
        if of_key is not None and decision is not PredictedOutcome.REJECT:
            of_key = max(of_key - terms.amount_micro, 0)
        least = spending.least(left, of_key)
        return TransferCheck(
            decision=decision.value,
            error=error,
            message=message,
            remaining_usdc=None if least is None else from_micro(least),
            refusal=None if refusal is None else refusal.facts,
        )


def _escalated(policy: Policy, terms: TransferTerms) -> str:
    threshold = policy.escalation_threshold
    assert threshold is not None  # noqa: S101 - without one nothing is escalated
    return (
        f"escalation_threshold is {format_string(threshold)} USDC and this transfer requests "
        f"{rules.usdc_text(terms.amount_micro)} USDC: it would wait for an operator's approval."
    )
