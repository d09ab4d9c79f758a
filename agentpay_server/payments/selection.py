"""Selects the offer of a 402 to pay, by the stored state: the key, the pin, the accounts, the channels.

Reads only. `challenges/offers.py` says which offers can be paid at all.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
from attrs import frozen

from agentpay.contract.payments import AuthorizePayment
from agentpay.contract.usdc import to_micro
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.chain.protocol import Chain
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, PurchaseKind, TransferRecord
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import idempotency_keys, key_totals
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import Verdict, other_kind
from agentpay_server.ledger.idempotency_keys import Held, RequestedKey
from agentpay_server.payments import store
from agentpay_server.payments.authorizing import build_fault, channel_fault
from agentpay_server.payments.challenges import offers as rules
from agentpay_server.payments.challenges.differences import differences
from agentpay_server.payments.challenges.offers import Sifted
from agentpay_server.payments.challenges.terms import Offer, Protocol, Skipped
from agentpay_server.payments.channels import store as channel_store
from agentpay_server.payments.channels.session_payments import KeyUse, Selected, session_conflict, use_of
from agentpay_server.payments.pins import unsponsored
from agentpay_server.payments.responses import conflict, nothing_payable
from agentpay_server.payments.store import Pin
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.principals import Principal
from agentpay_server.transfers import store as transfer_store

_PAYMENTS: Final = (PurchaseKind.PAYMENT, PurchaseKind.CHANNEL)
_CLUSTERS: Final = ("mainnet-beta", "devnet", "testnet")


@frozen(kw_only=True)
class PaymentView:
    """The stored data for a request, and the offer to pay.

    Attributes:
        terms: the digest of the offer.
        held: the claims of the key.
        transfer: the payment that holds it, if any.
        judged: how to treat the request. With `REPLAY` and `RESUME` there is a payment.
        position: the position of the offer in the 402.
        pin: the operator's pin of the origin, if any.
        token_accounts: what it pays, the primary recipient's first; each with its account if this service
            holds it.
        session: its stored state, if the offer sells by session.
    """

    terms: str
    source: AccountRecord
    held: Held
    transfer: TransferRecord | None
    judged: Verdict
    offer: Offer
    position: int
    pin: Pin | None
    token_accounts: Mapping[str, AccountRecord | None]
    session: Selected | None = None


class SelectOffer:
    """The unit of work that selects an offer."""

    def __init__(
        self,
        context: Context,
        principal: Principal,
        request: AuthorizePayment,
        key: RequestedKey,
        offers: Sequence[Offer | Skipped],
        *,
        now_us: int,
    ) -> None:
        self._context = context
        self._principal = principal
        self._request = request
        self._now_us = now_us
        self._key = key
        self._sifted = _sifted(context.chain, request, offers, now_us)

    def __call__(self, connection: Connection) -> PaymentView:
        """Select the offer.

        Raises:
            Problem: `not_found` of the account, `nothing_payable`, `idempotency_conflict`.
        """
        principal, request = self._principal, self._request
        source = account_store.own_account(connection, principal, request.account_id)
        held = self._held(connection)
        holder, transfer_id = None, held.subject_of(PurchaseKind.PAYMENT)
        if transfer_id is not None:
            holder = transfer_store.TRANSFERS.existing(connection, transfer_id)
        use = use_of(connection, held)
        payable, reasons = self._sifted.payable, self._sifted.reasons
        if not payable and use.channel is None:
            raise nothing_payable(reasons)
        payable = self._of_key(connection, payable, holder, use)
        pin = store.PINS.get(connection, (principal.operator_id, request.origin))
        judged = Verdict.NEW if holder is None else rules.verdict_if_equal(holder.status, holder.error)
        is_replay = judged is Verdict.REPLAY
        if is_replay:
            # Nothing is signed again.
            position, offer = next(iter(payable.items()))
        else:
            position, offer = self._first_signable(connection, source, payable, pin)
        view = PaymentView(
            terms=_digest(offer, request),
            source=source,
            held=held,
            transfer=holder,
            judged=judged,
            offer=offer,
            position=position,
            pin=pin,
            # Only of this offer: a seller may send hundreds of others.
            token_accounts={
                token_account: account_store.account_at(connection, token_account)
                for token_account in _token_accounts(self._context.chain, offer)
            },
        )
        if is_replay or not offer.is_session:
            return view
        return attrs.evolve(view, session=self._selected(connection, view, use))

    def _held(self, connection: Connection) -> Held:
        """Return the claims of the key.

        Raises:
            Problem: `idempotency_conflict`, if it was used for no payment of this account.
        """
        held = idempotency_keys.find(connection, self._key, self._now_us)
        claim = held.in_force
        if claim is not None and claim.kind not in _PAYMENTS:
            raise other_kind(claim)
        if claim is not None and claim is not held.own:
            raise conflict()
        return held

    def _of_key(
        self,
        connection: Connection,
        payable: Mapping[int, Offer],
        holder: TransferRecord | None,
        use: KeyUse,
    ) -> Mapping[int, Offer]:
        """Return the offers that the key may pay: those of the purchase that it was used for, if any.

        Raises:
            Problem: `idempotency_conflict`.
        """
        request = self._request
        if holder is not None:
            equal = {
                position: offer
                for position, offer in payable.items()
                if not offer.is_session and _digest(offer, request) == holder.payment_digest
            }
            if not equal:
                raise _conflict(connection, holder, request, payable.values())
            return equal
        if use.opened is not None:
            continued = {
                position: offer for position, offer in payable.items() if self._continues(use, offer)
            }
            if not continued:
                raise session_conflict(use)
            return continued
        return payable

    def _continues(self, use: KeyUse, offer: Offer) -> bool:
        """Return whether an offer is for the purchase that the key was used for in a session."""
        if not offer.is_session or use.opened is None:
            return False
        if use.voucher is not None:
            return _digest(offer, self._request) == use.voucher.digest
        return self._channel_digest(offer) == use.opened.record.terms_digest

    def _first_signable(
        self,
        connection: Connection,
        source: AccountRecord,
        payable: Mapping[int, Offer],
        pin: Pin | None,
    ) -> tuple[int, Offer]:
        # A payment that can never be signed must not wait for an approval.
        found = dict(self._sifted.reasons)
        for position, offer in payable.items():
            if offer.channel is not None:
                reason = channel_fault(connection, self._context, source, offer.channel)
            else:
                reason = unsponsored(offer.terms, pin) or build_fault(
                    connection, self._context, source, offer
                )
            if reason is None:
                return position, offer
            found[position] = reason
        raise nothing_payable(found)

    def _selected(self, connection: Connection, view: PaymentView, use: KeyUse) -> Selected:
        digest = self._channel_digest(view.offer)
        return Selected(
            source=view.source,
            offer=view.offer,
            position=view.position,
            digest=view.terms,
            channel_digest=digest,
            pin=view.pin,
            key=self._key,
            use=use,
            channel=use.channel or channel_store.live(connection, self._request.account_id, digest),
            token_accounts=view.token_accounts,
        )

    def _channel_digest(self, offer: Offer) -> str:
        assert offer.channel is not None  # noqa: S101 - a session's offer has it
        limited = key_totals.limited_key_id(self._principal)
        return offer.channel.digest(offer.terms, origin=self._request.origin, limited_key_id=limited)


def _sifted(
    chain: Chain, request: AuthorizePayment, offers: Sequence[Offer | Skipped], now_us: int
) -> Sifted:
    name = chain.cluster_name
    return rules.sift(
        offers,
        cluster=name if name in _CLUSTERS else None,
        usdc_mint=chain.usdc_mint,
        now_us=now_us,
        max_amount_micro=None if request.max_amount is None else to_micro(request.max_amount),
        session_cap_micro=None if request.session_cap is None else to_micro(request.session_cap),
    )


def _token_accounts(chain: Chain, offer: Offer) -> Sequence[str]:
    """Return the token accounts that an offer pays, without duplicates, the primary recipient's first."""
    owners = [leg.recipient for leg in offer.terms.legs]
    if offer.channel is not None:
        owners += [owner for owner, _ in offer.channel.shares]
    return list(dict.fromkeys(associated_token_address(owner, chain.usdc_mint) for owner in owners))


def _conflict(
    connection: Connection, holder: TransferRecord, request: AuthorizePayment, offers: Iterable[Offer]
) -> Problem:
    """Return the error that says in what the most similar offer differs from the payment with the key."""
    payment = store.PAYMENTS.existing(connection, holder.transfer_id)
    if payment.protocol == Protocol.X402_UPTO and payment.raw is not None:
        # Once it is settled, its amount is what the seller took; the terms are the maximum.
        maximum = channel_store.of_session(connection, holder.transfer_id).session.cap
        holder = attrs.evolve(holder, amount=maximum)
    memo = request.memo or None
    found = [
        differences(holder, payment, offer.terms, origin=request.origin, memo=memo)
        for offer in offers
        if not offer.is_session
    ]
    return conflict(holder, min(found, key=len, default=["it was not within a session"]))


def _digest(offer: Offer, request: AuthorizePayment) -> str:
    return offer.terms.digest(origin=request.origin, memo=request.memo or None)
