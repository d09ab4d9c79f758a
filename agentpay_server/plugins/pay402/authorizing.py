"""Authorization of a payment: a new one, or one that an operator has approved.

A payment is authorized like any transfer. In addition, the pin of the seller's origin applies, and the seller
broadcasts the transaction.
"""

from typing import Any

import attrs
from solders.signature import Signature

from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.payments import AUTHORIZE_PAYMENT
from agentpay_server.chain.custody import spending_key
from agentpay_server.database.tables import PaymentRow, TransferRecord
from agentpay_server.engine.authorization import Decided, Gate
from agentpay_server.engine.funding import Cost
from agentpay_server.engine.policy import Recipient, Refusal
from agentpay_server.ledger import audit, spending
from agentpay_server.ledger.apply import apply
from agentpay_server.ledger.spending import LimitedKey
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.channels.signing import closing_fee, sign_channel
from agentpay_server.plugins.pay402 import store
from agentpay_server.plugins.pay402.building import FEE_LAMPORTS, build_payment
from agentpay_server.plugins.pay402.challenges import x402
from agentpay_server.plugins.pay402.challenges.terms import ChannelTerms
from agentpay_server.plugins.pay402.judging import (
    UNBUILDABLE,
    Purchase,
    own_addresses,
    purchase_objection,
    spend_on,
)
from agentpay_server.plugins.pay402.settling import handed_out
from agentpay_server.transfers import outcomes
from agentpay_server.transfers import store as transfer_store
from agentpay_server.transfers.deciding import (
    NewSpend,
    escalated,
    refused,
    rejected,
    require_funds,
    require_room_to_wait,
    store_new,
    submitted,
    waiting,
)
from agentpay_server.transfers.rules import check_transition


def new_payment(gate: Gate, new: NewSpend, purchase: Purchase) -> Decided[TransferRecord] | None:
    """Decide about a new payment; None if the seller's pin has changed meanwhile.

    Raises:
        ConstraintError: another request has taken its key.
    """
    if not purchase.is_pin_as_seen(gate.connection):
        return None
    unsigned = purchase.row(new.transfer_id)
    key = spending.key_of(new.principal)
    refusal = refusal_of(gate, purchase, key)
    if refusal is not None:
        return refused(gate, _stored(gate, new, rejected(gate, refusal), unsigned), refusal)
    if gate.needs_approval(new.terms.amount_micro):
        require_room_to_wait(gate, new.principal)
        gate.hold_of_key(new.transfer_id, new.terms.amount_micro, key)
        return escalated(gate, _stored(gate, new, waiting(gate, _external(gate)), unsigned))
    tx, row = sign(gate, purchase, new.transfer_id, key)
    return initiated(gate, _stored(gate, new, submitted(_external(gate), tx), row), tx)


def approved_payment(
    gate: Gate, principal: Principal, approved: TransferRecord, purchase: Purchase
) -> Decided[TransferRecord] | None:
    """Decide about a payment that an operator has approved, when the caller requests it again.

    It is judged again, but not escalated again.

    Args:
        gate: the gate.
        principal: the caller.
        approved: the payment as it was read.
        purchase: the purchase by a fresh challenge.

    Returns:
        The decision; None if the payment or the seller's pin has changed meanwhile.
    """
    current = transfer_store.approved(gate.connection, approved.transfer_id)
    if current != approved or not purchase.is_pin_as_seen(gate.connection):
        return None
    key = spending.key_of_waiting(gate.connection, approved)
    refusal = refusal_of(gate, purchase, key)
    if refusal is not None:
        require_funds(refusal, approved)
        rejection = rejected(gate, refusal)
        return refused(gate, _changed(gate, principal, approved, purchase, rejection), refusal)
    tx, row = sign(gate, purchase, approved.transfer_id, key)
    decision = submitted(_external(gate), tx)
    return initiated(gate, _changed(gate, principal, approved, purchase, decision, row=row), tx)


def refusal_of(gate: Gate, purchase: Purchase, key: LimitedKey | None) -> Refusal | None:
    """Return why a purchase is refused, or None: paused, the seller's pin, the policy, the balance.

    Raises:
        Problem: `invalid_recipient`.
    """
    refusal = gate.paused(purchase.offer.terms.amount_micro)
    if refusal is not None:
        return refusal
    terms, preflight = purchase.offer.terms, gate.preflight
    recipients = [leg.recipient for leg in terms.legs]
    spend = spend_on(
        purchase.offer,
        (preflight.recipient, *preflight.others),
        pin=purchase.pin,
        # `require_memo` accepts the origin instead of a memo.
        memo=purchase.request.memo or purchase.request.origin,
    )
    return purchase_objection(purchase.pin, terms, recipients, preflight) or gate.refusal(spend, key)


def _external(gate: Gate) -> Recipient:
    """Return the recipient. If this service holds it, the deposit watcher posts the arrival."""
    return attrs.evolve(gate.preflight.recipient, account_id=None)


# --- What a decision stores


def _stored(gate: Gate, new: NewSpend, decision: dict[str, Any], row: PaymentRow) -> TransferRecord:
    transfer = store_new(gate, new, decision)
    store.PAYMENTS.insert(gate.connection, row)
    return transfer


def _changed(
    gate: Gate,
    principal: Principal,
    approved: TransferRecord,
    purchase: Purchase,
    decision: dict[str, Any],
    *,
    row: PaymentRow | None = None,
) -> TransferRecord:
    check_transition(approved.status, decision["status"])
    # The row is locked since it was read as approved.
    decided = transfer_store.TRANSFERS.changed(
        gate.connection,
        approved,
        transfer_store.IS_WAITING,
        category=purchase.category,
        **decision,
    )
    if row is not None:
        store.sign(gate.connection, row)
    audit.record(
        gate.connection,
        principal,
        action=AUTHORIZE_PAYMENT.name,
        subject=approved.transfer_id,
        now_us=gate.now_us,
        before={"status": approved.status},
        after=outcomes.audited(decided),
    )
    return decided


def initiated(gate: Gate, transfer: TransferRecord, tx: StoredTransaction) -> Decided[TransferRecord]:
    """Report a payment that was stored as signed: the seller may broadcast it once the caller has it."""
    event = outcomes.initiated(transfer, transfer.tx_signature)
    apply(gate, outcomes.reported(transfer, event))
    return Decided(record=transfer, tx=tx)


# --- Signing


def sign(
    gate: Gate, purchase: Purchase, transfer_id: str, key: LimitedKey | None
) -> tuple[StoredTransaction, PaymentRow]:
    """Sign a payment and reserve its amount; return its stored transaction, and its row to store.

    Raises:
        Problem: `fee_budget_exceeded`, `chain_unavailable`, `nothing_payable`.
    """
    offer, amount_micro = purchase.offer, purchase.offer.terms.amount_micro
    if offer.channel is not None:
        # The fee of a forced close.
        cost = Cost(fees=closing_fee(gate.preflight.blockhash))
        gate.pay(cost)
        tx, row = _sign_channel(gate, purchase, offer.channel, transfer_id)
        return gate.hold_cap(tx, amount_micro, cost, key), row
    gate.pay(Cost(fees=FEE_LAMPORTS if offer.terms.fee_payer is None else 0))
    tx, row = _sign_single(gate, purchase, transfer_id)
    return gate.hold(tx, amount_micro, key), row


def _sign_single(gate: Gate, purchase: Purchase, transfer_id: str) -> tuple[StoredTransaction, PaymentRow]:
    connection, source, preflight, context = gate.connection, gate.source, gate.preflight, gate.context
    terms, blockhash = purchase.offer.terms, preflight.blockhash
    nonce = store.next_nonce(connection, source.account_id, blockhash.value)
    try:
        prepared = build_payment(
            context.signer,
            blockhash,
            terms,
            payer_key=spending_key(source.key_index),
            usdc_mint=context.chain.usdc_mint,
            own_addresses=own_addresses(connection, context, terms.fee_payer),
            nonce=nonce,
            nonce_memo=transfer_id,
        )
    except UNBUILDABLE as error:
        # Checked before, but the nonce adds to the compute units.
        raise Problem(ErrorCode.NOTHING_PAYABLE, f"This 402 is not paid: {error}.") from None
    # If the service pays the fee, its own signature is the first and names the transaction on chain.
    name = None if terms.fee_payer is not None else str(Signature.from_bytes(prepared.raw[1:65]))
    tx = handed_out(gate, prepared, kind=Operation.PAYMENT, subject_id=transfer_id, name=name)
    row = attrs.evolve(
        purchase.row(transfer_id),
        raw=prepared.raw,
        blockhash=blockhash.value,
        nonce=nonce,
        expires_us=tx.expires_us,
    )
    return tx, row


def _sign_channel(
    gate: Gate, purchase: Purchase, terms: ChannelTerms, transfer_id: str
) -> tuple[StoredTransaction, PaymentRow]:
    offer, landing = purchase.offer, purchase.landing
    assert landing is not None  # noqa: S101 - read before
    channel, tx = sign_channel(
        gate,
        offer,
        landing,
        owner_id=transfer_id,
        origin=purchase.request.origin,
        deposit_micro=offer.terms.amount_micro,
        terms_digest=terms.digest(offer.terms, origin=purchase.request.origin),
        position=purchase.position,
        expires_us=x402.expires_at(terms, gate.now_us // SECOND_US) * SECOND_US,
        text=offer.terms.legs[0].memo or transfer_id,
    )
    row = attrs.evolve(
        purchase.row(transfer_id),
        raw=channel.raw,
        blockhash=landing.blockhash,
        nonce=store.next_nonce(gate.connection, purchase.source.account_id, landing.blockhash),
        expires_us=tx.expires_us,
    )
    return tx, row
