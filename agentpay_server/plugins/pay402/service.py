"""Payments behind HTTP 402: authorize, read, list, and reports of outcomes.

`selection.py` chooses the offer to pay, `purchases.py` pays a single purchase, `session_payments.py` pays
within a session.
"""

from agentpay.contract import identifiers
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
from agentpay.contract.transfers import TransferStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List
from agentpay_server.database.tables import PaymentRow, TransferRecord
from agentpay_server.ledger import audit
from agentpay_server.ledger.context import Context
from agentpay_server.platform.errors import not_found
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.channels import store as channel_store
from agentpay_server.plugins.channels.session_payments import SessionPayments, step_of
from agentpay_server.plugins.channels.store import Step
from agentpay_server.plugins.pay402 import store
from agentpay_server.plugins.pay402.purchases import Purchases
from agentpay_server.plugins.pay402.responses import to_response
from agentpay_server.transfers.service import own_transfer
from agentpay_server.transfers.store import period

_Listed = Step | tuple[TransferRecord, PaymentRow]


class Payments:
    """Authorizes, reads and lists payments."""

    def __init__(self, context: Context, purchases: Purchases, sessions: SessionPayments) -> None:
        self._context = context
        self._database = context.database
        self._purchases = purchases
        self._sessions = sessions

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
        return await self._purchases.pay(principal, request)

    async def get(self, principal: Principal, transfer_id: str) -> Payment:
        """Return one payment with its current status on chain.

        Raises:
            Problem: `not_found`, also for a transfer that is not a payment.
        """
        transfer, payment = await self._database.read(_own_payment, principal, transfer_id)
        if transfer.status == TransferStatus.SUBMITTED:
            await self._purchases.poll_one(payment)
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
                status=query.status,
                transfer_id=query.transfer_id,
                **given,
                **within,
            )
        return listing.page(
            rows,
            query.limit,
            seq=lambda row: row.place if isinstance(row, Step) else row[1].seq,
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


def _listed(row: _Listed) -> Payment | SessionStep:
    if not isinstance(row, Step):
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
