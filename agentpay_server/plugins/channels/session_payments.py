"""Payments within sessions over HTTP 402: an opening, then vouchers, from one channel on equal terms.

The first request for some terms opens a channel: its header goes to the seller, which broadcasts it. Requests
under any key get the same opening as long as it may land. Once it has landed, each key gets one voucher.
"""

import asyncio
import contextlib
import json
from functools import partial
from typing import Final

from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.payments import (
    AuthorizePayment,
    PaymentHeader,
    PaymentOutcome,
    PaymentProtocol,
    PaymentStep,
    ReportOutcome,
    SessionStep,
    VoucherReport,
)
from agentpay.contract.requests import UNSET
from agentpay.contract.sessions import SessionStatus
from agentpay.contract.usdc import format_number, from_micro
from agentpay_server.database.connection import ConstraintError
from agentpay_server.database.runner import OfAccounts
from agentpay_server.database.tables import VoucherRecord
from agentpay_server.engine.authorization import Authorizer, Order, Parties
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import transactions
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import Kind
from agentpay_server.platform.errors import Problem, invalid
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.channels import store as channel_store
from agentpay_server.plugins.channels import vouchers
from agentpay_server.plugins.channels.opening import Selected, open_channel
from agentpay_server.plugins.channels.signing import opening_of, voucher_header
from agentpay_server.plugins.channels.store import Channel, KeyUse
from agentpay_server.plugins.channels.vouchers import Paid, PayByVoucher
from agentpay_server.plugins.pay402.challenges import mpp
from agentpay_server.plugins.pay402.watch import PaymentWatch
from agentpay_server.sessions import store as session_store

_POLL_SECONDS: Final = 0.5
"""How often to look for an opening on a cluster, while its caller waits."""

_ABSENCES: Final = 2
"""After how many polls an opening counts as not sent: a node may list one a moment after its seller does."""


class SessionPayments:
    """Opens channels, signs vouchers, and stores their outcomes."""

    def __init__(
        self,
        context: Context,
        settlement: Settlement,
        authorizer: Authorizer,
        watch: PaymentWatch,
    ) -> None:
        self._context = context
        self._database = context.database
        self._settlement = settlement
        self._authorizer = authorizer
        self._watch = watch

    def check(self, request: AuthorizePayment) -> None:
        """Check what a request says about sessions.

        Raises:
            Problem: `invalid_request` for a cap below the minimum.
        """
        smallest = self._context.settings.min_session_cap_usdc
        if request.session_cap is not None and request.session_cap < smallest:
            message = f"must be at least {format_number(smallest)}"
            raise invalid(FieldError(field="session_cap", message=message))

    async def pay(
        self, principal: Principal, request: AuthorizePayment, selected: Selected, deadline: float
    ) -> SessionStep | None:
        """Return the next step of a session, or None if the request must start over.

        Raises:
            Problem: a refusal, `nothing_payable`, `too_many_sessions`, `service_unavailable` while another
                voucher is in flight; nothing was signed.
        """
        use, channel = selected.use, selected.channel
        if use.voucher is not None and use.channel is not None:
            paid = Paid(channel=use.channel, voucher=use.voucher, is_replay=True)
            return self._voucher_step(paid, selected)
        if channel is None:
            return await self._open(principal, request, selected, deadline)
        if channel.session.status == SessionStatus.OPENING:
            is_repeated = use.channel is not None
            if not await self._is_still_opening(channel, deadline, is_patient=is_repeated):
                return None
            return self._open_step(channel, selected, is_replay=True)
        return await self._charge(principal, request, selected, channel)

    async def report(self, principal: Principal, charge_id: str, request: ReportOutcome) -> SessionStep:
        """Store the seller's response to a voucher, as the client reports it.

        Raises:
            Problem: `not_found`.
        """
        paid = await self._database.run(vouchers.report, self._context, principal, charge_id, request)
        self._context.wakeup.set()
        return step_of(paid.channel, voucher=paid.voucher, amount_micro=paid.voucher.amount, header=None)

    async def report_previous(self, principal: Principal, report: VoucherReport) -> None:
        """Store the seller's response to an earlier voucher; that of an unknown one is ignored."""
        with contextlib.suppress(Problem):
            await self._database.run(vouchers.report, self._context, principal, report.charge_id, report)
            self._context.wakeup.set()

    # --- Vouchers

    async def _charge(
        self, principal: Principal, request: AuthorizePayment, selected: Selected, channel: Channel
    ) -> SessionStep | None:
        pay = PayByVoucher(
            context=self._context,
            principal=principal,
            session_id=channel.session.session_id,
            key=selected.key,
            held=selected.use.held,
            offer=selected.offer,
            digest=selected.digest,
            url=request.url,
            pin=selected.pin,
        )
        # An older copy of the database does not know the newest vouchers.
        await self._authorizer.reconcile(selected.source)
        unit = OfAccounts(
            pay,
            frozenset((pay.key.account_id,)),
            frozenset((pay.session_id,)),
            session_store.LOCK,
        )
        failpoint(Operation.VOUCHER, Step.BEGUN)
        try:
            paid = await self._database.run(unit)
        except ConstraintError:
            # Another request took the key first. Any other violated constraint is a bug.
            if await self._database.read(pay.is_key_taken):
                return None
            raise
        if paid is None:
            return None
        failpoint(Operation.VOUCHER, Step.POSTED)
        self._context.wakeup.set()
        step = self._voucher_step(paid, selected)
        failpoint(Operation.VOUCHER, Step.SIGNED)
        return step

    def _voucher_step(self, paid: Paid, selected: Selected) -> SessionStep:
        header = voucher_header(
            self._context.signer,
            paid.channel.record,
            selected.source,
            paid.voucher.cumulative,
            challenge=selected.offer.echo,
        )
        return step_of(
            paid.channel,
            voucher=paid.voucher,
            amount_micro=paid.voucher.amount,
            header=header,
            is_replay=paid.is_replay,
        )

    # --- Openings

    async def _open(
        self, principal: Principal, request: AuthorizePayment, selected: Selected, deadline: float
    ) -> SessionStep | None:
        first, *others = selected.token_accounts
        parties = Parties(
            source=selected.source,
            to=first,
            recipient=selected.token_accounts[first],
            others={each: selected.token_accounts[each] for each in others},
            is_broadcast_by_us=False,
        )
        order = Order(
            operation=Operation.CHANNEL_OPEN,
            parties=parties,
            decide=partial(open_channel, principal=principal, request=request, selected=selected),
            by_operator=not principal.is_agent,
            key=selected.key,
        )
        decided = await self._authorizer.authorize(order, deadline)
        if decided is None:
            return None
        failpoint(Operation.CHANNEL_OPEN, Step.SIGNED)
        self._watch.expect()
        channel = await self._database.read(channel_store.of_session, decided.record.session_id)
        return self._open_step(channel, selected, is_replay=False)

    async def _is_still_opening(self, channel: Channel, deadline: float, *, is_patient: bool) -> bool:
        """Poll an opening on chain; return whether it has neither landed nor expired.

        On a cluster, a patient caller waits until an opening that its seller has sent is final. One that
        nobody has sent is not waited for: its caller may have lost it.
        """
        session_id, loop = channel.session.session_id, asyncio.get_running_loop()
        is_patient = is_patient and self._context.chain.landing_seconds > 0
        is_sent, absences = False, 0
        while True:
            tx = await self._database.read(transactions.pending, Kind.CHANNEL_OPEN, session_id)
            if tx is None or await self._settlement.poll_one(tx) is not None:
                return False
            if not is_patient or loop.time() >= deadline or self._context.tasks.closing.done():
                return True
            is_sent = is_sent or await self._settlement.may_be_sent(tx)
            absences += not is_sent
            if absences == _ABSENCES:
                return True
            await asyncio.sleep(_POLL_SECONDS)

    def _open_step(self, channel: Channel, selected: Selected, *, is_replay: bool) -> SessionStep:
        opening = opening_of(self._context, channel.record, selected.source)
        expires_us = channel.record.challenge_expires_us
        # The opening has the blockhash of its own challenge, which its seller compares.
        is_in_force = expires_us is None or self._context.clock.now_us() < expires_us
        challenge = json.loads(channel.record.challenge) if is_in_force else selected.offer.echo
        return step_of(
            channel,
            voucher=None,
            amount_micro=selected.offer.terms.amount_micro,
            header=mpp.credential(challenge, mpp.open_payload(opening, channel.record.raw)),
            is_replay=is_replay,
        )


def step_of(
    channel: Channel,
    *,
    voucher: VoucherRecord | None,
    amount_micro: int,
    header: tuple[str, str] | None,
    is_replay: bool = False,
) -> SessionStep:
    """Return a step as callers see it: a voucher, or without one an opening."""
    session, outcome = channel.session, None
    if voucher is not None and voucher.outcome_status is not None:
        outcome = PaymentOutcome(
            status_code=voucher.outcome_status,
            receipt=voucher.outcome_receipt,
            duration_ms=voucher.outcome_duration_ms,
        )
    return SessionStep(
        step=PaymentStep.OPEN.value if voucher is None else PaymentStep.VOUCHER.value,
        session_id=session.session_id,
        charge_id=None if voucher is None else voucher.charge_id,
        account_id=session.account_id,
        status=SessionStatus(session.status).value,
        protocol=PaymentProtocol.MPP.value,
        origin=channel.record.origin,
        url=session.url if voucher is None else voucher.url,
        amount_usdc=from_micro(amount_micro),
        running_total_usdc=from_micro(session.running_total if voucher is None else voucher.cumulative),
        cap_usdc=from_micro(session.cap),
        header=None if header is None else PaymentHeader(name=header[0], value=header[1]),
        is_replay=is_replay,
        outcome=outcome,
    )


def session_conflict(use: KeyUse) -> Problem:
    """Return the error for a key that was used in a session for something else."""
    used = "for a voucher" if use.voucher is not None else "for the opening"
    session_id = None if use.opened is None else use.opened.session.session_id
    return Problem(
        ErrorCode.IDEMPOTENCY_CONFLICT,
        f"This idempotency_key was used {used} of session {session_id} on other terms, or by another key.",
        session_id=session_id if use.voucher is None else UNSET,
        charge_id=None if use.voucher is None else use.voucher.charge_id,
    )
