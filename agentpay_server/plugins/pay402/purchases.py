"""The purchase of an offer of a 402, at most once for a key: an exact price, or up to a maximum (`upto`).

Checks run in the order of a transfer's: the account, the key, paused, recipients, pin and policy, balance.
The service signs one transaction for a key, and returns it to every request on equal terms.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.payments import AuthorizePayment, Payment, SessionStep
from agentpay.contract.transfers import TransferStatus
from agentpay_server.database.tables import PaymentRow, PurchaseKind, TransferRecord
from agentpay_server.engine.authorization import Order, Parties
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import transactions
from agentpay_server.ledger.accounts import ACCOUNTS
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import RequestedKey, Verdict
from agentpay_server.ledger.transactions import Kind, StoredTransaction
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.channels.closing import ChannelClosing
from agentpay_server.plugins.channels.session_payments import SessionPayments
from agentpay_server.plugins.channels.signing import opening_of
from agentpay_server.plugins.channels.store import CHANNELS
from agentpay_server.plugins.pay402 import store
from agentpay_server.plugins.pay402.authorizing import Purchase, approved_payment, new_payment
from agentpay_server.plugins.pay402.challenges import offers as rules
from agentpay_server.plugins.pay402.challenges import x402
from agentpay_server.plugins.pay402.challenges.terms import Offer, Protocol, Skipped, UnreadableChallengeError
from agentpay_server.plugins.pay402.responses import nothing_payable, problem_of, to_response
from agentpay_server.plugins.pay402.selection import PaymentView, SelectOffer
from agentpay_server.plugins.pay402.watch import PaymentWatch
from agentpay_server.transfers import store as transfer_store
from agentpay_server.transfers.deciding import NewSpend
from agentpay_server.transfers.service import Execution

_POLL_SECONDS: Final = 1.0
"""How long a read of a payment waits for its outcome from the chain."""

_UNPRESENTED: Final = (TransferStatus.SUBMITTED, TransferStatus.SETTLED)


class Purchases:
    """Pays purchases; those of offers that sell by session within their sessions."""

    def __init__(
        self,
        context: Context,
        settlement: Settlement,
        execution: Execution,
        *,
        closing: ChannelClosing,
        watch: PaymentWatch,
        sessions: SessionPayments,
    ) -> None:
        self._context = context
        self._database = context.database
        self._settlement = settlement
        self._execution = execution
        self._closing = closing
        self._watch = watch
        self._sessions = sessions

    async def pay(self, principal: Principal, request: AuthorizePayment) -> Payment | SessionStep:
        """Pay a 402, unless an earlier request under the key has paid it; see `Payments.authorize`."""
        offers = _offers(request)
        deadline = self._execution.deadline()
        key = RequestedKey.of(principal, request.account_id, request.idempotency_key)
        while True:
            now_us = self._context.clock.now_us()
            select = SelectOffer(self._context, principal, request, key, offers, now_us=now_us)
            view = await select.selected()
            transfer = view.transfer
            if view.session is None and transfer is not None and view.judged is Verdict.REPLAY:
                return await self._replayed(transfer, view.offer)
            paid: Payment | SessionStep | None
            try:
                if view.session is not None:
                    paid = await self._sessions.pay(principal, request, view.session, deadline)
                else:
                    order = self._order(principal, request, key, view)
                    paid = await self._decided(order, view.offer, deadline)
            except Problem as problem:
                if problem.code is not ErrorCode.INVALID_RECIPIENT:
                    raise
                # Since it was selected. The caller has named no recipient.
                reason = "its recipient can no longer be paid"
                raise nothing_payable({view.position: reason}) from None
            if paid is not None:
                return paid

    async def poll_one(self, payment: PaymentRow) -> None:
        """Post the outcome of a submitted payment if the chain shows one."""
        is_upto = payment.protocol == Protocol.X402_UPTO
        kind = Kind.CHANNEL_OPEN if is_upto else Kind.PAYMENT
        tx = await self._database.read(transactions.pending, kind, payment.transfer_id)
        if tx is not None or is_upto:
            poll = self._context.tasks.start(self._poll(payment.transfer_id, tx, is_upto=is_upto))
            await asyncio.wait({poll}, timeout=_POLL_SECONDS)

    async def _poll(self, transfer_id: str, tx: StoredTransaction | None, *, is_upto: bool) -> None:
        is_ended = tx is None or await self._settlement.poll_one(tx) is not None
        if is_upto and is_ended:
            # The opening of its channel. Another server does it while this one's clock is wrong.
            with contextlib.suppress(Problem):
                await self._closing.advance(transfer_id)

    # --- Repeated requests ----------------------------------------------------------------------------------

    async def _replayed(self, transfer: TransferRecord, offer: Offer) -> Payment:
        payment = await self._database.read(store.PAYMENTS.existing, transfer.transfer_id)
        now_us = self._context.clock.now_us()
        if transfer.status == TransferStatus.SUBMITTED and now_us >= (payment.expires_us or 0):
            # The transaction may have expired.
            await self.poll_one(payment)
            transfer = await self._database.read(transfer_store.TRANSFERS.existing, transfer.transfer_id)
        if transfer.status in _UNPRESENTED:
            return await self._presented(transfer, payment, offer, is_replay=True)
        if transfer.status == TransferStatus.PENDING_APPROVAL:
            return to_response(transfer, payment)
        raise problem_of(transfer, is_replay=True)

    async def _presented(
        self, transfer: TransferRecord, payment: PaymentRow, offer: Offer, *, is_replay: bool
    ) -> Payment:
        assert payment.raw is not None  # noqa: S101 - it was signed
        if payment.protocol == Protocol.X402_UPTO:
            channel = await self._database.read(CHANNELS.existing, payment.transfer_id)
            account = await self._database.read(ACCOUNTS.existing, payment.account_id)
            opening = opening_of(self._context, channel, account)
            header = x402.wrap_upto(offer, opening, channel, payment_id=transfer.transfer_id)
        else:
            header = rules.wrap(offer, payment.raw, payment_id=transfer.transfer_id)
        return to_response(transfer, payment, header=header, is_replay=is_replay)

    # --- Deciding -------------------------------------------------------------------------------------------

    def _approved(self, approved: TransferRecord) -> TransferRecord:
        """Return the payment that an operator has approved, if there is still time to sign it."""
        # A wrong clock would also expire the approval.
        self._context.clock_check.require()
        expires_us = approved.approval_expires_us
        if expires_us is not None and expires_us <= self._context.clock.now_us():
            raise Problem(
                ErrorCode.POLICY_VIOLATION,
                "This payment was approved, but not requested again in time; use a new idempotency_key.",
                transfer_id=approved.transfer_id,
                status=TransferStatus.REJECTED,
            )
        return approved

    def _order(
        self, principal: Principal, request: AuthorizePayment, key: RequestedKey, view: PaymentView
    ) -> Order[TransferRecord]:
        first, *others = view.token_accounts
        purchase = Purchase(
            operator_id=principal.operator_id,
            account_id=request.account_id,
            origin=request.origin,
            url=request.url,
            memo=request.memo or None,
            offer=view.offer,
            pin=view.pin,
            token_account=first,
            position=view.position,
            landing=view.landing,
        )
        parties = Parties(
            source=view.source,
            to=first,
            recipient=view.token_accounts[first],
            others={each: view.token_accounts[each] for each in others},
            is_broadcast_by_us=False,
        )
        if view.transfer is not None and view.judged is Verdict.RESUME:
            approved = self._approved(view.transfer)
            return Order(
                operation=Operation.PAYMENT,
                parties=parties,
                decide=partial(approved_payment, principal=principal, approved=approved, purchase=purchase),
                by_operator=True,
            )
        new = NewSpend(
            transfer_id=self._context.identifiers.new(identifiers.TRANSFER),
            principal=principal,
            terms=purchase.terms,
            key=key,
            held=view.held,
            kind=PurchaseKind.PAYMENT,
        )
        return Order(
            operation=Operation.PAYMENT,
            parties=parties,
            decide=partial(new_payment, new=new, purchase=purchase),
            by_operator=not principal.is_agent,
            key=key,
        )

    async def _decided(self, order: Order[TransferRecord], offer: Offer, deadline: float) -> Payment | None:
        """Authorize a payment; None if the request must start over."""
        decided = await self._execution.decided(order, deadline)
        if decided is None:
            return None
        transfer = decided.record
        if transfer.status not in (TransferStatus.SUBMITTED, TransferStatus.PENDING_APPROVAL):
            raise problem_of(transfer)
        is_signed = transfer.status == TransferStatus.SUBMITTED
        if is_signed:
            failpoint(Operation.PAYMENT, Step.SIGNED)
            self._watch.expect()
        payment = await self._database.read(store.PAYMENTS.existing, transfer.transfer_id)
        if is_signed:
            return await self._presented(transfer, payment, offer, is_replay=False)
        return to_response(transfer, payment)


def _offers(request: AuthorizePayment) -> Sequence[Offer | Skipped]:
    try:
        return rules.read_challenge(request.headers, (request.body or "").encode("utf-8"))
    except UnreadableChallengeError as error:
        raise Problem(
            ErrorCode.UNREADABLE_CHALLENGE, f"The challenge of this 402 cannot be read: {error}."
        ) from None
