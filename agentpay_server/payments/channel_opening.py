"""Opening a channel for a session over HTTP 402: its authorization, and the handler of its transaction.

It is authorized like any session, with the whole cap. In addition, the pin of the seller's origin applies,
and the seller broadcasts the transaction: until that can no longer land, its amount stays reserved. The same
terms get the same opening as long as it may land, and one new one after that.
"""

import json
from typing import Final, NoReturn

import attrs
from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.payments import AUTHORIZE_PAYMENT
from agentpay.contract.policies import Policy
from agentpay.contract.sessions import SessionProtocol, SessionStatus
from agentpay_server.chain.channels.codecs import ChannelError
from agentpay_server.chain.custody import spending_key, voucher_key
from agentpay_server.chain.protocol import Chain, Cosigned, SignatureStatus, SignedTransaction
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import ChannelRecord, SessionRecord
from agentpay_server.engine.authorization import Decided, Intent, SpendUnit
from agentpay_server.engine.fees import Cost
from agentpay_server.engine.handlers import Ending, Resigning, pending_transaction
from agentpay_server.engine.policy import Purpose, Refusal, Spend
from agentpay_server.engine.preflight import Preflight
from agentpay_server.ledger import audit, key_totals
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency_keys import Held, RequestedKey
from agentpay_server.ledger.key_totals import LimitedKey
from agentpay_server.ledger.outcome import Outcome, Unit
from agentpay_server.ledger.transactions import ChainTransaction, Kind
from agentpay_server.payments import channel_store
from agentpay_server.payments.authorizing import pin_is_as_seen, purchase_objection
from agentpay_server.payments.channel_building import build_opening, closing_fee, opening_of
from agentpay_server.payments.channel_rules import MAX_OPENINGS, OPENINGS_WITHIN_US
from agentpay_server.payments.channel_store import Channel
from agentpay_server.payments.responses import nothing_payable
from agentpay_server.payments.settling import cosigned_status, detail_of
from agentpay_server.payments.store import Pin
from agentpay_server.payments.terms import ChannelTerms, Offer
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import outcomes
from agentpay_server.sessions import store as session_store
from agentpay_server.sessions.opening import SessionOpenHandler, failed
from agentpay_server.sessions.responses import refused
from agentpay_server.sessions.rules import check_transition, escalation_refusal, session_limit_refusal
from agentpay_server.transfers import store as transfer_store

_LATER_BLOCKS: Final = 32
"""How many blocks a seller's blockhash may be newer than the newest one that this service knows."""

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
        slot: the chain's slot, at which the offer's blockhash was valid.
    """

    account_id: str
    origin: str
    url: str | None
    cap_micro: int
    offer: Offer
    position: int
    pin: Pin | None
    token_account: str
    slot: int

    @property
    def channel(self) -> ChannelTerms:
        """What the offer asks of the channel."""
        assert self.offer.channel is not None  # noqa: S101 - a session's offer has it
        return self.offer.channel

    @property
    def digest(self) -> str:
        """Digest of the terms that all vouchers of the channel share."""
        return self.channel.digest(self.offer.terms, origin=self.origin)

    @property
    def category(self) -> str | None:
        """Category from the pin, else from the challenge; never from the caller."""
        return self.offer.category if self.pin is None or self.pin.category is None else self.pin.category


class OpenChannel(Intent[SessionRecord]):
    """A requested session over HTTP 402; see `NewSession`."""

    operation = Operation.CHANNEL_OPEN

    def __init__(
        self,
        context: Context,
        principal: Principal,
        opening: Opening,
        requested: RequestedKey,
        held: Held[SessionRecord],
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
        return key_totals.of_principal(self._principal)

    @property
    def to(self) -> str:
        """The payee's token account."""
        return self._opening.token_account

    def spend(self, preflight: Preflight) -> Spend:
        """Return the spend that the policy judges: the whole cap, to the payee and every share."""
        return Spend(
            amount_micro=self._opening.cap_micro,
            to=self._opening.token_account,
            recipient=preflight.recipient,
            memo=None,
            category=self._opening.category,
            purpose=Purpose.SESSION_OVER_402,
            others=preflight.others,
        )

    def cost(self, preflight: Preflight) -> Cost:
        """Return the fees of a forced close: the seller pays for the opening, and lends the rent."""
        return Cost(fees=closing_fee(preflight.blockhash))

    def claim(self, connection: Connection, now_us: int) -> bool:
        """Claim the idempotency key, if pin and channels are as they were read."""
        opening, key = self._opening, self._requested_key
        return (
            pin_is_as_seen(connection, self._principal.operator_id, opening.origin, opening.pin)
            and channel_store.live(connection, opening.account_id, opening.digest) is None
            and channel_store.voucher_of(connection, opening.account_id, key.idempotency_key) is None
            and not transfer_store.KEYS.find(connection, key, now_us).is_holder_in_force
            and session_store.KEYS.take(connection, key, self._held, now_us)
        )

    def objection(self, unit: SpendUnit) -> Refusal | None:
        """Return a refusal by the pin of the seller's origin."""
        owners = {self._opening.channel.payee, *(owner for owner, _ in self._opening.channel.shares)}
        return purchase_objection(self._opening.pin, self._opening.offer.terms, owners, unit.preflight)

    def is_key_taken(self, connection: Connection) -> bool:
        """Return whether another request holds the idempotency key."""
        now_us = self._context.clock.now_us()
        return session_store.KEYS.find(connection, self._requested_key, now_us).is_held

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
        connection, context = unit.connection, self._context
        self._check_limits(unit)
        channel = self._channel(unit)
        opening = opening_of(channel, payer=self._payer(unit), usdc_mint=context.chain.usdc_mint)
        blockhash = self._opening.channel.blockhash
        assert blockhash is not None  # noqa: S101 - checked before the preflight
        try:
            prepared = build_opening(
                context.signer,
                opening,
                account_index=unit.source.key_index,
                blockhash=blockhash,
                last_valid_height=self._last_valid_height(unit),
            )
        except ChannelError as error:
            raise nothing_payable({self._opening.position: str(error)}) from None
        session = attrs.evolve(
            channel.session, channel=str(opening.address), escrow_token_account=str(opening.escrow)
        )
        check_transition(None, SessionStatus.OPENING)
        session_store.SESSIONS.insert(connection, session)
        channel_store.CHANNELS.insert(connection, attrs.evolve(channel.record, raw=prepared.raw))
        found_by = Cosigned(
            token_account=unit.source.usdc_token_account,
            signature=prepared.signature,
            message_hash=prepared.message_hash,
            after=unit.preflight.newest_signature,
        )
        tx = pending_transaction(
            SignedTransaction(
                signature=prepared.signature,
                raw=prepared.raw,
                last_valid_block_height=prepared.last_valid_block_height,
            ),
            kind=Kind.CHANNEL_OPEN,
            subject_id=session.session_id,
            account_id=session.account_id,
            detail=detail_of(found_by),
            now_us=unit.now_us,
        )
        held = unit.hold_cap(
            attrs.evolve(tx, announced_us=unit.now_us, leased_until_us=0), self._opening.cap_micro
        )
        audit.record(
            connection,
            self._principal,
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
        after_us = unit.now_us - OPENINGS_WITHIN_US
        opened = channel_store.opened_since(
            unit.connection, self._principal.operator_id, self._opening.origin, after_us=after_us
        )
        if too_many is None and opened >= MAX_OPENINGS:
            too_many = Refusal(
                code=ErrorCode.TOO_MANY_SESSIONS,
                message=f"{opened} sessions with {self._opening.origin} were opened within an hour, and at "
                f"most {MAX_OPENINGS} may be: its seller may close them at once. Retry later.",
            )
        if too_many is not None:
            raise refused(too_many, None)

    def _last_valid_height(self, unit: SpendUnit) -> int:
        """Return the last height at which the opening can land, or a higher one, which only takes longer."""
        newest = unit.preflight.blockhash
        is_newest = newest.value == self._opening.channel.blockhash or not self._context.is_cluster
        return newest.last_valid_block_height + (0 if is_newest else _LATER_BLOCKS)

    def _payer(self, unit: SpendUnit) -> str:
        return self._context.signer.address(spending_key(unit.source.key_index))

    def _channel(self, unit: SpendUnit) -> Channel:
        """Return the rows to store; the addresses that follow from them are still missing."""
        context, opening, preflight = self._context, self._opening, unit.preflight
        terms = opening.channel
        session_id = context.identifiers.new(identifiers.SESSION)
        assert terms.rent_payer is not None  # noqa: S101 - only sponsored openings are payable
        assert terms.slot is not None  # noqa: S101 - checked before the preflight
        challenge = json.dumps(opening.offer.echo)
        record = ChannelRecord(
            session_id=session_id,
            operator_id=self._principal.operator_id,
            account_id=opening.account_id,
            terms_digest=opening.digest,
            origin=opening.origin,
            payee=terms.payee,
            rent_payer=terms.rent_payer,
            signer=terms.signer or context.signer.address(voucher_key(unit.source.key_index)),
            salt=int.from_bytes(context.randomness.randbytes(8), "big") >> 1,
            open_slot=min(terms.slot, opening.slot),
            grace_seconds=terms.grace_seconds,
            shares=json.dumps(terms.shares),
            challenge=challenge,
            challenge_expires_us=opening.offer.expires_us,
            newest_challenge=challenge,
            raw=b"",
            expires_us=unit.now_us + round(context.chain.usual_life_seconds * SECOND_US),
            created_us=unit.now_us,
        )
        session = SessionRecord(
            seq=0,
            session_id=session_id,
            operator_id=self._principal.operator_id,
            account_id=opening.account_id,
            key_id=self._principal.key_id,
            to=opening.token_account,
            # If this service holds the payee, the deposit watcher books the arrival.
            recipient_account_id=None,
            recipient_token_account=preflight.recipient.token_account,
            category=opening.category,
            cap=opening.cap_micro,
            running_total=0,
            idempotency_key=self._requested_key.idempotency_key,
            held_key=self._requested_key.idempotency_key,
            key_expires_us=None,
            status=SessionStatus.OPENING.value,
            error=None,
            message=None,
            escrow_token_account="",
            tx_signature=None,
            settlement_tx_signature=None,
            settlements=0,
            postponements=0,
            opened_us=None,
            settled_us=None,
            closes_us=None,
            created_us=unit.now_us,
            claimed_by_operator=self._held.claims,
            recipient_owner=terms.payee,
            closed_by=None,
            stuck_reason=None,
            payee_created_us=None,
            opening_fee=0,
            closing_fee=closing_fee(preflight.blockhash),
            protocol=SessionProtocol.MPP.value,
            origin=opening.origin,
            url=opening.url,
        )
        return Channel(session=session, record=record)


class ChannelOpenHandler(SessionOpenHandler):
    """Says what the outcomes of openings change, which the service signs and the seller broadcasts."""

    kind = Kind.CHANNEL_OPEN
    is_broadcast_by_us = False
    # The seller holds the bytes: an undone transaction could land again, and the service may not resend it.
    must_be_irreversible = True

    async def find(
        self, chain: Chain, tx: ChainTransaction, *, proof_height: int | None
    ) -> SignatureStatus | None:
        """Look the transaction up by its signature if that is known, else by its signed message."""
        return await cosigned_status(chain, tx, proof_height=proof_height)

    def failed(self, ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
        """Return the outcome of an opening that the chain refused."""
        return failed(ending, _FAILED)

    def sign_replacement(self, resigning: Resigning[SessionRecord]) -> Refusal:
        """Never called: the seller holds the signed bytes, so an opening has no replacement."""
        raise NotImplementedError

    def dropped(self, ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
        """Return the outcome of an opening that has expired."""
        return failed(ending, _EXPIRED)
