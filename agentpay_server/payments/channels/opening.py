"""Opening a channel for a session over HTTP 402: its authorization, and the handler of its transaction.

It is authorized like any session, with the whole cap. In addition, the pin of the seller's origin applies,
and the seller broadcasts the transaction: until that can no longer land, its amount stays reserved. The same
terms get the same opening as long as it may land, and one new one after that.
"""

from typing import Any, Final, NoReturn

from attrs import evolve, frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.fields import format_timestamp
from agentpay.contract.payments import AUTHORIZE_PAYMENT
from agentpay.contract.policies import Policy
from agentpay.contract.sessions import SessionStatus
from agentpay.contract.transfers import TransferStatus
from agentpay_server.chain.protocol import Chain, SignatureStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Condition
from agentpay_server.database.tables import PurchaseKind, SessionRecord, TransferRecord
from agentpay_server.engine.authorization import Decided, Intent, SpendUnit
from agentpay_server.engine.fees import Cost
from agentpay_server.engine.handlers import Ending, Handler, Resigning
from agentpay_server.engine.policy import Refusal, Spend
from agentpay_server.engine.preflight import Preflight
from agentpay_server.ledger import audit, idempotency, keys
from agentpay_server.ledger.apply import Outcome, Posting, Unit
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import Held, RequestedKey
from agentpay_server.ledger.keys import LimitedKey
from agentpay_server.ledger.transactions import Kind, StoredTransaction
from agentpay_server.payments.authorizing import pin_is_as_seen, purchase_objection
from agentpay_server.payments.challenges.terms import ChannelTerms, Offer
from agentpay_server.payments.channels import store as channel_store
from agentpay_server.payments.channels.on_chain import MAX_OPENINGS, OPENINGS_WITHIN_US
from agentpay_server.payments.channels.owners import Owned, owned
from agentpay_server.payments.channels.signing import (
    ChannelDeposit,
    OpeningBlockhash,
    closing_fee,
    sign_channel,
)
from agentpay_server.payments.channels.store import CHANNELS, IS_FAILED, IS_OPENING
from agentpay_server.payments.judging import spend_on
from agentpay_server.payments.pins import category_of
from agentpay_server.payments.settling import EXPIRED, cosigned_status, failure_of
from agentpay_server.payments.store import Pin
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import outcomes
from agentpay_server.sessions import store as session_store
from agentpay_server.sessions.opening import SessionOpenHandler, failed, session_row
from agentpay_server.sessions.outcomes import refused
from agentpay_server.sessions.rules import OpeningTerms, escalation_refusal, session_limit_refusal
from agentpay_server.transfers import outcomes as transfer_outcomes
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


class OpenChannel(Intent[SessionRecord]):
    """A requested session over HTTP 402; see `NewSession`."""

    operation = Operation.CHANNEL_OPEN

    def __init__(
        self,
        context: Context,
        principal: Principal,
        opening: Opening,
        requested: RequestedKey,
        held: Held,
    ) -> None:
        self._context = context
        self._principal = principal
        self._opening = opening
        self._requested_key = requested
        self._held = held
        # Opening a session with an operator key approves its cap.
        self.is_approved: bool = not principal.is_agent

    @property
    def account_id(self) -> str:
        """The paying account."""
        return self._opening.account_id

    def limited_key(self, connection: Connection) -> LimitedKey | None:  # noqa: ARG002
        """Return the key of the request, if its total is limited."""
        return keys.of_principal(self._principal)

    @property
    def to(self) -> str:
        """The payee's token account."""
        return self._opening.token_account

    def spend(self, preflight: Preflight) -> Spend:
        """Return the spend that the policy judges: the whole cap, and the first voucher within it."""
        opening = self._opening
        recipients = (preflight.recipient, *preflight.others)
        return spend_on(opening.offer, recipients, pin=opening.pin, cap_micro=opening.cap_micro)

    def cost(self, preflight: Preflight) -> Cost:
        """Return the fees of a forced close: the seller pays for the opening, and lends the rent."""
        return Cost(fees=closing_fee(preflight.blockhash))

    def claim(self, connection: Connection, now_us: int) -> bool:
        """Check that pin, channels and the key's claims are as they were."""
        opening, key = self._opening, self._requested_key
        return (
            pin_is_as_seen(connection, self._principal.operator_id, opening.origin, opening.pin)
            and channel_store.live(connection, opening.account_id, opening.digest) is None
            and idempotency.is_as_seen(connection, key, self._held, now_us)
        )

    def objection(self, unit: SpendUnit) -> Refusal | None:
        """Return a refusal by the pin of the seller's origin."""
        offer = self._opening.offer
        return purchase_objection(self._opening.pin, offer.terms, offer.owners, unit.preflight)

    def is_key_taken(self, connection: Connection) -> bool:
        """Return whether another request holds the idempotency key."""
        now_us = self._context.clock.now_us()
        return idempotency.find(connection, self._requested_key, now_us).is_held

    def refused(self, unit: Unit, refusal: Refusal) -> NoReturn:  # noqa: ARG002
        """Raise the refusal: nothing is stored."""
        raise refused(refusal, None)

    def escalated(self, unit: SpendUnit, policy: Policy) -> NoReturn:  # noqa: ARG002
        """Refuse the session: it cannot wait for an operator."""
        raise refused(escalation_refusal(policy, self._opening.cap_micro), None)

    def submitted(self, unit: SpendUnit) -> Decided[SessionRecord]:
        """Sign the opening, store the session with its channel, and reserve its cap.

        Raises:
            Problem: `too_many_sessions`, `nothing_payable`.
        """
        self._check_limits(unit)
        opening, principal = self._opening, self._principal
        assert opening.landing is not None  # noqa: S101 - the account is not paused
        deposit = ChannelDeposit(
            owner_id=self._context.identifiers.new(identifiers.SESSION),
            is_payment=False,
            origin=opening.origin,
            deposit_micro=opening.cap_micro,
            offer=opening.offer,
            position=opening.position,
            landing=opening.landing,
            terms_digest=opening.digest,
            expires_us=opening.offer.expires_us,
        )
        channel, tx = sign_channel(unit, deposit)
        session = session_row(
            principal,
            OpeningTerms(
                account_id=opening.account_id,
                to=opening.token_account,
                cap_micro=opening.cap_micro,
                category=category_of(opening.offer, opening.pin),
            ),
            unit.preflight.recipient,
            session_id=channel.owner_id,
            idempotency_key=self._requested_key.idempotency_key,
            escrow_token_account=channel.escrow_token_account,
            by_operator=unit.by_operator,
            now_us=unit.now_us,
            channel=channel,
            url=opening.url,
        )
        session_store.SESSIONS.insert(unit.connection, session)
        held = unit.hold_cap(tx, opening.cap_micro)
        idempotency.put(
            unit.connection, self._requested_key, self._held, PurchaseKind.CHANNEL, session.session_id
        )
        audit.record(
            unit.connection,
            principal,
            action=AUTHORIZE_PAYMENT.name,
            subject=session.session_id,
            now_us=unit.now_us,
            after=outcomes.audited(session) | {"origin": session.origin, "channel": session.channel},
        )
        return Decided(record=session, tx=held)

    def _check_limits(self, unit: SpendUnit) -> None:
        settings = self._context.settings
        unsettled = session_store.unsettled(unit.connection, unit.source.account_id)
        too_many = session_limit_refusal(unsettled, settings.max_open_sessions)
        if too_many is not None:
            raise refused(too_many, None)
        opened_us = channel_store.newest_openings(
            unit.connection,
            self._principal.operator_id,
            self._principal.key_id,
            self._opening.origin,
            after_us=unit.now_us - OPENINGS_WITHIN_US,
            count=MAX_OPENINGS,
        )
        if len(opened_us) == MAX_OPENINGS:
            again = format_timestamp(from_us(opened_us[-1] + OPENINGS_WITHIN_US))
            raise Problem(
                ErrorCode.TOO_MANY_SESSIONS,
                f"This API key has opened {MAX_OPENINGS} sessions with {self._opening.origin} in an hour, "
                "and may open no more. Leave out session_cap if the seller takes single payments too, or "
                f"repeat the call with the same idempotency key at {again}.",
                says_what_to_do=True,
            )


class ChannelOpenHandler(Handler[Any]):
    """Says what the outcomes of openings change, which the service signs and the seller broadcasts."""

    kind = Kind.CHANNEL_OPEN
    is_broadcast_by_us = False
    # The seller holds the bytes: an undone transaction could land again, and the service may not resend it.
    must_be_irreversible = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._of_sessions = SessionOpenHandler(context)

    async def find(
        self, chain: Chain, tx: StoredTransaction, *, proof_height: int | None
    ) -> SignatureStatus | None:
        """Look the transaction up by its signature if that is known, else by its signed message."""
        return await cosigned_status(chain, tx, proof_height=proof_height)

    def load(self, connection: Connection, subject_id: str, *, lock: bool = False) -> Owned:
        """Return the channel with its owner."""
        return owned(connection, subject_id, lock=lock)

    def newest_signature(self, subject: Owned) -> str | None:
        """Return the signature of its opening."""
        return subject.owner.tx_signature

    def settled(self, ending: Ending[Owned]) -> Outcome[Any]:
        """Return the outcome of an opening that has landed."""
        return self._opened(ending, IS_OPENING)

    def failed(self, ending: Ending[Owned]) -> Outcome[Any]:
        """Return the outcome of an opening that the chain refused."""
        is_payment = ending.subject.channel.is_payment
        return _failed(ending, failure_of(ending) if is_payment else _FAILED)

    def sign_replacement(self, resigning: Resigning[Owned]) -> Refusal:
        """Never called: the seller holds the signed bytes, so an opening has no replacement."""
        raise NotImplementedError

    def dropped(self, ending: Ending[Owned]) -> Outcome[Any]:
        """Return the outcome of an opening that has expired."""
        return _failed(ending, EXPIRED if ending.subject.channel.is_payment else _EXPIRED)

    def landed_late(self, ending: Ending[Owned]) -> Outcome[Any]:
        """Return the outcome of an opening that landed after it was considered expired."""
        status = ending.subject.channel.status
        if status == SessionStatus.OPENING:
            return self.settled(ending)
        if status == SessionStatus.FAILED:
            return self._opened(ending, IS_FAILED, is_held=False)
        lost = (ending.subject.escrow.lost(ending.tx),) if status == SessionStatus.SETTLED else ()
        return ending.subject.outcome(*lost)

    def _opened(self, ending: Ending[Any], condition: Condition, *, is_held: bool = True) -> Outcome[Any]:
        """Return the outcome of an open channel; without `is_held` it had seemed to have failed."""
        found: Owned = ending.subject
        owner = found.owner
        outcome: Outcome[Any]
        if isinstance(owner, SessionRecord):
            opened = self._of_sessions.settled if is_held else self._of_sessions.landed_late
            outcome, due_us = opened(evolve(ending, subject=owner)), None
        else:
            # No event is about it. It is due at once: its seller may have settled it already.
            outcome, due_us = found.outcome(found.escrow.funded(is_held=is_held)), ending.now_us
        change = CHANNELS.to_change(found.channel, condition, status=SessionStatus.OPEN.value, due_us=due_us)
        return evolve(outcome, changes=(change,))

    def report(self, ending: Ending[Any]) -> None:
        """Log the session, or the payment that has failed."""
        subject = ending.subject
        if isinstance(subject, SessionRecord):
            self._of_sessions.report(ending)
        elif isinstance(subject, TransferRecord) and subject.status == TransferStatus.FAILED:
            report_transfer(self._context, subject)


def _failed(ending: Ending[Any], refusal: Refusal) -> Outcome[Any]:
    """Return the outcome of an opening that moved nothing and never will."""
    found: Owned = ending.subject
    channel, owner = found.channel, found.owner
    outcome: Outcome[Any]
    if isinstance(owner, SessionRecord):
        outcome = failed(evolve(ending, subject=owner), refusal)
    else:
        reserved = Posting(account_id=channel.account_id, cap_release=channel.deposit)
        outcome = transfer_outcomes.failed(evolve(ending, subject=owner), refusal).also(reserved)
    change = CHANNELS.to_change(channel, IS_OPENING, status=SessionStatus.FAILED.value)
    return evolve(outcome, changes=(change,))
