"""Opening a channel for a session over HTTP 402: the decision about it, and its transaction.

It is authorized like any session, with the whole cap. In addition, the pin of the seller's origin applies,
and the seller broadcasts the transaction: until that can no longer land, its amount stays reserved. The same
terms get the same opening as long as it may land, and one new one after that.
"""

from collections.abc import Callable
from typing import Any, Final

from attrs import evolve

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.payments import AUTHORIZE_PAYMENT, AuthorizePayment
from agentpay.contract.ext.sessions import SessionStatus
from agentpay.contract.fields import format_timestamp
from agentpay.contract.transfers import TransferStatus
from agentpay.contract.usdc import to_micro
from agentpay_server.database.rows import Condition
from agentpay_server.database.tables import PurchaseKind, SessionRecord, TransferRecord
from agentpay_server.engine.authorization import Decided, Gate
from agentpay_server.engine.funding import Cost
from agentpay_server.engine.movement import Ending, Movement
from agentpay_server.engine.policy import Refusal
from agentpay_server.ledger import idempotency, spending
from agentpay_server.ledger.apply import Outcome
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.channels import store as channel_store
from agentpay_server.plugins.channels.on_chain import MAX_OPENINGS, OPENINGS_WITHIN_US, Owned, owned
from agentpay_server.plugins.channels.signing import (
    closing_fee,
    sign_channel,
)
from agentpay_server.plugins.channels.store import CHANNELS, IS_FAILED, IS_OPENING
from agentpay_server.plugins.pay402.judging import (
    Purchase,
    category_of,
    pin_is_as_seen,
    purchase_objection,
    spend_on,
)
from agentpay_server.plugins.pay402.settling import EXPIRED, cosigned_status, failure_of
from agentpay_server.sessions.opening import SESSION_OPEN, admit, failed, opened, session_row
from agentpay_server.sessions.outcomes import refused
from agentpay_server.sessions.rules import OpeningTerms
from agentpay_server.transfers import outcomes as transfer_outcomes
from agentpay_server.transfers.outcomes import report as report_transfer

_EXPIRED: Final = Refusal(
    code=ErrorCode.PAYMENT_EXPIRED,
    message="The seller did not open the channel in time, and nothing was moved. Request the payment again.",
)
_FAILED: Final = Refusal(
    code=ErrorCode.PAYMENT_FAILED,
    message="The chain refused to open the channel, and nothing was moved. Request the payment again.",
)


def open_channel(
    gate: Gate, *, principal: Principal, request: AuthorizePayment, selected: Purchase
) -> Decided[SessionRecord] | None:
    """Decide about a requested session over HTTP 402, as `sessions/opening.py` decides about one.

    Returns:
        The decision; None if the seller's pin or its channels have changed meanwhile.

    Raises:
        ConstraintError: another request has taken the key.
        Problem: a refusal, `too_many_sessions`, `nothing_payable`, `invalid_recipient`.
    """
    connection, offer, pin = gate.connection, selected.offer, selected.pin
    key, held, digest = selected.key, selected.use.held, selected.channel_digest
    assert request.session_cap is not None  # noqa: S101 - without it no session is payable
    terms = OpeningTerms(
        account_id=request.account_id,
        to=next(iter(selected.token_accounts)),
        cap_micro=to_micro(request.session_cap),
        category=category_of(offer, pin),
    )
    if not (
        pin_is_as_seen(connection, principal.operator_id, request.origin, pin)
        and channel_store.live(connection, terms.account_id, digest) is None
    ):
        return None
    refusal = gate.paused(terms.cap_micro)
    if refusal is not None:
        raise refused(refusal, None)
    preflight = gate.preflight
    # The policy judges the whole cap, and the first voucher within it.
    spend = spend_on(offer, (preflight.recipient, *preflight.others), pin=pin, cap_micro=terms.cap_micro)
    objection = purchase_objection(pin, offer.terms, offer.owners, preflight)
    refusal = objection or gate.refusal(spend, spending.key_of(principal))
    # The fees of a forced close: the seller pays for the opening, and lends the rent.
    cost = Cost(fees=closing_fee(preflight.blockhash))
    admit(gate, principal, terms.cap_micro, refusal, cost)
    _check_rate(gate, principal, request.origin)
    assert selected.landing is not None  # noqa: S101 - the account is not paused
    channel, tx = sign_channel(
        gate,
        offer,
        selected.landing,
        owner_id=gate.context.identifiers.new(identifiers.SESSION),
        origin=request.origin,
        deposit_micro=terms.cap_micro,
        terms_digest=digest,
        position=selected.position,
        expires_us=offer.expires_us,
    )
    session = session_row(
        principal,
        terms,
        preflight.recipient,
        session_id=channel.owner_id,
        idempotency_key=key.idempotency_key,
        escrow_token_account=channel.escrow_token_account,
        by_operator=gate.by_operator,
        now_us=gate.now_us,
        channel=channel,
        url=request.url,
    )
    idempotency.put(connection, key, held, PurchaseKind.CHANNEL, session.session_id)
    shown = {"origin": session.origin, "channel": session.channel}
    return opened(gate, principal, session, tx, cost, action=AUTHORIZE_PAYMENT.name, **shown)


def _check_rate(gate: Gate, principal: Principal, origin: str) -> None:
    opened_us = channel_store.newest_openings(
        gate.connection,
        principal.operator_id,
        principal.key_id,
        origin,
        after_us=gate.now_us - OPENINGS_WITHIN_US,
        count=MAX_OPENINGS,
    )
    if len(opened_us) == MAX_OPENINGS:
        again = format_timestamp(from_us(opened_us[-1] + OPENINGS_WITHIN_US))
        raise Problem(
            ErrorCode.TOO_MANY_SESSIONS,
            f"This API key has opened {MAX_OPENINGS} sessions with {origin} in an hour, "
            "and may open no more. Leave out session_cap if the seller takes single payments too, or "
            f"repeat the call with the same idempotency key at {again}.",
            says_what_to_do=True,
        )


def _landed(ending: Ending[Owned]) -> Outcome[Any]:
    """Return the outcome of an opening that has landed."""
    return _opened(ending, IS_OPENING, SESSION_OPEN.landed)


def _failed(ending: Ending[Owned]) -> Outcome[Any]:
    """Return the outcome of an opening that the chain refused."""
    return _never_opened(ending, failure_of(ending) if ending.subject.channel.is_payment else _FAILED)


def _expired(ending: Ending[Owned]) -> Outcome[Any]:
    """Return the outcome of an opening that has expired."""
    return _never_opened(ending, EXPIRED if ending.subject.channel.is_payment else _EXPIRED)


def _late(ending: Ending[Owned]) -> Outcome[Any]:
    """Return the outcome of an opening that landed after it was considered expired."""
    found = ending.subject
    if found.channel.status == SessionStatus.OPENING:
        return _landed(ending)
    if found.channel.status == SessionStatus.FAILED:
        return _opened(ending, IS_FAILED, SESSION_OPEN.late, is_held=False)
    is_over = found.channel.status == SessionStatus.SETTLED
    return found.outcome(*([found.escrow.lost(ending.tx)] if is_over else []))


def _opened(
    ending: Ending[Any],
    condition: Condition,
    of_session: Callable[[Ending[SessionRecord]], Outcome[SessionRecord]],
    *,
    is_held: bool = True,
) -> Outcome[Any]:
    """Return the outcome of an open channel; without `is_held` it had seemed to have failed."""
    found: Owned = ending.subject
    outcome: Outcome[Any]
    if isinstance(found.owner, SessionRecord):
        outcome, due_us = of_session(evolve(ending, subject=found.owner)), None
    else:
        # No event is about it. It is due at once: its seller may have settled it already.
        outcome, due_us = found.outcome(found.escrow.funded(is_held=is_held)), ending.now_us
        if not is_held:
            outcome = outcome.also(changes=(found.escrow.reserved_again(),))
    change = CHANNELS.to_change(found.channel, condition, status=SessionStatus.OPEN.value, due_us=due_us)
    return outcome.also(changes=(change,))


def _never_opened(ending: Ending[Any], refusal: Refusal) -> Outcome[Any]:
    """Return the outcome of an opening that moved nothing and never will."""
    found: Owned = ending.subject
    outcome: Outcome[Any]
    if isinstance(found.owner, SessionRecord):
        outcome = failed(evolve(ending, subject=found.owner), refusal)
    else:
        outcome = transfer_outcomes.failed(evolve(ending, subject=found.owner), refusal)
    change = CHANNELS.to_change(found.channel, IS_OPENING, status=SessionStatus.FAILED.value)
    return outcome.also(changes=(change,))


def _report(ending: Ending[Any]) -> None:
    """Log the session, or the payment that has failed."""
    subject = ending.subject
    if isinstance(subject, SessionRecord):
        SESSION_OPEN.report(ending)
    elif isinstance(subject, TransferRecord) and subject.status == TransferStatus.FAILED:
        report_transfer(ending.context, subject)


CHANNEL_OPEN: Final[Movement[Any]] = Movement(
    kind=Operation.CHANNEL_OPEN,
    load=owned,
    landed=_landed,
    failed=_failed,
    expired=_expired,
    late=_late,
    find=cosigned_status,
    report=_report,
    # The seller holds the bytes: an undone transaction could land again, and the service may not resend it.
    resign=None,
    must_be_irreversible=True,
)
"""The opening of a channel, which the service signs and the seller broadcasts."""
