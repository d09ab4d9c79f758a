"""Authorization of a payment: a new one, or one that an operator has approved.

A payment is authorized like any transfer. In addition, the pin of the seller's origin applies, and the seller
broadcasts the transaction.
"""

from collections.abc import Collection
from typing import ClassVar, Final

import attrs
from attrs import frozen
from solders.signature import Signature

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.payments import AUTHORIZE_PAYMENT
from agentpay.contract.transfers import TransferStatus
from agentpay_server.chain.custody import POLICY_AUTHORITY, TEST_MINT_AUTHORITY, TREASURY, spending_key
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.chain.protocol import Cosigned, SignedTransaction
from agentpay_server.chain.signing import TransactionTooLargeError
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, PaymentRow, PurchaseKind, TransferRecord
from agentpay_server.engine.authorization import Decided, SpendUnit
from agentpay_server.engine.fees import Cost
from agentpay_server.engine.handlers import pending_transaction
from agentpay_server.engine.policy import Refusal, Spend
from agentpay_server.engine.preflight import Preflight, invalid_recipient
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit, keys
from agentpay_server.ledger.apply import Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import Held, RequestedKey
from agentpay_server.ledger.keys import LimitedKey
from agentpay_server.ledger.transactions import Kind, StoredTransaction
from agentpay_server.payments import store
from agentpay_server.payments.building import (
    FEE_LAMPORTS,
    FeePayerRefusedError,
    build_payment,
    check_buildable,
)
from agentpay_server.payments.challenges import x402_upto
from agentpay_server.payments.challenges.terms import ChallengeTerms, ChannelTerms, Offer
from agentpay_server.payments.channels.signing import (
    ChannelDeposit,
    OpeningBlockhash,
    closing_fee,
    sign_channel,
)
from agentpay_server.payments.judging import spend_on
from agentpay_server.payments.pins import category_of, pin_refusal
from agentpay_server.payments.settling import detail_of
from agentpay_server.payments.store import Pin
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.principals import Principal
from agentpay_server.transfers import outcomes
from agentpay_server.transfers import store as transfer_store
from agentpay_server.transfers.creation import NewSpend
from agentpay_server.transfers.intents import Decision, TransferIntent
from agentpay_server.transfers.rules import Split, TransferTerms, check_transition

_ANY_TRANSFER_ID: Final = identifiers.TRANSFER + 26 * "0"
_UNBUILDABLE: Final = (FeePayerRefusedError, TransactionTooLargeError)


def build_fault(connection: Connection, context: Context, source: AccountRecord, offer: Offer) -> str | None:
    """Return why the transaction that pays an offer cannot be built; None if it can."""
    try:
        check_buildable(
            context.signer,
            offer.terms,
            payer_key=spending_key(source.key_index),
            usdc_mint=context.chain.usdc_mint,
            own_addresses=_own_addresses(connection, context, offer),
            nonce_memo=_ANY_TRANSFER_ID,
        )
    except _UNBUILDABLE as error:
        return str(error)
    return None


def channel_fault(
    connection: Connection, context: Context, source: AccountRecord, channel: ChannelTerms
) -> str | None:
    """Return why a channel on an offer's terms is never opened for an account; None if it may be."""
    payer = context.signer.address(spending_key(source.key_index))
    fee_payer = "feePayerKey" if channel.signer is None else "feePayer"
    for name, key in ((fee_payer, channel.rent_payer), ("receiverAuthorizer", channel.signer)):
        if key is not None and (key == payer or key in _own_of(connection, context, key)):
            return f"its {name} is an address of this service"
    return None


def _own_addresses(connection: Connection, context: Context, offer: Offer) -> set[str]:
    """Return the addresses of this service that an offer might name as its fee payer."""
    return _own_of(connection, context, offer.terms.fee_payer)


def _own_of(connection: Connection, context: Context, fee_payer: str | None) -> set[str]:
    own = {context.signer.address(key) for key in (TREASURY, POLICY_AUTHORITY, TEST_MINT_AUTHORITY)}
    if fee_payer is not None:
        theirs = associated_token_address(fee_payer, context.chain.usdc_mint)
        if account_store.account_at(connection, theirs) is not None:
            own.add(fee_payer)
    return own


@frozen(kw_only=True)
class Purchase:
    """A purchase to pay for.

    Attributes:
        origin: the seller.
        url: requested URL, as the client reports it.
        pin: the operator's pin of the origin, as read before the decision; None without a pin.
        token_account: token account of the primary recipient.
        position: the position of the offer in its 402.
        landing: where the opening of a channel can land, if the offer sells through one.
    """

    operator_id: str
    account_id: str
    origin: str
    url: str | None
    memo: str | None
    offer: Offer
    pin: Pin | None
    token_account: str
    position: int
    landing: OpeningBlockhash | None = None

    @property
    def digest(self) -> str:
        """Digest of the terms, equal for one purchase."""
        return self.offer.terms.digest(origin=self.origin, memo=self.memo)

    @property
    def purpose(self) -> str:
        """What the payment is for: `require_memo` accepts the origin instead of a memo."""
        return self.memo or self.origin

    @property
    def terms(self) -> TransferTerms:
        """The terms of the purchase, as a transfer's terms."""
        return TransferTerms(
            account_id=self.account_id,
            to=self.token_account,
            amount_micro=self.offer.terms.amount_micro,
            memo=self.memo,
            category=category_of(self.offer, self.pin),
            payment_digest=self.digest,
            splits=tuple(Split(leg.recipient, leg.amount_micro) for leg in self.offer.terms.legs[1:]),
        )


def pin_is_as_seen(connection: Connection, operator_id: str, origin: str, seen: Pin | None) -> bool:
    """Return whether an operator's pin of an origin is as it was read."""
    return store.PINS.get(connection, (operator_id, origin)) == seen


def purchase_objection(
    pin: Pin | None, terms: ChallengeTerms, recipients: Collection[str], preflight: Preflight
) -> Refusal | None:
    """Return a refusal by the pin of a seller's origin.

    Raises:
        Problem: `invalid_recipient`.
    """
    owners = {paid.owner for paid in (preflight.recipient, *preflight.others)}
    for recipient in recipients:
        if recipient not in owners:
            raise invalid_recipient(recipient, "no longer owns its USDC token account")
    return pin_refusal(pin, terms, recipients)


class PaymentIntent(TransferIntent):
    """The common part of new and approved payments."""

    operation = Operation.PAYMENT

    _purchase: Purchase
    _signature: PaymentRow | None = None

    def _is_pin_as_seen(self, connection: Connection) -> bool:
        purchase = self._purchase
        return pin_is_as_seen(connection, purchase.operator_id, purchase.origin, purchase.pin)

    def spend(self, preflight: Preflight) -> Spend:
        """Return the spend that the policy judges."""
        purchase, recipients = self._purchase, (preflight.recipient, *preflight.others)
        return spend_on(purchase.offer, recipients, pin=purchase.pin, memo=purchase.purpose)

    def cost(self, preflight: Preflight) -> Cost:
        """Return the fee if the treasury pays it, or that of a forced close, else nothing."""
        if self._purchase.offer.channel is not None:
            return Cost(fees=closing_fee(preflight.blockhash))
        return Cost(fees=FEE_LAMPORTS if self._purchase.offer.terms.fee_payer is None else 0)

    def objection(self, unit: SpendUnit) -> Refusal | None:
        """Return a refusal by the pin of the seller's origin.

        Raises:
            Problem: `invalid_recipient`.
        """
        terms = self._purchase.offer.terms
        recipients = [leg.recipient for leg in terms.legs]
        return purchase_objection(self._purchase.pin, terms, recipients, unit.preflight)

    def submitted(self, unit: SpendUnit) -> Decided[TransferRecord]:
        """Sign the payment, store it and reserve its amount."""
        decided = super().submitted(unit)
        # The seller may broadcast as soon as the caller has the bytes, so `transfer.initiated` comes now.
        initiated = outcomes.initiated(decided.record, decided.record.tx_signature)
        apply(unit, outcomes.reported(decided.record, initiated))
        return decided

    def _hold(self, unit: SpendUnit, tx: StoredTransaction) -> StoredTransaction:
        if self._purchase.offer.channel is None:
            return super()._hold(unit, tx)
        return unit.hold_cap(tx, self._terms.amount_micro)

    def _signed(self, unit: SpendUnit) -> StoredTransaction:
        if self._purchase.offer.channel is not None:
            return self._signed_channel(unit)
        connection, source, preflight = unit.connection, unit.source, unit.preflight
        terms, context = self._purchase.offer.terms, self._context
        nonce = store.next_nonce(connection, source.account_id, preflight.blockhash.value)
        try:
            prepared = build_payment(
                context.signer,
                preflight.blockhash,
                terms,
                payer_key=spending_key(source.key_index),
                usdc_mint=context.chain.usdc_mint,
                own_addresses=_own_addresses(connection, context, self._purchase.offer),
                nonce=nonce,
                nonce_memo=self._transfer_id,
            )
        except _UNBUILDABLE as error:
            # Checked before, but the nonce adds to the compute units.
            raise Problem(ErrorCode.NOTHING_PAYABLE, f"This 402 is not paid: {error}.") from None
        # If the service pays the fee, its own signature is the first and names the transaction on chain.
        name = None if terms.fee_payer is not None else str(Signature.from_bytes(prepared.raw[1:65]))
        self._signature = self._record(
            raw=prepared.raw,
            blockhash=preflight.blockhash.value,
            nonce=nonce,
            expires_us=unit.now_us + round(context.chain.usual_life_seconds * SECOND_US),
        )
        found_by = Cosigned(
            token_account=source.usdc_token_account,
            signature=prepared.signature,
            message_hash=prepared.message_hash,
            after=preflight.newest_signature,
        )
        tx = pending_transaction(
            SignedTransaction(
                signature=prepared.signature,
                raw=prepared.raw,
                last_valid_block_height=prepared.last_valid_block_height,
                fee_lamports=prepared.fee_lamports,
            ),
            kind=Kind.PAYMENT,
            subject_id=self._transfer_id,
            account_id=source.account_id,
            detail=detail_of(found_by),
            now_us=unit.now_us,
        )
        return attrs.evolve(tx, chain_signature=name, announced_us=unit.now_us, leased_until_us=0)

    def _signed_channel(self, unit: SpendUnit) -> StoredTransaction:
        purchase = self._purchase
        offer, landing = purchase.offer, purchase.landing
        assert offer.channel is not None and landing is not None  # noqa: PT018, S101 - read before
        deposit = ChannelDeposit(
            owner_id=self._transfer_id,
            is_payment=True,
            origin=purchase.origin,
            deposit_micro=offer.terms.amount_micro,
            offer=offer,
            position=purchase.position,
            landing=landing,
            terms_digest=offer.channel.digest(offer.terms, origin=purchase.origin),
            expires_us=x402_upto.expires_at(offer.channel, unit.now_us // SECOND_US) * SECOND_US,
            memo=offer.terms.legs[0].memo or self._transfer_id,
        )
        channel, tx = sign_channel(unit, deposit)
        self._signature = self._record(
            raw=channel.raw,
            blockhash=landing.blockhash,
            nonce=store.next_nonce(unit.connection, purchase.account_id, landing.blockhash),
            expires_us=channel.expires_us,
        )
        return tx

    def _record(
        self,
        *,
        raw: bytes | None = None,
        blockhash: str | None = None,
        nonce: int | None = None,
        expires_us: int | None = None,
    ) -> PaymentRow:
        purchase, terms = self._purchase, self._purchase.offer.terms
        return PaymentRow(
            transfer_id=self._transfer_id,
            operator_id=purchase.operator_id,
            account_id=purchase.account_id,
            protocol=terms.protocol.value,
            origin=purchase.origin,
            url=purchase.url,
            recipient=terms.recipient,
            fee_payer=terms.fee_payer,
            raw=raw,
            blockhash=blockhash,
            nonce=nonce,
            expires_us=expires_us,
        )


class NewPayment(PaymentIntent, NewSpend):
    """A new payment; see `NewSpend`."""

    action: ClassVar[str] = AUTHORIZE_PAYMENT.name
    kind = PurchaseKind.PAYMENT

    def __init__(
        self,
        context: Context,
        principal: Principal,
        purchase: Purchase,
        requested: RequestedKey,
        held: Held,
    ) -> None:
        self._purchase = purchase
        super().__init__(context, principal, purchase.terms, requested, held)

    def claim(self, connection: Connection, now_us: int) -> bool:
        """Check that the pin and the key's claims are as they were."""
        return self._is_pin_as_seen(connection) and super().claim(connection, now_us)

    def _store(self, connection: Connection, decision: Decision, now_us: int) -> TransferRecord:
        if decision.recipient is not None:
            # If this service holds the recipient, the deposit watcher posts the arrival.
            external = attrs.evolve(decision.recipient, account_id=None)
            decision = attrs.evolve(decision, recipient=external)
        stored = super()._store(connection, decision, now_us)
        store.PAYMENTS.insert(connection, self._signature or self._record())
        return stored


class ApprovedPayment(PaymentIntent):
    """A payment that an operator has approved, when the caller requests it again.

    `purchase` is from a fresh challenge; `approved` is the payment as currently stored.
    """

    is_approved = True

    def __init__(
        self, context: Context, principal: Principal, purchase: Purchase, approved: TransferRecord
    ) -> None:
        super().__init__(context, transfer_id=approved.transfer_id, terms=purchase.terms)
        self._principal = principal
        self._purchase = purchase
        self._approved = approved

    def limited_key(self, connection: Connection) -> LimitedKey | None:
        """Return the key that first requested the payment, if its total is limited."""
        return keys.of_waiting(connection, self._approved)

    def claim(self, connection: Connection, now_us: int) -> bool:  # noqa: ARG002
        """Check that the payment is still approved and unsigned, and that the pin is as it was read."""
        waiting = transfer_store.approved(connection, self._transfer_id)
        return waiting == self._approved and self._is_pin_as_seen(connection)

    def refused(self, unit: Unit, refusal: Refusal) -> Decided[TransferRecord]:
        """Store the payment as rejected, unless only funds are missing."""
        if refusal.code == ErrorCode.INSUFFICIENT_BALANCE:
            # No policy rule is violated: the payment stays approved.
            raise Problem(
                refusal.code,
                refusal.message,
                transfer_id=self._transfer_id,
                status=TransferStatus.APPROVED,
            )
        return super().refused(unit, refusal)

    def _store(self, connection: Connection, decision: Decision, now_us: int) -> TransferRecord:
        check_transition(self._approved.status, decision.status)
        # The row is locked since it was read as approved.
        decided = transfer_store.TRANSFERS.changed(
            connection,
            self._approved,
            transfer_store.IS_WAITING,
            category=self._terms.category,
            **decision.columns(now_us),
        )
        if self._signature is not None:
            store.sign(connection, self._signature)
        audit.record(
            connection,
            self._principal,
            action=AUTHORIZE_PAYMENT.name,
            subject=self._transfer_id,
            now_us=now_us,
            before={"status": self._approved.status},
            after=outcomes.audited(decided),
        )
        return decided
