"""Payments behind HTTP 402: from a challenge to the header that pays it, at most once for a key.

Checks run in the order of a transfer's: the account, the key, paused, recipients, pin and policy, balance.
The service signs one transaction for a key, and returns it to every request on equal terms.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.pages import PageBody
from agentpay.contract.payments import (
    AUTHORIZE_PAYMENT,
    LIST_PAYMENTS,
    REPORT_OUTCOME,
    AuthorizePayment,
    ListPayments,
    Payment,
    ReportOutcome,
    SessionStep,
)
from agentpay.contract.sessions import SessionStatus
from agentpay.contract.transfers import TransferStatus
from agentpay.contract.usdc import to_micro
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List
from agentpay_server.database.tables import AccountRecord, PaymentRow, TransferRecord
from agentpay_server.engine.authorization import Parties
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit, key_totals
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KeyHolder, Verdict, perform
from agentpay_server.ledger.idempotency_keys import Held, RequestedKey
from agentpay_server.payments import channel_store, rules, store, x402
from agentpay_server.payments.authorizing import (
    ApprovedPayment,
    NewPayment,
    Purchase,
    build_fault,
    channel_fault,
)
from agentpay_server.payments.channel_signing import landing_of
from agentpay_server.payments.differences import differences
from agentpay_server.payments.pins import unsponsored
from agentpay_server.payments.responses import conflict, nothing_payable, problem_of, shown
from agentpay_server.payments.rules import Sifted
from agentpay_server.payments.session_payments import (
    KeyUse,
    Selected,
    SessionPayments,
    session_conflict,
    use_of,
)
from agentpay_server.payments.store import Pin
from agentpay_server.payments.terms import Offer, Protocol, Skipped, UnreadableChallengeError
from agentpay_server.payments.watch import PaymentWatch
from agentpay_server.platform.clock import end_of_millisecond_us
from agentpay_server.platform.errors import Problem, not_found
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal
from agentpay_server.transfers import store as transfer_store
from agentpay_server.transfers.execution import Execution
from agentpay_server.transfers.service import own_transfer

_POLL_SECONDS: Final = 1.0
"""How long a read of a payment waits for its outcome from the chain."""

_UNPRESENTED: Final = (TransferStatus.SUBMITTED, TransferStatus.SETTLED)


@frozen(kw_only=True)
class _PaymentView:
    """The stored data for a request, and the offer to pay.

    Attributes:
        terms: the digest of the offer.
        session: what is stored about it, if the offer sells by session.
    """

    terms: str
    source: AccountRecord
    held: Held[TransferRecord]
    offer: Offer
    position: int
    pin: Pin | None
    accounts: dict[str, AccountRecord | None]
    session: Selected | None = None


class Payments:
    """Authorizes, reads and lists payments."""

    def __init__(
        self, context: Context, execution: Execution, watch: PaymentWatch, sessions: SessionPayments
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._database = context.database
        self._chain = context.chain
        self._execution = execution
        self._watch = watch

    async def authorize(self, principal: Principal, request: AuthorizePayment) -> Payment | SessionStep:
        """Pay a seller's 402: return the signed payment and its header, or a payment pending approval.

        With a `session_cap`, return the next step of a session if the seller sells by session.

        Raises:
            Problem: `not_found` of the account, `unreadable_challenge`, `nothing_payable`,
                `idempotency_conflict`, `payment_expired`, `payment_failed`, a 402 with the transfer,
                `invalid_recipient`; `chain_unavailable`: nothing was done.
            DatabaseUnavailableError: the decision may or may not be stored; retry with the same key.
        """
        principal.require_account(request.account_id, AUTHORIZE_PAYMENT.operation)
        self._sessions.check(request)
        if request.previous is not None:
            await self._sessions.report_previous(principal, request.previous)
        offers = self._offers(request)
        deadline = self._execution.deadline()

        async def read(now_us: int) -> _PaymentView:
            sifted = self._sifted(offers, request, now_us)
            return await self._database.read(self._view, principal, request, sifted, now_us)

        async def act(view: _PaymentView, judged: Verdict) -> Payment | SessionStep | None:
            if view.session is not None:
                return await self._sessions.pay(principal, request, view.session, deadline)
            if judged is Verdict.REPLAY:
                return await self._replayed(view.held.existing, view.offer)
            if judged is Verdict.RESUME:
                return await self._approved(principal, request, view.offer, view, deadline)
            return await self._new(principal, request, view.offer, view, deadline)

        return await perform(self._context.clock, read=read, key_holder=_key_holder_of, act=act)

    async def get(self, principal: Principal, transfer_id: str) -> Payment:
        """Return one payment with its current status on chain.

        Raises:
            Problem: `not_found`, also for a transfer that is not a payment.
        """
        transfer, payment = await self._database.read(_own_payment, principal, transfer_id)
        if transfer.status == TransferStatus.SUBMITTED:
            await self._poll_one(payment)
            transfer, payment = await self._database.read(_own_payment, principal, transfer_id)
        return shown(transfer, payment)

    async def list(self, principal: Principal, query: ListPayments) -> PageBody[Payment]:
        """Return a page of payments, newest first; for an agent-scoped key, only those of its account.

        Raises:
            Problem: `forbidden` for another account, `invalid_request` for a cursor of another list.
        """
        if query.account_id is not None:
            principal.require_account(query.account_id, LIST_PAYMENTS.operation)
        listing = List("payments", principal.account_id or principal.operator_id)
        rows = await self._database.read(
            store.PAGES,
            principal.operator_id,
            listing.before(query.cursor),
            query.limit + 1,
            account_id=principal.account_id or query.account_id,
            origin=query.origin,
            status=query.status,
            transfer_id=query.transfer_id,
            since_us=None if query.since is None else end_of_millisecond_us(query.since),
        )
        return listing.page(rows, query.limit, seq=lambda row: row[1].seq, item=lambda row: shown(*row))

    async def report_outcome(
        self, principal: Principal, transfer_id: str, request: ReportOutcome
    ) -> Payment | SessionStep:
        """Store the seller's response, as the client reports it, and return the payment.

        `transfer_id` may be the `charge_id` of a voucher.

        Raises:
            Problem: `not_found`.
        """
        if identifiers.is_identifier(transfer_id, identifiers.CHARGE):
            return await self._sessions.report(principal, transfer_id, request)
        await self._database.run(self._report, principal, transfer_id, request)
        return await self.get(principal, transfer_id)

    # --- Looking up a key ---------------------------------------------------------------------------------

    def _offers(self, request: AuthorizePayment) -> Sequence[Offer | Skipped]:
        try:
            return rules.read_challenge(request.headers, (request.body or "").encode("utf-8"))
        except UnreadableChallengeError as error:
            raise Problem(
                ErrorCode.UNREADABLE_CHALLENGE, f"The challenge of this 402 cannot be read: {error}."
            ) from None

    def _sifted(self, offers: Sequence[Offer | Skipped], request: AuthorizePayment, now_us: int) -> Sifted:
        name = self._chain.cluster_name
        limit = None if request.max_amount is None else to_micro(request.max_amount)
        return rules.sift(
            offers,
            cluster=name if name in _CLUSTERS else None,
            usdc_mint=self._chain.usdc_mint,
            now_us=now_us,
            max_amount_micro=limit,
            session_cap_micro=None if request.session_cap is None else to_micro(request.session_cap),
        )

    async def _replayed(self, held: TransferRecord, offer: Offer) -> Payment:
        payment = await self._database.read(store.PAYMENTS.existing, held.transfer_id)
        now_us = self._context.clock.now_us()
        if held.status == TransferStatus.SUBMITTED and now_us >= (payment.expires_us or 0):
            # The transaction may have expired.
            await self._poll_one(payment)
            held = await self._database.read(transfer_store.TRANSFERS.existing, held.transfer_id)
        if held.status in _UNPRESENTED:
            return await self._presented(held, payment, offer, is_replay=True)
        if held.status == TransferStatus.PENDING_APPROVAL:
            return shown(held, payment)
        raise problem_of(held, is_replay=True)

    async def _poll_one(self, payment: PaymentRow) -> None:
        """Post the outcome of a submitted payment if the chain has it."""
        if payment.protocol == Protocol.X402_UPTO:
            await self._sessions.poll_payment(payment.transfer_id, within_seconds=_POLL_SECONDS)
        else:
            await self._watch.poll_one(payment.transfer_id, within_seconds=_POLL_SECONDS)

    async def _presented(
        self, transfer: TransferRecord, payment: PaymentRow, offer: Offer, *, is_replay: bool
    ) -> Payment:
        assert payment.raw is not None  # noqa: S101 - it was signed
        if payment.protocol == Protocol.X402_UPTO:
            payload = await self._sessions.upto_payload(payment, offer)
            header = x402.wrap_payload(offer, payload, payment_id=transfer.transfer_id)
        else:
            header = rules.wrap(offer, payment.raw, payment_id=transfer.transfer_id)
        return shown(transfer, payment, header=header, is_replay=is_replay)

    # --- Deciding -----------------------------------------------------------------------------------------

    async def _new(
        self,
        principal: Principal,
        request: AuthorizePayment,
        offer: Offer,
        view: _PaymentView,
        deadline: float,
    ) -> Payment | None:
        """Authorize a new payment; None if the request must start over."""
        purchase = await self._purchase(principal, request, offer, view)
        payment = NewPayment(
            self._context, principal, purchase, _requested_key(principal, request), view.held
        )
        return await self._decided(payment, offer, view, deadline)

    async def _approved(
        self,
        principal: Principal,
        request: AuthorizePayment,
        offer: Offer,
        view: _PaymentView,
        deadline: float,
    ) -> Payment | None:
        """Authorize a payment that an operator has approved; None if the request must start over."""
        # A wrong clock would also expire the approval.
        self._context.clock_check.require()
        held = view.held.existing
        expires_us = held.approval_expires_us
        if expires_us is not None and expires_us <= self._context.clock.now_us():
            raise Problem(
                ErrorCode.POLICY_VIOLATION,
                "This payment was approved, but not requested again in time; use a new idempotency_key.",
                transfer_id=held.transfer_id,
                status=TransferStatus.REJECTED,
            )
        purchase = await self._purchase(principal, request, offer, view)
        approved = ApprovedPayment(self._context, principal, purchase, held)
        return await self._decided(approved, offer, view, deadline)

    async def _decided(
        self, intent: NewPayment | ApprovedPayment, offer: Offer, view: _PaymentView, deadline: float
    ) -> Payment | None:
        first, *others = self._token_accounts(offer)
        parties = Parties(
            source=view.source,
            recipient=view.accounts[first],
            others={each: view.accounts[each] for each in others},
            is_broadcast_by_us=False,
        )
        decided = await self._execution.decided(intent, parties, deadline)
        if decided is None:
            return None
        transfer = decided.record
        if transfer.status == TransferStatus.SUBMITTED:
            failpoint(Operation.PAYMENT, Step.SIGNED)
            self._watch.expect()
            payment = await self._database.read(store.PAYMENTS.existing, transfer.transfer_id)
            return await self._presented(transfer, payment, offer, is_replay=False)
        if transfer.status == TransferStatus.PENDING_APPROVAL:
            return shown(transfer, await self._database.read(store.PAYMENTS.existing, transfer.transfer_id))
        raise problem_of(transfer)

    async def _purchase(
        self, principal: Principal, request: AuthorizePayment, offer: Offer, view: _PaymentView
    ) -> Purchase:
        landing = None
        if offer.channel is not None and not view.source.paused:
            landing = await landing_of(self._chain, offer, view.position)
        return Purchase(
            operator_id=principal.operator_id,
            account_id=request.account_id,
            origin=request.origin,
            url=request.url,
            memo=request.memo or None,
            offer=offer,
            pin=view.pin,
            token_account=self._token_accounts(offer)[0],
            position=view.position,
            landing=landing,
        )

    def _token_accounts(self, offer: Offer) -> Sequence[str]:
        """Return the token accounts that an offer pays, without duplicates, the primary recipient's first."""
        mint, owners = self._chain.usdc_mint, [leg.recipient for leg in offer.terms.legs]
        if offer.channel is not None:
            owners += [owner for owner, _ in offer.channel.shares]
        return list(dict.fromkeys(associated_token_address(owner, mint) for owner in owners))

    # --- Units of work ------------------------------------------------------------------------------------

    def _view(
        self,
        connection: Connection,
        principal: Principal,
        request: AuthorizePayment,
        sifted: Sifted,
        now_us: int,
    ) -> _PaymentView:
        source = account_store.own_account(connection, principal, request.account_id)
        key = _requested_key(principal, request)
        use = use_of(connection, principal, key, now_us)
        if not sifted.payable and use.channel is None:
            raise nothing_payable(sifted.reasons)
        held = transfer_store.KEYS.find(connection, key, now_us)
        holder = held.in_force
        if holder is None and held.is_held_elsewhere:
            raise conflict()
        pin = store.PINS.get(connection, (principal.operator_id, request.origin))
        payable = sifted.payable
        if holder is not None:
            payable = {
                position: offer
                for position, offer in payable.items()
                if _digest(offer, request) == holder.payment_digest
            }
            if not payable:
                raise _conflict(connection, holder, request, sifted.payable.values())
        elif use.channel is not None:
            payable = {
                position: offer
                for position, offer in payable.items()
                if _continues(use, offer, principal, request)
            }
            if not payable:
                raise session_conflict(use)
        session = None
        if holder is None or _key_holder_of(holder).if_equal is not Verdict.REPLAY:
            position, offer = self._first_signable(connection, source, payable, pin, sifted.reasons)
            if offer.is_session:
                session = self._selected(
                    connection, principal, request, use, (position, offer), source=source, key=key
                )
                session = attrs.evolve(session, pin=pin)
        else:
            # Nothing is signed again.
            position, offer = next(iter(payable.items()))
        return _PaymentView(
            terms=_digest(offer, request),
            session=session,
            source=source,
            held=held,
            offer=offer,
            position=position,
            pin=pin,
            # Only of this offer: a seller may send hundreds of others.
            accounts={
                token_account: account_store.account_at(connection, token_account)
                for token_account in self._token_accounts(offer)
            },
        )

    def _first_signable(
        self,
        connection: Connection,
        source: AccountRecord,
        payable: Mapping[int, Offer],
        pin: Pin | None,
        reasons: Mapping[int, str],
    ) -> tuple[int, Offer]:
        # A payment that can never be signed must not wait for an approval.
        found = dict(reasons)
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

    def _selected(
        self,
        connection: Connection,
        principal: Principal,
        request: AuthorizePayment,
        use: KeyUse,
        placed: tuple[int, Offer],
        *,
        source: AccountRecord,
        key: RequestedKey,
    ) -> Selected:
        position, offer = placed
        assert offer.channel is not None  # noqa: S101 - a session's offer has it
        holder = use.held.in_force
        is_of_escrow = holder is not None and holder.channel is None and holder.status != SessionStatus.FAILED
        if use.channel is None and (is_of_escrow or use.held.is_held_elsewhere):
            raise conflict()
        digest = _channel_digest(offer, principal, request)
        return Selected(
            source=source,
            offer=offer,
            position=position,
            digest=_digest(offer, request),
            channel_digest=digest,
            pin=None,
            key=key,
            use=use,
            channel=use.channel or channel_store.live(connection, request.account_id, digest),
            token_accounts={
                token_account: account_store.account_at(connection, token_account)
                for token_account in self._token_accounts(offer)
            },
        )

    def _report(
        self, connection: Connection, principal: Principal, transfer_id: str, request: ReportOutcome
    ) -> None:
        _own_payment(connection, principal, transfer_id)
        store.PAYMENTS.changed(
            connection,
            transfer_id,
            outcome_status=request.status_code,
            outcome_receipt=request.receipt,
            outcome_duration_ms=request.duration_ms,
        )
        audit.record(
            connection,
            principal,
            action=REPORT_OUTCOME.name,
            subject=transfer_id,
            now_us=self._context.clock.now_us(),
            after=audit.given(status_code=request.status_code, duration_ms=request.duration_ms),
        )


_CLUSTERS: Final = ("mainnet-beta", "devnet", "testnet")


def _requested_key(principal: Principal, request: AuthorizePayment) -> RequestedKey:
    return RequestedKey(
        account_id=request.account_id,
        idempotency_key=request.idempotency_key,
        by_operator=not principal.is_agent,
    )


def _key_holder_of(record: TransferRecord) -> KeyHolder:
    return KeyHolder(
        terms=record.payment_digest,
        if_equal=rules.verdict_if_equal(record.status, record.error),
        key_expires_us=record.key_expires_us,
    )


def _conflict(
    connection: Connection, holder: TransferRecord, request: AuthorizePayment, offers: Iterable[Offer]
) -> Problem:
    """Return the error that says in what the most similar offer differs from the payment with the key."""
    payment = store.PAYMENTS.get(connection, holder.transfer_id)
    if payment is None:
        return conflict(holder)
    if payment.protocol == Protocol.X402_UPTO and payment.raw is not None:
        # Once it is settled, its amount is what the seller took; the terms are the maximum.
        maximum = channel_store.of_session(connection, holder.transfer_id).session.cap
        holder = attrs.evolve(holder, amount=maximum)
    memo = request.memo or None
    found = [differences(holder, payment, offer.terms, origin=request.origin, memo=memo) for offer in offers]
    return conflict(holder, min(found, key=len))


def _continues(use: KeyUse, offer: Offer, principal: Principal, request: AuthorizePayment) -> bool:
    """Return whether an offer is for the purchase that a key was used for in a session."""
    if not offer.is_session or use.channel is None:
        return False
    if use.voucher is not None:
        return _digest(offer, request) == use.voucher.digest
    return _channel_digest(offer, principal, request) == use.channel.record.terms_digest


def _channel_digest(offer: Offer, principal: Principal, request: AuthorizePayment) -> str:
    assert offer.channel is not None  # noqa: S101 - a session's offer has it
    limited = key_totals.limited_key_id(principal)
    return offer.channel.digest(offer.terms, origin=request.origin, limited_key_id=limited)


def _digest(offer: Offer, request: AuthorizePayment) -> str:
    return offer.terms.digest(origin=request.origin, memo=request.memo or None)


def _own_payment(
    connection: Connection, principal: Principal, transfer_id: str
) -> tuple[TransferRecord, PaymentRow]:
    transfer = own_transfer(connection, principal, transfer_id)
    payment = store.PAYMENTS.get(connection, transfer_id)
    if payment is None:
        raise not_found("payment", transfer_id)
    return transfer, payment
