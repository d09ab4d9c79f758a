"""Payments within sessions over HTTP 402: an opening, then vouchers, from one channel on equal terms.

The first request for some terms opens a channel: its header goes to the seller, which broadcasts it.
Requests under any key get the same opening as long as it may land. Once it has landed, each key gets one
voucher.

One unit of work stores key and cumulative amount of a voucher, under the cap, before anything is signed. A
key never gets a second amount: Ed25519 signs the same bytes alike, so a repeated request, and one after a
crash, presents the same voucher. Because the order of vouchers matters to sellers, one is in flight for
each session: the next is signed once a client has reported its outcome, or after 30 seconds.
"""

import asyncio
import contextlib
import json
from functools import partial
from typing import Final

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.ext.payments import (
    AUTHORIZE_PAYMENT,
    REPORT_OUTCOME,
    AuthorizePayment,
    PaymentHeader,
    PaymentOutcome,
    PaymentProtocol,
    PaymentStep,
    ReportOutcome,
    SessionStep,
    VoucherReport,
)
from agentpay.contract.ext.sessions import ClosingReason, SessionStatus
from agentpay.contract.requests import UNSET
from agentpay.contract.usdc import format_number, from_micro
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.database.connection import Connection, ConstraintError
from agentpay_server.database.runner import OfAccounts
from agentpay_server.database.tables import AccountRecord, PurchaseKind, VoucherRecord
from agentpay_server.engine.authorization import Authorizer, Order, Parties
from agentpay_server.engine.policy import (
    Recipient,
    Refusal,
    paused_refusal,
    refused_by,
    stored_policy,
    usdc_text,
    voucher_refusal,
)
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit, idempotency, spending, transactions
from agentpay_server.ledger.apply import Unit
from agentpay_server.ledger.context import Context
from agentpay_server.platform.clock import real_now_us
from agentpay_server.platform.errors import (
    RETRY_AFTER_SECONDS,
    Problem,
    invalid,
    not_found,
    signing_suspended,
)
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.channels import store as channel_store
from agentpay_server.plugins.channels.closing import to_closing
from agentpay_server.plugins.channels.on_chain import IN_FLIGHT_US, MAX_REFUSALS, Owned
from agentpay_server.plugins.channels.opening import open_channel
from agentpay_server.plugins.channels.signing import opening_of, voucher_header
from agentpay_server.plugins.channels.store import CHANNELS, IS_OPEN, VOUCHERS, Channel, KeyUse
from agentpay_server.plugins.pay402.challenges import mpp
from agentpay_server.plugins.pay402.judging import Purchase, pin_is_as_seen, pin_refusal, spend_on
from agentpay_server.plugins.pay402.settling import PaymentWatch
from agentpay_server.sessions import store as session_store
from agentpay_server.sessions.outcomes import refused
from agentpay_server.sessions.rules import key_refusal
from agentpay_server.sessions.service import draw

_REFUSED: Final = 402
_SERVER_ERROR: Final = 500

_POLL_SECONDS: Final = 0.5
"""How often to look for an opening on a cluster, while its caller waits."""

_ABSENCES: Final = 2
"""After how many polls an opening counts as not sent: a node may list one a moment after its seller does."""


def pay_by_voucher(
    connection: Connection,
    context: Context,
    principal: Principal,
    request: AuthorizePayment,
    selected: Purchase,
) -> tuple[Channel, VoucherRecord, bool] | None:
    """Add a request's price to what the seller of a session can claim, and store the voucher.

    Returns:
        The channel, the voucher, and whether to wake the schedulers. None if the request must start over,
            because the session is no longer open, or the pin or the key's claims are not as they were read.

    Raises:
        Problem: a refusal; `chain_unavailable` if signing is suspended for the account;
            `service_unavailable` while another voucher is in flight or clocks differ.
        ConflictError: another request has used the key meanwhile.
    """
    assert selected.channel is not None  # noqa: S101 - it is open
    key, pin = selected.key, selected.pin
    # Every change of the policy takes this lock, and so does every other payment under the key.
    source = account_store.ACCOUNTS.existing(connection, key.account_id, lock=True)
    now_us = context.clock.now_us()
    context.clock_check.require(now_us)
    channel = channel_store.of_session(connection, selected.channel.session.session_id, lock=True)
    # Comparing the account with the chain may have taken long since the pin was read.
    if not (
        channel.session.status == SessionStatus.OPEN
        and idempotency.is_as_seen(connection, key, selected.use.held, now_us)
        and pin_is_as_seen(connection, source.operator_id, channel.record.origin, pin)
    ):
        return None
    unit = Unit(connection, context, now_us)
    refusal = _refusal(unit, principal, source, channel, selected)
    if refusal is not None:
        raise refused(refusal, channel.session)
    if source.suspended_us is not None:
        raise signing_suspended(source.account_id)
    until_us = channel.record.in_flight_until_us
    if channel.record.in_flight is not None and until_us is not None and real_now_us() < until_us:
        raise Problem(
            ErrorCode.SERVICE_UNAVAILABLE,
            f"Another voucher of this session is in flight, {channel.record.in_flight}, and nothing was "
            "signed. Retry with the same key once its outcome is reported.",
            says_what_to_do=True,
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    return _stored(unit, principal, request, selected, channel)


def _refusal(
    unit: Unit, principal: Principal, source: AccountRecord, channel: Channel, selected: Purchase
) -> Refusal | None:
    session, policy = channel.session, stored_policy(source.policy)
    offer, pin = selected.offer, selected.pin
    terms, owners = offer.terms, offer.owners
    spend = spend_on(offer, [_recipient(unit, owner) for owner in owners], pin=pin)
    refused = (
        paused_refusal(policy, terms.amount_micro)
        # A limited key is offered its own sessions only; this holds for rows of older servers too.
        or key_refusal(terms.amount_micro, opened_by=session.key_id, key=spending.key_of(principal))
        or pin_refusal(pin, terms, owners)
        or voucher_refusal(policy, spend)
    )
    if refused is not None or session.running_total + terms.amount_micro <= session.cap:
        return refused
    return refused_by(
        "cap_usdc",
        terms.amount_micro,
        f"cap_usdc is {usdc_text(session.cap)} USDC, of which {usdc_text(session.running_total)} "
        f"USDC is signed away, and this request costs {usdc_text(terms.amount_micro)} USDC. Close the "
        "session, then request again to open another one.",
        code=ErrorCode.SESSION_CAP_EXCEEDED,
        limit_micro=session.cap,
        spent_micro=session.running_total,
    )


def _recipient(unit: Unit, owner: str) -> Recipient:
    token_account = associated_token_address(owner, unit.context.chain.usdc_mint)
    account = account_store.account_at(unit.connection, token_account)
    return Recipient(
        account_id=None if account is None else account.account_id,
        token_account=token_account,
        owner=owner,
    )


def _stored(
    unit: Unit, principal: Principal, request: AuthorizePayment, selected: Purchase, channel: Channel
) -> tuple[Channel, VoucherRecord, bool] | None:
    connection, offer, key = unit.connection, selected.offer, selected.key
    amount, charge_id = offer.terms.amount_micro, unit.context.identifiers.new(identifiers.CHARGE)
    drawn = draw(
        unit,
        channel.session,
        amount,
        principal=principal,
        action=AUTHORIZE_PAYMENT.name,
        key=key.idempotency_key,
        charge_id=charge_id,
    )
    if drawn is None:
        return None
    session, must_wake = drawn
    voucher = VoucherRecord(
        charge_id=charge_id,
        session_id=session.session_id,
        operator_id=session.operator_id,
        account_id=session.account_id,
        idempotency_key=key.idempotency_key,
        digest=selected.digest,
        url=request.url,
        amount=amount,
        cumulative=session.running_total,
        created_us=unit.now_us,
    )
    VOUCHERS.insert(connection, voucher)
    idempotency.put(connection, key, selected.use.held, PurchaseKind.CHANNEL, charge_id)
    record = CHANNELS.changed(
        connection,
        channel.record,
        IS_OPEN,
        cumulative=session.running_total,
        in_flight=charge_id,
        in_flight_until_us=real_now_us() + IN_FLIGHT_US,
        newest_challenge=json.dumps(offer.echo),
    )
    return Channel(session=session, record=record), voucher, must_wake


def report_voucher(
    connection: Connection, context: Context, principal: Principal, charge_id: str, request: ReportOutcome
) -> tuple[Channel, VoucherRecord]:
    """Store the seller's response to a voucher, as the client reports it, and return the voucher.

    Two refusals in a row close the session by force.

    Raises:
        Problem: `not_found`.
    """
    voucher = VOUCHERS.get(connection, charge_id)
    if (
        voucher is None
        or voucher.operator_id != principal.operator_id
        or (principal.is_agent and voucher.account_id != principal.account_id)
    ):
        raise not_found("payment", charge_id)
    is_first = voucher.outcome_status is None
    found = channel_store.of_session(connection, voucher.session_id, lock=True)
    voucher = VOUCHERS.changed(
        connection,
        voucher,
        outcome_status=request.status_code,
        outcome_receipt=request.receipt,
        outcome_duration_ms=request.duration_ms,
    )
    now_us = context.clock.now_us()
    audit.record(
        connection,
        principal,
        action=REPORT_OUTCOME.name,
        subject=charge_id,
        now_us=now_us,
        after={"status_code": request.status_code},
    )
    if found.record.in_flight == charge_id and is_first:
        found = _count(connection, found, request.status_code, now_us)
    return found, voucher


def _count(connection: Connection, found: Channel, status_code: int, now_us: int) -> Channel:
    # A seller that keeps a voucher and serves nothing may as well claim to have failed.
    is_refused = status_code == _REFUSED or status_code >= _SERVER_ERROR
    refusals = found.record.refusals + 1 if is_refused else 0
    channel = CHANNELS.changed(
        connection, found.record, in_flight=None, in_flight_until_us=None, refusals=refusals
    )
    if refusals < MAX_REFUSALS:
        return Channel(session=found.session, record=channel)
    # Due at once, whatever this server's clock says.
    due_us, reason = channel.created_us, ClosingReason.PAYEE_REFUSES
    closed = Owned(owner=found.session, channel=channel)
    to_closing(connection, closed, now_us=now_us, due_us=due_us, force_us=due_us, reason=reason)
    return channel_store.of_session(connection, channel.owner_id)


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
        self, principal: Principal, request: AuthorizePayment, selected: Purchase, deadline: float
    ) -> SessionStep | None:
        """Return the next step of a session, or None if the request must start over.

        Raises:
            Problem: a refusal, `nothing_payable`, `too_many_sessions`, `service_unavailable` while another
                voucher is in flight; nothing was signed.
        """
        use, channel = selected.use, selected.channel
        if use.voucher is not None and use.channel is not None:
            return self._voucher_step(use.channel, use.voucher, selected, is_replay=True)
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
        channel, voucher = await self._database.run(
            report_voucher, self._context, principal, charge_id, request
        )
        if channel.session.status != SessionStatus.OPEN:
            self._context.wakeup.set()
        return step_of(channel, voucher=voucher, amount_micro=voucher.amount, header=None)

    async def report_previous(self, principal: Principal, report: VoucherReport) -> None:
        """Store the seller's response to an earlier voucher; that of an unknown one is ignored."""
        with contextlib.suppress(Problem):
            await self.report(principal, report.charge_id, report)

    # --- Vouchers

    async def _charge(
        self, principal: Principal, request: AuthorizePayment, selected: Purchase, channel: Channel
    ) -> SessionStep | None:
        key = selected.key
        # An older copy of the database does not know the newest vouchers.
        await self._authorizer.reconcile(selected.source)
        unit = OfAccounts(
            pay_by_voucher,
            frozenset((key.account_id,)),
            frozenset((channel.session.session_id,)),
            session_store.LOCK,
        )
        failpoint(Operation.VOUCHER, Step.BEGUN)
        try:
            paid = await self._database.run(unit, self._context, principal, request, selected)
        except (ConstraintError, Problem):
            # As in `Authorizer.authorize`: the voucher in flight may be that of this very request.
            held = await self._database.read(idempotency.find, key, self._context.clock.now_us())
            if held == selected.use.held:
                raise
            return None
        if paid is None:
            return None
        failpoint(Operation.VOUCHER, Step.POSTED)
        channel, voucher, must_wake = paid
        if must_wake:
            self._context.wakeup.set()
        step = self._voucher_step(channel, voucher, selected)
        failpoint(Operation.VOUCHER, Step.SIGNED)
        return step

    def _voucher_step(
        self, channel: Channel, voucher: VoucherRecord, selected: Purchase, *, is_replay: bool = False
    ) -> SessionStep:
        header = voucher_header(
            self._context.signer,
            channel.record,
            selected.source,
            voucher.cumulative,
            challenge=selected.offer.echo,
        )
        return step_of(
            channel, voucher=voucher, amount_micro=voucher.amount, header=header, is_replay=is_replay
        )

    # --- Openings

    async def _open(
        self, principal: Principal, request: AuthorizePayment, selected: Purchase, deadline: float
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
            held=selected.use.held,
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
        no seller has sent is not waited for: its caller may have lost it.
        """
        session_id, loop = channel.session.session_id, asyncio.get_running_loop()
        is_patient = is_patient and self._context.chain.landing_seconds > 0
        is_sent, absences = False, 0
        while True:
            tx = await self._database.read(transactions.pending, Operation.CHANNEL_OPEN, session_id)
            if tx is None or await self._settlement.poll_one(tx) is not None:
                return False
            if not is_patient or loop.time() >= deadline or self._context.tasks.closing.done():
                return True
            is_sent = is_sent or await self._settlement.may_be_sent(tx)
            absences += not is_sent
            if absences == _ABSENCES:
                return True
            await asyncio.sleep(_POLL_SECONDS)

    def _open_step(self, channel: Channel, selected: Purchase, *, is_replay: bool) -> SessionStep:
        opening = opening_of(self._context, channel.record, selected.source)
        expires_us = channel.record.challenge_expires_us
        # The opening has the blockhash of the challenge that it was signed for, which its seller compares.
        is_in_force = expires_us is None or self._context.clock.now_us() < expires_us
        challenge = json.loads(channel.record.challenge) if is_in_force else selected.offer.echo
        return step_of(
            channel,
            voucher=None,
            amount_micro=selected.offer.terms.amount_micro,
            header=mpp.credential(challenge, mpp.open_payload(opening, channel.record.raw)),
            is_replay=is_replay,
            key=selected.key.idempotency_key,
        )


def step_of(
    channel: Channel,
    *,
    voucher: VoucherRecord | None,
    amount_micro: int,
    header: tuple[str, str] | None,
    is_replay: bool = False,
    key: str | None = None,
) -> SessionStep:
    """Return a step as callers see it: a voucher, or without one an opening, for a purchase under `key`."""
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
        idempotency_key=key or (session if voucher is None else voucher).idempotency_key,
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
