"""Selects the offer of a 402 to pay, by one judgment after the other.

`challenges/offers.py` says which offers can be read, and paid by anybody. Here follow, in the order of
preference: what the key was used for, whether the payment can be signed, whether the chain could settle it,
and whether pin and policy allow it. An offer that fails gives way to the next. If pin or policy forbid all
that are left, the first of these is selected, and its authorization refuses it. Reads only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from agentpay.contract.ext.payments import AuthorizePayment
from agentpay.contract.usdc import to_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, PinRecord, PurchaseKind, TransferRecord
from agentpay_server.engine.authorization import spending_refusal
from agentpay_server.engine.policy import (
    Recipient,
    Refusal,
    needs_approval,
    stored_policy,
    voucher_refusal,
)
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import idempotency, spending
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import Held, RequestedKey, Verdict, other_kind
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.channels import store as channel_store
from agentpay_server.plugins.channels.session_payments import session_conflict
from agentpay_server.plugins.channels.signing import landing_of
from agentpay_server.plugins.channels.store import Channel, KeyUse, use_of
from agentpay_server.plugins.pay402 import store
from agentpay_server.plugins.pay402.challenges import offers as rules
from agentpay_server.plugins.pay402.challenges.offers import differences
from agentpay_server.plugins.pay402.challenges.terms import Offer, Protocol, Skipped
from agentpay_server.plugins.pay402.judging import (
    Purchase,
    Shown,
    digest_of,
    pin_refusal,
    read_shown,
    settling_fault,
    signing_fault,
    spend_on,
    token_accounts_of,
)
from agentpay_server.plugins.pay402.responses import conflict, nothing_payable
from agentpay_server.sessions.rules import escalation_refusal
from agentpay_server.transfers import store as transfer_store

_PAYMENTS: Final = (PurchaseKind.PAYMENT, PurchaseKind.CHANNEL)
_CLUSTERS: Final = ("mainnet-beta", "devnet", "testnet")
_MAX_LANDINGS: Final = 3
"""For how many channels of a 402 the chain is asked whether they can be opened."""


class SelectOffer:
    """Selects an offer."""

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
        name = context.chain.cluster_name
        self._sifted = rules.sift(
            offers,
            cluster=name if name in _CLUSTERS else None,
            usdc_mint=context.chain.usdc_mint,
            now_us=now_us,
            max_amount_micro=None if request.max_amount is None else to_micro(request.max_amount),
            session_cap_micro=None if request.session_cap is None else to_micro(request.session_cap),
        )
        self._shown: Shown | None = None
        self._unlandable: dict[int, str] = {}

    async def selected(self) -> Purchase:
        """Select the offer.

        Raises:
            Problem: `not_found` of the account, `nothing_payable`, `idempotency_conflict`,
                `chain_unavailable`.
        """
        database, chain = self._context.database, self._context.chain
        while True:
            purchase = await database.read(self._read)
            if purchase is None:
                self._shown = await read_shown(chain, self._sifted.payable.values())
                continue
            if not purchase.opens_channel:
                return purchase
            landing = await landing_of(chain, purchase.offer)
            if not isinstance(landing, str):
                return attrs.evolve(purchase, landing=landing)
            self._unlandable[purchase.position] = landing

    def _read(self, connection: Connection) -> Purchase | None:
        """Return the selected offer; None if what the chain shows must be read first."""
        principal, request = self._principal, self._request
        source = account_store.own_account(connection, principal, request.account_id)
        held = self._held(connection)
        holder, transfer_id = None, held.subject_of(PurchaseKind.PAYMENT)
        if transfer_id is not None:
            holder = transfer_store.TRANSFERS.existing(connection, transfer_id)
        use = use_of(connection, held)
        payable, reasons = self._sifted.payable, self._sifted.reasons
        if not payable and use.channel is None:
            raise nothing_payable(reasons, self._sifted, request.max_amount)
        payable = self._of_key(connection, payable, holder, use)
        pin = store.PINS.get(connection, (principal.operator_id, request.origin))
        judged = Verdict.NEW if holder is None else rules.verdict_if_equal(holder.status, holder.error)
        if judged is Verdict.REPLAY:
            # Nothing is signed again.
            position, offer = next(iter(payable.items()))
        else:
            chosen = self._chosen(connection, source, payable, pin, use)
            if chosen is None:
                return None
            position, offer = chosen
        is_session = offer.is_session
        return Purchase(
            request=request,
            key=self._key,
            use=use,
            source=source,
            transfer=holder,
            judged=judged,
            offer=offer,
            position=position,
            pin=pin,
            token_accounts=self._token_accounts(connection, offer),
            channel_digest=self._channel_digest(offer) if is_session else "",
            channel=(use.channel or self._live(connection, offer)) if is_session else None,
        )

    def _held(self, connection: Connection) -> Held:
        """Return the claims of the key.

        Raises:
            Problem: `idempotency_conflict`, if it was used for no payment of this account.
        """
        held = idempotency.find(connection, self._key, self._now_us)
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
                if not offer.is_session and digest_of(offer, request) == holder.payment_digest
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
            return digest_of(offer, self._request) == use.voucher.digest
        return self._channel_digest(offer) == use.opened.record.terms_digest

    def _chosen(
        self,
        connection: Connection,
        source: AccountRecord,
        payable: Mapping[int, Offer],
        pin: PinRecord | None,
        use: KeyUse,
    ) -> tuple[int, Offer] | None:
        """Return the first offer that passes every judgment, else the first that only rules forbid."""
        found, forbidden, last = dict(self._sifted.reasons), None, list(payable)[-1]
        for position, offer in payable.items():
            is_live = use.channel is not None or self._live(connection, offer) is not None
            # A payment that can never be signed must not wait for an approval.
            reason = signing_fault(connection, self._context, source, offer, pin)
            # Nothing is signed for a paused account, and nothing new is landed for a live channel.
            if reason is None and not (source.paused or is_live):
                if self._shown is None:
                    return None
                mint = self._context.chain.usdc_mint
                reason = settling_fault(offer, self._shown, source, mint) or self._landing_fault(
                    position, offer
                )
            if reason is not None:
                found[position] = reason
                continue
            is_only = forbidden is None and position == last
            if (
                source.paused
                or is_only
                or self._refusal(connection, source, offer, pin, is_live=is_live) is None
            ):
                return position, offer
            forbidden = forbidden or (position, offer)
        if forbidden is None:
            raise nothing_payable(found, self._sifted, self._request.max_amount)
        return forbidden

    def _landing_fault(self, position: int, offer: Offer) -> str | None:
        if offer.channel is None or len(self._unlandable) < _MAX_LANDINGS:
            return self._unlandable.get(position)
        return self._unlandable.get(
            position, f"it is not judged, since {_MAX_LANDINGS} channels before it cannot be opened"
        )

    def _refusal(
        self,
        connection: Connection,
        source: AccountRecord,
        offer: Offer,
        pin: PinRecord | None,
        *,
        is_live: bool,
    ) -> Refusal | None:
        """Return why pin or policy forbid an offer, as its authorization would; None if they do not."""
        request, policy = self._request, stored_policy(source.policy)
        accounts = self._token_accounts(connection, offer)
        recipients = [
            Recipient(
                account_id=None if account is None else account.account_id,
                token_account=token_account,
                owner=owner,
            )
            for owner, (token_account, account) in zip(offer.owners, accounts.items(), strict=True)
        ]
        is_opening = offer.is_session and not is_live
        spend = spend_on(
            offer,
            recipients,
            pin=pin,
            memo=request.memo or request.origin,
            cap_micro=to_micro(request.session_cap) if is_opening and request.session_cap else None,
        )
        refusal = pin_refusal(pin, offer.terms, offer.owners)
        if refusal is not None:
            return refusal
        if is_live:
            return voucher_refusal(policy, spend)
        if is_opening and self._principal.is_agent and needs_approval(policy, spend.amount_micro):
            return escalation_refusal(policy, spend.amount_micro)
        return spending_refusal(
            connection,
            source,
            spend,
            key=spending.key_of(self._principal),
            spent_us=max(self._now_us, source.last_spend_us),
            # The balance is not a rule: another offer is no way around it.
            available_micro=spend.amount_micro,
        )

    def _live(self, connection: Connection, offer: Offer) -> Channel | None:
        if not offer.is_session:
            return None
        return channel_store.live(connection, self._request.account_id, self._channel_digest(offer))

    def _token_accounts(self, connection: Connection, offer: Offer) -> Mapping[str, AccountRecord | None]:
        return {
            token_account: account_store.account_at(connection, token_account)
            for token_account in token_accounts_of(offer, self._context.chain.usdc_mint)
        }

    def _channel_digest(self, offer: Offer) -> str:
        assert offer.channel is not None  # noqa: S101 - a session's offer has it
        limited = spending.limited_key_id(self._principal)
        return offer.channel.digest(offer.terms, origin=self._request.origin, limited_key_id=limited)


def _conflict(
    connection: Connection, holder: TransferRecord, request: AuthorizePayment, offers: Iterable[Offer]
) -> Problem:
    """Return the error that says in what the most similar offer differs from the payment with the key."""
    payment = store.PAYMENTS.existing(connection, holder.transfer_id)
    if payment.protocol == Protocol.X402_UPTO and payment.raw is not None:
        # Once it is settled, its amount is what the seller took; the terms are the maximum.
        maximum = channel_store.CHANNELS.existing(connection, holder.transfer_id).deposit
        holder = attrs.evolve(holder, amount=maximum)
    memo = request.memo or None
    found = [
        differences(holder, payment, offer.terms, origin=request.origin, memo=memo)
        for offer in offers
        if not offer.is_session
    ]
    return conflict(holder, min(found, key=len, default=["it was not within a session"]))
