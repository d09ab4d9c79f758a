"""Payments behind HTTP 402: authorize, read, list, and reports of outcomes; and the pins of sellers' origins.

`selection.py` chooses the offer to pay, `authorizing.py` decides about it, `session_payments.py` pays within
a session. An offer is purchased at most once for a key: for an exact price, or up to a maximum
(`upto`). Checks run in the order of a transfer's: the account, the key, paused, recipients, pin and policy,
balance. The service signs one transaction for a key, and returns it to every request on equal terms.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.ext.payments import (
    AUTHORIZE_PAYMENT,
    DELETE_SELLER,
    LIST_PAYMENTS,
    PUT_SELLER,
    REPORT_OUTCOME,
    AuthorizePayment,
    ListPayments,
    Payment,
    PaymentFilter,
    PinnedSeller,
    PinSeller,
    ReportOutcome,
    SessionStep,
    parse_origin,
)
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.transfers import TransferStatus
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_server.database.connection import Connection, ConstraintError
from agentpay_server.database.pages import List
from agentpay_server.database.tables import PaymentRow, PinRecord, PurchaseKind, TransferRecord
from agentpay_server.engine.authorization import Order
from agentpay_server.feature import Core
from agentpay_server.ledger import audit, transactions
from agentpay_server.ledger.accounts import ACCOUNTS
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import RequestedKey, Verdict
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import Problem, invalid, not_found
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.channels import feature as channels
from agentpay_server.plugins.channels import store as channel_store
from agentpay_server.plugins.channels.session_payments import SessionPayments, step_of
from agentpay_server.plugins.channels.signing import opening_of
from agentpay_server.plugins.channels.store import CHANNELS
from agentpay_server.plugins.pay402 import store
from agentpay_server.plugins.pay402.authorizing import approved_payment, new_payment
from agentpay_server.plugins.pay402.challenges import offers as rules
from agentpay_server.plugins.pay402.challenges import x402
from agentpay_server.plugins.pay402.challenges.terms import Offer, Protocol, Skipped, UnreadableChallengeError
from agentpay_server.plugins.pay402.judging import Purchase
from agentpay_server.plugins.pay402.responses import nothing_payable, problem_of, to_response
from agentpay_server.plugins.pay402.selection import SelectOffer
from agentpay_server.plugins.pay402.settling import PaymentWatch
from agentpay_server.transfers import store as transfer_store
from agentpay_server.transfers.deciding import NewSpend
from agentpay_server.transfers.service import Execution, own_transfer
from agentpay_server.transfers.store import period

_POLL_SECONDS: Final = 1.0
"""How long a read of a payment waits for its outcome from the chain."""

_UNPRESENTED: Final = (TransferStatus.SUBMITTED, TransferStatus.SETTLED)

_Listed = channel_store.Step | tuple[TransferRecord, PaymentRow]

_ATTEMPTS: Final = 5


class Payments:
    """Authorizes, reads and lists payments."""

    def __init__(self, core: Core) -> None:
        context, settlement = core.context, core.settlement
        self.watch: PaymentWatch = PaymentWatch(context, settlement)
        self.origins: Origins = Origins(context)
        self._context = context
        self._database = context.database
        self._settlement = settlement
        self._execution = Execution(context, settlement, core.authorizer)
        self._closing = core.of(channels.FEATURE).closing
        self._sessions = SessionPayments(context, settlement, core.authorizer, self.watch)

    async def authorize(self, principal: Principal, request: AuthorizePayment) -> Payment | SessionStep:
        """Pay a seller's 402: return the signed payment and its header, or a payment pending approval.

        With a `session_cap`, return the next step of a session if the seller sells by session.

        Raises:
            Problem: `not_found` of the account, `unreadable_challenge`, `nothing_payable`,
                `idempotency_conflict`, `payment_expired`, `payment_failed`, a 402 with the transfer,
                `chain_unavailable`: nothing was done.
            DatabaseUnavailableError: the decision may or may not be stored; retry with the same key.
        """
        principal.require_account(request.account_id, AUTHORIZE_PAYMENT.operation)
        self._sessions.check(request)
        if request.previous is not None:
            await self._sessions.report_previous(principal, request.previous)
        return await self._pay(principal, request)

    async def get(self, principal: Principal, transfer_id: str) -> Payment:
        """Return one payment with its current status on chain.

        Raises:
            Problem: `not_found`, also for a transfer that is not a payment.
        """
        transfer, payment = await self._database.read(_own_payment, principal, transfer_id)
        if transfer.status == TransferStatus.SUBMITTED:
            await self._poll_one(payment)
            transfer, payment = await self._database.read(_own_payment, principal, transfer_id)
        return to_response(transfer, payment)

    async def list(self, principal: Principal, query: ListPayments) -> PageBody[Payment | SessionStep]:
        """Return a page of payments, newest first; for an agent-scoped key, only those of its account.

        Those of an `idempotency_key` include steps of sessions, which come first.

        Raises:
            Problem: `forbidden` for another account, `invalid_request` for a cursor of another list.
        """
        if query.account_id is not None:
            principal.require_account(query.account_id, LIST_PAYMENTS.operation)
        listing = List("payments", principal.account_id or principal.operator_id)
        before, count = listing.before(query.cursor), query.limit + 1
        within = period(query.since, query.until)
        given: dict[str, object] = {
            "account_id": principal.account_id or query.account_id,
            "origin": query.origin,
            "idempotency_key": query.idempotency_key,
        }
        rows: list[_Listed] = []
        if query.idempotency_key is not None and query.status is None and query.transfer_id is None:
            bounds = {name: within.get(name) for name in ("since_us", "until_us")}
            rows += await self._database.read(
                channel_store.steps, principal.operator_id, before, count, **given, **bounds
            )
        if len(rows) < count:
            rows += await self._database.read(
                store.PAGES,
                principal.operator_id,
                before,
                count - len(rows),
                **_status_of(query),
                transfer_id=query.transfer_id,
                **given,
                **within,
            )
        return listing.page(
            rows,
            query.limit,
            seq=lambda row: row.place if isinstance(row, channel_store.Step) else row[1].seq,
            item=_listed,
        )

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

    def _report(
        self, connection: Connection, principal: Principal, transfer_id: str, request: ReportOutcome
    ) -> None:
        _own_payment(connection, principal, transfer_id)
        is_delivered = 200 <= request.status_code < 300
        # A seller refuses a payment that it has served: its refusal takes no delivery back.
        store.PAYMENTS.change(
            connection,
            transfer_id,
            *(() if is_delivered else (store.IS_UNDELIVERED,)),
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

    # --- Paying ---------------------------------------------------------------------------------------------

    async def _pay(self, principal: Principal, request: AuthorizePayment) -> Payment | SessionStep:
        """Pay a 402, unless an earlier request under the key has paid it."""
        offers = _offers(request)
        deadline = self._execution.deadline()
        key = RequestedKey.of(principal, request.account_id, request.idempotency_key)
        while True:
            now_us = self._context.clock.now_us()
            select = SelectOffer(self._context, principal, request, key, offers, now_us=now_us)
            purchase = await select.selected()
            transfer = purchase.transfer
            if transfer is not None and purchase.judged is Verdict.REPLAY:
                return await self._replayed(transfer, purchase.offer)
            paid: Payment | SessionStep | None
            try:
                if purchase.offer.is_session:
                    paid = await self._sessions.pay(principal, request, purchase, deadline)
                else:
                    order = self._order(principal, purchase)
                    paid = await self._decided(order, purchase.offer, deadline)
            except Problem as problem:
                if problem.code is not ErrorCode.INVALID_RECIPIENT:
                    raise
                # Since it was selected. The caller has named no recipient.
                reason = "its recipient can no longer be paid"
                raise nothing_payable({purchase.position: reason}) from None
            if paid is not None:
                return paid

    # --- Repeated requests ----------------------------------------------------------------------------------

    async def _replayed(self, transfer: TransferRecord, offer: Offer) -> Payment:
        payment = await self._database.read(store.PAYMENTS.existing, transfer.transfer_id)
        now_us = self._context.clock.now_us()
        if transfer.status == TransferStatus.SUBMITTED and now_us >= (payment.expires_us or 0):
            # The transaction may have expired.
            await self._poll_one(payment)
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

    def _order(self, principal: Principal, purchase: Purchase) -> Order[TransferRecord]:
        if purchase.transfer is not None and purchase.judged is Verdict.RESUME:
            approved = self._approved(purchase.transfer)
            return Order(
                operation=Operation.PAYMENT,
                parties=purchase.parties,
                decide=partial(approved_payment, principal=principal, approved=approved, purchase=purchase),
                by_operator=True,
            )
        new = NewSpend(
            transfer_id=self._context.identifiers.new(identifiers.TRANSFER),
            principal=principal,
            terms=purchase.terms,
            key=purchase.key,
            held=purchase.use.held,
            kind=PurchaseKind.PAYMENT,
        )
        return Order(
            operation=Operation.PAYMENT,
            parties=purchase.parties,
            decide=partial(new_payment, new=new, purchase=purchase),
            by_operator=not principal.is_agent,
            key=purchase.key,
            held=purchase.use.held,
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
            self.watch.expect()
        payment = await self._database.read(store.PAYMENTS.existing, transfer.transfer_id)
        if is_signed:
            return await self._presented(transfer, payment, offer, is_replay=False)
        return to_response(transfer, payment)

    # --- Outcomes -------------------------------------------------------------------------------------------

    async def _poll_one(self, payment: PaymentRow) -> None:
        """Post the outcome of a submitted payment if the chain shows one."""
        is_upto = payment.protocol == Protocol.X402_UPTO
        kind = Operation.CHANNEL_OPEN if is_upto else Operation.PAYMENT
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


def _status_of(query: ListPayments) -> dict[str, object]:
    """Return the filters for the status of a query."""
    if query.status is PaymentFilter.UNDELIVERED:
        return {"undelivered": TransferStatus.SETTLED}
    return {"status": query.status}


def _offers(request: AuthorizePayment) -> Sequence[Offer | Skipped]:
    try:
        return rules.read_challenge(request.headers, (request.body or "").encode("utf-8"))
    except UnreadableChallengeError as error:
        raise Problem(
            ErrorCode.UNREADABLE_CHALLENGE, f"The challenge of this 402 cannot be read: {error}."
        ) from None


def _listed(row: _Listed) -> Payment | SessionStep:
    if not isinstance(row, channel_store.Step):
        return to_response(*row)
    amount = 0 if row.voucher is None else row.voucher.amount
    return step_of(row.channel, voucher=row.voucher, amount_micro=amount, header=None)


def _own_payment(
    connection: Connection, principal: Principal, transfer_id: str
) -> tuple[TransferRecord, PaymentRow]:
    transfer = own_transfer(connection, principal, transfer_id)
    payment = store.PAYMENTS.get(connection, transfer_id)
    if payment is None:
        raise not_found("payment", transfer_id)
    return transfer, payment


class Origins:
    """Sets, reads and deletes pins."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._database = context.database

    async def put(self, principal: Principal, origin: str, request: PinSeller) -> PinnedSeller:
        """Pin an origin, replacing an existing pin.

        Raises:
            Problem: `invalid_request` if `origin` is not an origin.
        """
        pin = PinRecord(
            operator_id=principal.operator_id,
            origin=_checked(origin),
            category=request.category,
            recipients=store.addresses_text(request.recipients),
            max_amount=None if request.max_amount is None else to_micro(request.max_amount),
            blocked=request.blocked,
            sponsor_fees=request.sponsor_fees,
            updated_us=self._context.clock.now_us(),
        )
        for attempt in range(_ATTEMPTS):
            try:
                await self._database.run(self._put, principal, pin)
                break
            except ConstraintError:
                # A concurrent request has pinned the same origin.
                if attempt == _ATTEMPTS - 1:
                    raise
        return _to_response(pin)

    async def get(self, principal: Principal, origin: str) -> PinnedSeller:
        """Return the pin of an origin.

        Raises:
            Problem: `not_found`.
        """
        pin = await self._database.read(store.PINS.get, (principal.operator_id, origin))
        if pin is None:
            raise not_found("origin", origin)
        return _to_response(pin)

    async def delete(self, principal: Principal, origin: str) -> None:
        """Delete the pin of an origin.

        Raises:
            Problem: `not_found`.
        """
        if not await self._database.run(self._delete, principal, origin):
            raise not_found("origin", origin)

    async def list(self, principal: Principal, query: PageQuery) -> PageBody[PinnedSeller]:
        """Return a page of pins, the most recently set first.

        Raises:
            Problem: `invalid_request` for a cursor of another list.
        """
        listing = List("origins", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._database.read(store.PIN_PAGES, principal.operator_id, before, query.limit + 1)
        return listing.page(rows, query.limit, seq=lambda row: row.seq, item=_to_response)

    def _put(self, connection: Connection, principal: Principal, pin: PinRecord) -> None:
        before = store.PINS.remove(connection, (pin.operator_id, pin.origin))
        store.PINS.insert(connection, pin)
        audit.record(
            connection,
            principal,
            action=PUT_SELLER.name,
            subject=pin.origin,
            now_us=pin.updated_us,
            before=None if before is None else _audited(before),
            after=_audited(pin),
        )

    def _delete(self, connection: Connection, principal: Principal, origin: str) -> bool:
        before = store.PINS.remove(connection, (principal.operator_id, origin))
        if before is None:
            return False
        audit.record(
            connection,
            principal,
            action=DELETE_SELLER.name,
            subject=origin,
            now_us=self._context.clock.now_us(),
            before=_audited(before),
        )
        return True


def _checked(origin: str) -> str:
    try:
        return parse_origin(origin)
    except ValueError as error:
        raise invalid(FieldError(field="origin", message=str(error))) from None


def _to_response(pin: PinRecord) -> PinnedSeller:
    return PinnedSeller(
        origin=pin.origin,
        category=pin.category,
        recipients=store.addresses_of(pin),
        max_amount=None if pin.max_amount is None else from_micro(pin.max_amount),
        blocked=pin.blocked,
        sponsor_fees=pin.sponsor_fees,
        updated_at=from_us(pin.updated_us),
    )


def _audited(pin: PinRecord) -> dict[str, object]:
    recipients = store.addresses_of(pin)
    return audit.given(
        category=pin.category,
        recipients=None if recipients is None else list(recipients),
        max_amount=None if pin.max_amount is None else audit.usdc(pin.max_amount),
        blocked=pin.blocked,
        sponsor_fees=pin.sponsor_fees,
    )
