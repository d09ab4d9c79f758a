"""Charging a session: one unit of work, in which one SQL statement enforces the cap.

A repeated key is handled before any other check, so that the replay of an accepted charge is never refused. A
refusal stores nothing.
"""

from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay.contract.sessions import CHARGE_SESSION, ChargeSession
from agentpay.contract.usdc import to_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import ChargeRecord, SessionRecord
from agentpay_server.engine.policy import Refusal, stored_policy
from agentpay_server.ledger import audit, keys
from agentpay_server.ledger.apply import Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import Verdict
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import outcomes, store
from agentpay_server.sessions.access import visible
from agentpay_server.sessions.responses import refused
from agentpay_server.sessions.rules import (
    SessionLimits,
    charge_refusal,
    charge_verdict,
    closes_us,
    key_refusal,
)
from agentpay_server.sessions.store import FITS, IS_OPEN, Chargeable


@frozen
class Charged:
    """The result of a charge.

    Attributes:
        session: the session after the charge.
        must_wake: whether to wake the schedulers: to send an event, or to close the session in time.
    """

    session: SessionRecord
    must_wake: bool = False


class Charge:
    """The unit of work that adds to a session's running total."""

    def __init__(
        self,
        context: Context,
        principal: Principal,
        session_id: str,
        request: ChargeSession,
        limits: SessionLimits,
    ) -> None:
        self._context = context
        self._principal = principal
        self._session_id = session_id
        self._request = request
        self._limits = limits
        self._amount = to_micro(request.amount)

    def __call__(self, connection: Connection) -> Charged | None:
        """Charge the session.

        Returns:
            None if another unit of work has changed the session meanwhile: the charge must be judged again.

        Raises:
            Problem: `not_found`, `idempotency_conflict`, a refusal, or `service_unavailable` while the clocks
                differ; nothing is stored.
            ConflictError: another request has charged under the key meanwhile.
        """
        found = store.chargeable(connection, self._session_id, self._request.idempotency_key)
        session = visible(None if found is None else found.session, self._principal, self._session_id)
        assert found is not None  # noqa: S101 - a session that is visible was found
        if session.channel is not None:
            raise Problem(
                ErrorCode.SESSION_CLOSED,
                "This session pays over HTTP 402: its seller gets vouchers, and it accepts no charges. "
                "Pay its seller's next 402 instead.",
                says_what_to_do=True,
            )
        judged = charge_verdict(found.charged, self._amount)
        if judged is Verdict.CONFLICT:
            raise Problem(
                ErrorCode.IDEMPOTENCY_CONFLICT,
                "This idempotency_key was used to charge another amount.",
            )
        if judged is Verdict.REPLAY:
            return Charged(session)
        refusal = self._refusal(found)
        if refusal is not None:
            raise refused(refusal, session)
        return self._charged(connection, session)

    def is_made(self, connection: Connection) -> bool:
        """Return whether a charge of the session has the key."""
        found = store.chargeable(connection, self._session_id, self._request.idempotency_key)
        return found is not None and found.charged is not None

    def _charged(self, connection: Connection, session: SessionRecord) -> Charged | None:
        now_us = self._context.clock.now_us()
        self._context.clock_check.require(now_us)
        assert session.opened_us is not None  # noqa: S101 - an open session was opened
        closes = closes_us(self._limits, opened_us=session.opened_us, charged_us=now_us)
        # Status and cap are checked in one statement, so that concurrent charges cannot exceed the cap.
        charged = store.SESSIONS.change(
            connection,
            session,
            IS_OPEN,
            FITS,
            given={"amount": self._amount},
            add={"running_total": self._amount},
            closes_us=closes,
        )
        if charged is None:
            return None
        total, key = charged.running_total, self._request.idempotency_key
        store.CHARGES.insert(
            connection,
            ChargeRecord(
                session_id=self._session_id, idempotency_key=key, amount=self._amount, created_us=now_us
            ),
        )
        # Other charges may have been accepted since the session was read.
        before = total - self._amount
        audit.record(
            connection,
            self._principal,
            action=CHARGE_SESSION.name,
            subject=self._session_id,
            now_us=now_us,
            before={"running_total_usdc": audit.usdc(before)},
            after={
                "amount_usdc": audit.usdc(self._amount),
                "running_total_usdc": audit.usdc(total),
                "idempotency_key": key,
            },
        )
        outcome = outcomes.charged(charged, before_micro=before)
        apply(Unit(connection, self._context, now_us), outcome)
        return Charged(charged, must_wake=bool(outcome.events) or closes is not None)

    def _refusal(self, found: Chargeable) -> Refusal | None:
        session = found.session
        key = keys.of_principal(self._principal)
        return charge_refusal(
            stored_policy(found.policy),
            status=session.status,
            cap_micro=session.cap,
            running_total_micro=session.running_total,
            amount_micro=self._amount,
        ) or key_refusal(opened_by=session.key_id, key=key)
