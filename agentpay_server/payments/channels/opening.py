"""Opening a channel for a session over HTTP 402: the decision about it, and its transaction.

It is authorized like any session, with the whole cap. In addition, the pin of the seller's origin applies,
and the seller broadcasts the transaction: until that can no longer land, its amount stays reserved. The same
terms get the same opening as long as it may land, and one new one after that.
"""

from typing import Final

from attrs import evolve, frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.fields import format_timestamp
from agentpay.contract.payments import AUTHORIZE_PAYMENT
from agentpay.contract.sessions import SessionProtocol, SessionStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import PurchaseKind, SessionRecord, TransferRecord
from agentpay_server.engine.authorization import Decided, Gate
from agentpay_server.engine.fees import Cost
from agentpay_server.engine.movement import Ending, Movement
from agentpay_server.engine.policy import Refusal
from agentpay_server.ledger import audit, idempotency, keys
from agentpay_server.ledger.apply import Outcome
from agentpay_server.ledger.idempotency import Held, RequestedKey
from agentpay_server.ledger.transactions import Kind
from agentpay_server.payments.authorizing import pin_is_as_seen, purchase_objection
from agentpay_server.payments.challenges.terms import ChannelTerms, Offer
from agentpay_server.payments.channels import store as channel_store
from agentpay_server.payments.channels import upto
from agentpay_server.payments.channels.building import closing_fee
from agentpay_server.payments.channels.rules import MAX_OPENINGS, OPENINGS_WITHIN_US
from agentpay_server.payments.channels.signing import ChannelDeposit, OpeningBlockhash, sign_channel
from agentpay_server.payments.channels.upto import PaymentChannel
from agentpay_server.payments.judging import spend_on
from agentpay_server.payments.pins import category_of
from agentpay_server.payments.settling import EXPIRED, cosigned_status, failure_of
from agentpay_server.payments.store import Pin
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import outcomes
from agentpay_server.sessions import store as session_store
from agentpay_server.sessions.opening import SESSION_OPEN, failed
from agentpay_server.sessions.responses import refused
from agentpay_server.sessions.rules import escalation_refusal, session_limit_refusal
from agentpay_server.transfers.responses import report as report_transfer

_EXPIRED: Final = Refusal(
    code=ErrorCode.PAYMENT_EXPIRED,
    message="The seller did not open the channel in time, and nothing was moved. Request the payment again.",
)
_FAILED: Final = Refusal(
    code=ErrorCode.PAYMENT_FAILED,
    message="The chain refused to open the channel, and nothing was moved. Request the payment again.",
)


@frozen(kw_only=True)
class Opening:
    """What a new channel is opened for.

    Attributes:
        position: the position of the offer in its 402.
        token_account: of the payee.
        landing: where the opening can land; None for a paused account.
        digest: of the terms that all vouchers of the channel share.
    """

    account_id: str
    origin: str
    url: str | None
    cap_micro: int
    offer: Offer
    position: int
    pin: Pin | None
    token_account: str
    landing: OpeningBlockhash | None
    digest: str

    @property
    def channel(self) -> ChannelTerms:
        """What the offer asks of the channel."""
        assert self.offer.channel is not None  # noqa: S101 - a session's offer has it
        return self.offer.channel


def open_channel(
    gate: Gate, *, principal: Principal, opening: Opening, key: RequestedKey, held: Held
) -> Decided[SessionRecord] | None:
    """Decide about a requested session over HTTP 402, as `sessions/opening.py` decides about one.

    Args:
        gate: the gate.
        principal: who opens it.
        opening: the channel.
        key: the idempotency key of the request.
        held: the key's claims when the request was judged.

    Returns:
        The decision; None if the seller's pin, its channels or the key's claims have changed meanwhile.

    Raises:
        ConstraintError: another request has taken the key.
        Problem: a refusal, `too_many_sessions`, `nothing_payable`, `invalid_recipient`.
    """
    connection, offer = gate.connection, opening.offer
    if not (
        pin_is_as_seen(connection, principal.operator_id, opening.origin, opening.pin)
        and channel_store.live(connection, opening.account_id, opening.digest) is None
        and idempotency.is_as_seen(connection, key, held, gate.now_us)
    ):
        return None
    refusal = gate.paused()
    if refusal is not None:
        raise refused(refusal, None)
    preflight = gate.preflight
    # The policy judges the whole cap, and the first voucher within it.
    spend = spend_on(
        offer, (preflight.recipient, *preflight.others), pin=opening.pin, cap_micro=opening.cap_micro
    )
    refusal = purchase_objection(opening.pin, offer.terms, offer.owners, preflight) or gate.refusal(
        spend, keys.of_principal(principal)
    )
    if refusal is None and principal.is_agent and gate.needs_approval(opening.cap_micro):
        # It cannot wait for an operator.
        refusal = escalation_refusal(gate.policy, opening.cap_micro)
    if refusal is not None:
        raise refused(refusal, None)
    # The fees of a forced close: the seller pays for the opening, and lends the rent.
    gate.pay(Cost(fees=closing_fee(preflight.blockhash)))
    _check_limits(gate, principal, opening.origin)
    assert opening.landing is not None  # noqa: S101 - the account is not paused
    deposit = ChannelDeposit(
        subject_id=gate.context.identifiers.new(identifiers.SESSION),
        operator_id=principal.operator_id,
        account_id=opening.account_id,
        key_id=principal.key_id,
        protocol=SessionProtocol.MPP.value,
        origin=opening.origin,
        url=opening.url,
        category=category_of(offer, opening.pin),
        deposit_micro=opening.cap_micro,
        offer=offer,
        position=opening.position,
        token_account=opening.token_account,
        landing=opening.landing,
        terms_digest=opening.digest,
        idempotency_key=key.idempotency_key,
        expires_us=offer.expires_us,
    )
    channel, tx = sign_channel(gate, deposit)
    session, tx = channel.session, gate.hold_cap(tx, opening.cap_micro)
    idempotency.put(connection, key, held, PurchaseKind.CHANNEL, session.session_id)
    audit.record(
        connection,
        principal,
        action=AUTHORIZE_PAYMENT.name,
        subject=session.session_id,
        now_us=gate.now_us,
        after=outcomes.audited(session) | {"origin": session.origin, "channel": session.channel},
    )
    return Decided(record=session, tx=tx)


def _check_limits(gate: Gate, principal: Principal, origin: str) -> None:
    settings = gate.context.settings
    unsettled = session_store.unsettled(gate.connection, gate.source.account_id)
    too_many = session_limit_refusal(unsettled, settings.max_open_sessions)
    if too_many is not None:
        raise refused(too_many, None)
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


def _load(connection: Connection, subject_id: str, /, *, lock: bool = False) -> SessionRecord:
    """Return the session; that of a payment up to a maximum has the payment."""
    session = SESSION_OPEN.load(connection, subject_id, lock=lock)
    return upto.with_payment(connection, session, lock=lock) if upto.is_upto(session) else session


def _landed(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    outcome = SESSION_OPEN.landed(ending)
    return upto.opened(outcome, ending.now_us) if upto.is_upto(ending.subject) else outcome


def _failed(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    if isinstance(ending.subject, PaymentChannel):
        return _payment_failed(ending, ending.subject, failure_of(ending))
    return failed(ending, _FAILED)


def _expired(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    if isinstance(ending.subject, PaymentChannel):
        return _payment_failed(ending, ending.subject, EXPIRED)
    return failed(ending, _EXPIRED)


def _late(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    is_in_progress = ending.subject.status == SessionStatus.OPENING
    outcome = _landed(ending) if is_in_progress else SESSION_OPEN.late(ending)
    return evolve(outcome, events=()) if upto.is_upto(ending.subject) else outcome


def _report(ending: Ending[SessionRecord]) -> None:
    """Log the session, or the payment that has failed."""
    subject: SessionRecord | TransferRecord = ending.subject
    if isinstance(subject, TransferRecord):
        report_transfer(ending.context, subject)
    elif not upto.is_upto(subject):
        SESSION_OPEN.report(ending)


def _payment_failed(
    ending: Ending[SessionRecord], subject: PaymentChannel, refusal: Refusal
) -> Outcome[SessionRecord]:
    return upto.opening_failed(failed(ending, refusal), ending, subject.transfer, refusal)


CHANNEL_OPEN: Final[Movement[SessionRecord]] = evolve(
    SESSION_OPEN,
    kind=Kind.CHANNEL_OPEN,
    load=_load,
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
