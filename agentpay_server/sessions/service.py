"""Sessions: a cap in escrow, charged in small amounts, settled in one transaction (interface S1 to S18).

Checks run in the order of transfers (interface R17): the account, idempotency, paused, recipient, the rest of
the policy, balance. A charge is one unit of work, in which one SQL statement enforces the cap. A repeated key
is handled before any other check, so that the replay of an accepted charge is never refused.
"""

from functools import partial

from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.ext.sessions import (
    CHARGE_SESSION,
    LIST_SESSIONS,
    OPEN_SESSION,
    ChargeSession,
    ListSessions,
    OpenSession,
    Session,
    SessionStatus,
)
from agentpay.contract.pages import PageBody
from agentpay.contract.usdc import format_number, to_micro
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.chain.transactions import ESCROW_BYTES
from agentpay_server.database import pages
from agentpay_server.database.connection import Connection, ConstraintError
from agentpay_server.database.pages import List
from agentpay_server.database.runner import OfAccounts
from agentpay_server.database.tables import ChargeRecord, PurchaseKind, SessionRecord
from agentpay_server.engine.authorization import (
    Authorizer,
    Decided,
    Order,
    Parties,
    invalid_recipient,
    own_parties,
)
from agentpay_server.engine.policy import stored_policy
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import audit, spending
from agentpay_server.ledger.apply import Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import Held, RequestedKey, Verdict, find_with_parties, judge
from agentpay_server.platform.errors import Problem, chain_unavailable, invalid
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import outcomes, store
from agentpay_server.sessions.closing import Channels, Closing
from agentpay_server.sessions.opening import key_holder_of, new_session, terms_of
from agentpay_server.sessions.outcomes import limits_of, refused, stopped, to_response, unresolved
from agentpay_server.sessions.rules import (
    charge_refusal,
    charge_verdict,
    closes_us,
    closing_refusal,
    key_refusal,
)
from agentpay_server.sessions.store import FITS, IS_OPEN, own_session, visible


def draw(
    unit: Unit,
    session: SessionRecord,
    amount: int,
    *,
    principal: Principal,
    action: str,
    key: str,
    **shown: str,
) -> tuple[SessionRecord, bool] | None:
    """Add an amount to what a session's payee gets, if the session is open and the cap allows it.

    The audit trail shows the `action`, its idempotency `key`, and what is `shown` besides.

    Returns:
        The session, and whether to wake the schedulers: to send an event, or to close it earlier than they
            know. None if it is no longer open, or if others have drawn meanwhile what is missing now.
    """
    context, now_us = unit.context, unit.now_us
    assert session.opened_us is not None  # noqa: S101 - an open session was opened
    closes = closes_us(limits_of(context), opened_us=session.opened_us, charged_us=now_us)
    # Status and cap are checked in one statement, so that concurrent charges cannot exceed the cap.
    drawn = store.SESSIONS.change(
        unit.connection,
        session,
        IS_OPEN,
        FITS,
        given={"amount": amount},
        add={"running_total": amount},
        closes_us=closes,
    )
    if drawn is None:
        return None
    # Others may have drawn since the session was read.
    before = drawn.running_total - amount
    audit.record(
        unit.connection,
        principal,
        action=action,
        subject=drawn.session_id,
        now_us=now_us,
        before={"running_total_usdc": audit.usdc(before)},
        after={
            **shown,
            "amount_usdc": audit.usdc(amount),
            "running_total_usdc": audit.usdc(drawn.running_total),
            "idempotency_key": key,
        },
    )
    outcome = outcomes.charged(drawn, before_micro=before)
    apply(unit, outcome)
    is_earlier = closes is not None and (session.closes_us is None or closes < session.closes_us)
    return drawn, bool(outcome.events) or is_earlier


def charge(
    connection: Connection, context: Context, principal: Principal, session_id: str, request: ChargeSession
) -> tuple[SessionRecord, bool] | None:
    """Charge a session: the unit of work.

    Returns:
        See `draw`. None means that the charge must be judged again.

    Raises:
        Problem: `not_found`, `idempotency_conflict`, a refusal, or `service_unavailable` while the clocks
            differ; nothing is stored.
        ConflictError: another request has charged under the key meanwhile.
    """
    amount, key = to_micro(request.amount), request.idempotency_key
    found, policy, charged = store.chargeable(connection, session_id, key)
    session = visible(found, principal, session_id)
    if session.channel is not None:
        raise Problem(
            ErrorCode.SESSION_CLOSED,
            "This session pays over HTTP 402: its seller gets vouchers, and it accepts no charges. "
            "Pay its seller's next 402 instead.",
            says_what_to_do=True,
        )
    judged = charge_verdict(charged, amount)
    if judged is Verdict.CONFLICT:
        raise Problem(
            ErrorCode.IDEMPOTENCY_CONFLICT,
            "This idempotency_key was used to charge another amount.",
        )
    if judged is Verdict.REPLAY:
        return session, False
    refusal = charge_refusal(
        stored_policy(policy),
        status=session.status,
        cap_micro=session.cap,
        running_total_micro=session.running_total,
        amount_micro=amount,
    ) or key_refusal(amount, opened_by=session.key_id, key=spending.key_of(principal))
    if refusal is not None:
        raise refused(refusal, session)
    now_us = context.clock.now_us()
    context.clock_check.require(now_us)
    unit = Unit(connection, context, now_us)
    drawn = draw(unit, session, amount, principal=principal, action=CHARGE_SESSION.name, key=key)
    if drawn is not None:
        stored = ChargeRecord(session_id=session_id, idempotency_key=key, amount=amount, created_us=now_us)
        store.CHARGES.insert(connection, stored)
    return drawn


class Sessions:
    """Opens, charges, closes and reads sessions."""

    def __init__(
        self,
        context: Context,
        settlement: Settlement,
        closing: Closing,
        authorizer: Authorizer,
        channels: Channels,
    ) -> None:
        self._context = context
        self._database = context.database
        self._settlement = settlement
        self._closing = closing
        self._authorizer = authorizer
        self._channels = channels

    async def open(self, principal: Principal, request: OpenSession) -> Session:
        """Put a session's cap into escrow, or refuse with a reason.

        Returns:
            The open session; for a key that was used before, the current state of its session.

        Raises:
            Problem: `not_found` of the account, `idempotency_conflict`, `invalid_request` for a cap below the
                minimum, a 402, `too_many_sessions`, `invalid_recipient`, `chain_unavailable`. Without a
                session nothing was done; `chain_unavailable` with one: its outcome is unknown.
        """
        principal.require_account(request.account_id, OPEN_SESSION.operation)
        # A caller that disconnects cancels nothing.
        return await self._context.tasks.complete(self._open(principal, request))

    async def charge(self, principal: Principal, session_id: str, request: ChargeSession) -> Session:
        """Add a micropayment to a session's running total, or refuse with a reason.

        Raises:
            Problem: `not_found`, `idempotency_conflict`, a 402 with the session, `session_closed`,
                `chain_unavailable` while the session is opening; nothing was charged.
        """
        charged = self._charge(principal, session_id, request)
        if self._database.is_inline:
            return await charged
        # The schedulers are notified even if the caller disconnects during the commit.
        return await self._context.tasks.complete(charged)

    async def _charge(self, principal: Principal, session_id: str, request: ChargeSession) -> Session:
        unit = OfAccounts(charge, frozenset(), frozenset((session_id,)), store.LOCK)
        while True:
            failpoint(Operation.SESSION_CHARGE, Step.BEGUN)
            try:
                charged = await self._database.run(unit, self._context, principal, session_id, request)
            except ConstraintError:
                # Another request took the key first. Any other violated constraint is a bug.
                key = session_id, request.idempotency_key
                if await self._database.read(store.CHARGES.get, key) is not None:
                    continue
                raise
            if charged is None:
                continue
            failpoint(Operation.SESSION_CHARGE, Step.POSTED)
            session, must_wake = charged
            if must_wake:
                self._context.wakeup.set()
            return to_response(session)

    async def close(self, principal: Principal, session_id: str) -> Session:
        """Pay the charges, return the rest, and close the escrow. Closing again returns the same.

        Raises:
            Problem: `not_found`; `session_closed` if its opening failed; `transfer_failed` while a token
                account cannot be paid; `chain_unavailable` while it is not settled.
        """
        return await self._context.tasks.complete(self._close(principal, session_id))

    async def get(self, principal: Principal, session_id: str) -> Session:
        """Return one session.

        Raises:
            Problem: `not_found`.
        """
        return to_response(await self._database.read(own_session, principal, session_id))

    async def list(self, principal: Principal, query: ListSessions) -> PageBody[Session]:
        """Return a page of sessions, newest first; for an agent-scoped key, only those of its account.

        Raises:
            Problem: `forbidden` for another account, `invalid_request` for a cursor of another list.
        """
        if query.account_id is not None:
            principal.require_account(query.account_id, LIST_SESSIONS.operation)
        listing = List("sessions", principal.account_id or principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._database.read(
            store.PAGES,
            principal.operator_id,
            before,
            query.limit + 1,
            account_id=principal.account_id or query.account_id,
            status=query.status,
            idempotency_key=query.idempotency_key,
            **pages.period(query.since, query.until),
        )
        return listing.page(rows, query.limit, seq=lambda row: row.seq, item=to_response)

    async def _open(self, principal: Principal, request: OpenSession) -> Session:
        deadline, read = self._authorizer.deadline(), self._database.read
        key = RequestedKey.of(principal, request.account_id, request.idempotency_key)
        while True:
            now_us = self._context.clock.now_us()
            found, held = await read(find_with_parties, key, request.to, now_us)
            parties = own_parties(principal, request.account_id, request.to, found)
            session, session_id = None, held.subject_of(PurchaseKind.SESSION)
            if session_id is not None:
                session = await read(store.SESSIONS.existing, session_id)
            holder = None if session is None else key_holder_of(session)
            judged = judge(held, PurchaseKind.SESSION, holder, terms_of(request))
            if session is not None and judged is Verdict.RESUME:
                opened = await self._settlement.finish(Operation.SESSION_OPEN, session.session_id, deadline)
                session = opened or await self._current(session)
            elif session is None or judged is not Verdict.REPLAY:
                decided = await self._decided(principal, request, parties, held, deadline)
                if decided is None:
                    continue
                session = await self._driven(decided, deadline)
            if session.status == SessionStatus.OPENING:
                raise unresolved(session)
            if session.status == SessionStatus.FAILED:
                raise stopped(session)
            return to_response(session)

    async def _driven(self, decided: Decided[SessionRecord], deadline: float) -> SessionRecord:
        """Drive the opening of a session; return it at its end, or as it is at the deadline."""
        if decided.tx is None:
            return decided.record
        opened = await self._settlement.settle(decided.tx, decided.record, is_new=True, deadline=deadline)
        return opened or await self._current(decided.record)

    async def _current(self, session: SessionRecord) -> SessionRecord:
        return await self._database.read(store.SESSIONS.existing, session.session_id)

    async def _decided(
        self,
        principal: Principal,
        request: OpenSession,
        parties: Parties,
        held: Held,
        deadline: float,
    ) -> Decided[SessionRecord] | None:
        """Decide about a new session; None if the request must start over.

        The minimum cap is a setting that may have changed, so it is not checked when the key's session
        exists.
        """
        smallest = self._context.settings.min_session_cap_usdc
        if request.cap_usdc < smallest:
            raise invalid(FieldError(field="cap_usdc", message=f"must be at least {format_number(smallest)}"))
        rent = 0
        if not parties.source.paused:
            # An escrow will be closed: a payment to it could be stuck.
            if await self._database.read(store.is_escrow, request.to):
                raise invalid_recipient(request.to, "is the escrow of a session")
            try:
                rent = await self._context.chain.rent_exemption(ESCROW_BYTES)
            except ChainUnreachableError:
                raise chain_unavailable() from None
        key = RequestedKey.of(principal, request.account_id, request.idempotency_key)
        order = Order(
            operation=Operation.SESSION_OPEN,
            parties=parties,
            decide=partial(
                new_session,
                principal=principal,
                request=request,
                key=key,
                held=held,
                rent_exempt_lamports=rent,
            ),
            by_operator=not principal.is_agent,
            key=key,
            held=held,
        )
        return await self._authorizer.authorize(order, deadline)

    async def _close(self, principal: Principal, session_id: str) -> Session:
        session = await self._database.read(own_session, principal, session_id)
        refusal = closing_refusal(session.status)
        if refusal is not None:
            raise refused(refusal, session)
        if session.channel is not None:
            return await self._channels.close(principal, session)
        if session.status != SessionStatus.SETTLED:
            session = await self._closing.closed(session, self._authorizer.deadline(), principal=principal)
        if session.status == SessionStatus.SETTLED:
            return to_response(session)
        raise unresolved(session) if session.error is None else stopped(session)
