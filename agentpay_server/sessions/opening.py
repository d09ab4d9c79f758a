"""Opening a session: its part of the authorization, and the handler of its transaction.

`engine/authorization.py` checks the policy, reserves the whole cap in the balance and in the daily limit, and
stores the signed bytes in one commit. A refusal stores nothing. Nothing here sends or waits.
"""

from typing import Final, NoReturn

import attrs

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.policies import Policy
from agentpay.contract.sessions import OPEN_SESSION, OpenSession, SessionProtocol, SessionStatus
from agentpay.contract.usdc import to_micro
from agentpay_server.chain import escrow
from agentpay_server.chain.protocol import Blockhash, FailureReason, SignedTransaction
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, ChannelRecord, PurchaseKind, SessionRecord
from agentpay_server.engine import policy as rules
from agentpay_server.engine.authorization import Decided, Intent, SpendUnit
from agentpay_server.engine.fees import Cost
from agentpay_server.engine.handlers import (
    Ending,
    Handler,
    Replacement,
    Resigning,
    pending_transaction,
)
from agentpay_server.engine.policy import Purpose, Recipient, Refusal, Spend, stored_policy
from agentpay_server.engine.preflight import Preflight
from agentpay_server.ledger import audit, idempotency, keys
from agentpay_server.ledger.apply import Outcome, Posting, Unit
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US, Held, KeyHolder, RequestedKey
from agentpay_server.ledger.keys import LimitedKey
from agentpay_server.ledger.transactions import Kind
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import outcomes, store
from agentpay_server.sessions.outcomes import limits_of, refused, report
from agentpay_server.sessions.rules import (
    OpeningTerms,
    check_transition,
    closes_us,
    escalation_refusal,
    session_limit_refusal,
    verdict_if_equal,
)

_SHORT: Final = Refusal(
    code=ErrorCode.INSUFFICIENT_BALANCE,
    message="The balance was below the cap when the transaction reached the chain, so nothing moved. Fund "
    "the account, then retry with the same key.",
)
_FAILED: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The chain refused to fund the session's escrow, so nothing moved. Retry with the same key.",
)


class NewSession(Intent[SessionRecord]):
    """A requested session. Storing it raises ConflictError if another request has taken its key.

    `held` are the key's claims when the request was judged.
    """

    operation = Operation.SESSION_OPEN

    def __init__(
        self,
        context: Context,
        principal: Principal,
        request: OpenSession,
        held: Held,
        *,
        rent_exempt_lamports: int,
    ) -> None:
        self._context = context
        self._principal = principal
        self._request = request
        self._requested_key = RequestedKey.of(principal, request.account_id, request.idempotency_key)
        self._held = held
        self._rent_exempt_lamports = rent_exempt_lamports
        self._terms = terms_of(request)
        # Opening a session with an operator key approves its cap.
        self.is_approved: bool = not principal.is_agent

    @property
    def account_id(self) -> str:
        """The paying account."""
        return self._request.account_id

    @property
    def to(self) -> str:
        """The recipient, as the caller named it."""
        return self._request.to

    def spend(self, preflight: Preflight) -> Spend:
        """Return the spend that the policy judges: the whole cap."""
        return Spend(
            amount_micro=self._terms.cap_micro,
            to=self._terms.to,
            recipient=preflight.recipient,
            memo=None,
            category=self._terms.category,
            purpose=Purpose.SESSION,
        )

    def cost(self, preflight: Preflight) -> Cost:
        """Return the lamports that opening and closing the session take from the treasury, at most."""
        blockhash = preflight.blockhash
        return Cost(
            fees=escrow.opening_fee(blockhash) + escrow.settlement_fee(blockhash),
            rent=self._rent_exempt_lamports,
        )

    def limited_key(self, connection: Connection) -> LimitedKey | None:  # noqa: ARG002
        """Return the key of the request, if its total is limited."""
        return keys.of_principal(self._principal)

    def claim(self, connection: Connection, now_us: int) -> bool:
        """Check that the key's claims are as they were."""
        return idempotency.is_as_seen(connection, self._requested_key, self._held, now_us)

    def is_key_taken(self, connection: Connection) -> bool:
        """Return whether another request holds the idempotency key."""
        now_us = self._context.clock.now_us()
        return idempotency.find(connection, self._requested_key, now_us).is_held

    def refused(self, unit: Unit, refusal: Refusal) -> NoReturn:  # noqa: ARG002
        """Raise the refusal: nothing is stored."""
        raise refused(refusal, None)

    def escalated(self, unit: SpendUnit, policy: Policy) -> NoReturn:  # noqa: ARG002
        """Refuse the session: it cannot wait for an operator."""
        raise refused(escalation_refusal(policy, self._terms.cap_micro), None)

    def submitted(self, unit: SpendUnit) -> Decided[SessionRecord]:
        """Sign the funding of the escrow, store the session and reserve its cap.

        Raises:
            Problem: `too_many_sessions`.
        """
        connection, source, preflight, now_us = unit.connection, unit.source, unit.preflight, unit.now_us
        # The account is locked, so no other session of it can be opened before this one is stored.
        unsettled = store.unsettled(connection, source.account_id)
        too_many = session_limit_refusal(unsettled, self._context.settings.max_open_sessions)
        if too_many is not None:
            raise refused(too_many, None)
        context, request, terms = self._context, self._request, self._terms
        session_id = context.identifiers.new(identifiers.SESSION)
        signed = _signed(
            context,
            source,
            preflight.blockhash,
            session_id=session_id,
            cap_micro=terms.cap_micro,
            rent_exempt_lamports=self._rent_exempt_lamports,
        )
        record = session_row(
            self._principal,
            terms,
            preflight.recipient,
            session_id=session_id,
            idempotency_key=request.idempotency_key,
            escrow_token_account=escrow.escrow_address(
                context.signer, account_index=source.key_index, session_id=session_id
            ),
            tx_signature=signed.signature,
            opening_fee=signed.fee_lamports,
            closing_fee=escrow.settlement_fee(preflight.blockhash),
            by_operator=unit.by_operator,
            now_us=now_us,
        )
        store.SESSIONS.insert(connection, record)
        idempotency.put(connection, self._requested_key, self._held, PurchaseKind.SESSION, session_id)
        tx = pending_transaction(
            signed,
            kind=Kind.SESSION_OPEN,
            subject_id=session_id,
            account_id=source.account_id,
            rent=self._rent_exempt_lamports,
            now_us=now_us,
        )
        held = unit.hold_cap(tx, terms.cap_micro)
        audit.record(
            connection,
            self._principal,
            action=OPEN_SESSION.name,
            subject=session_id,
            now_us=now_us,
            after=outcomes.audited(record),
        )
        return Decided(record=record, tx=held)


def session_row(
    principal: Principal,
    terms: OpeningTerms,
    recipient: Recipient,
    *,
    session_id: str,
    idempotency_key: str,
    escrow_token_account: str,
    by_operator: bool,
    now_us: int,
    tx_signature: str | None = None,
    opening_fee: int = 0,
    closing_fee: int = 0,
    channel: ChannelRecord | None = None,
    url: str | None = None,
) -> SessionRecord:
    """Return the row of a new session: with an escrow of our own, or with the `channel` of a seller.

    Without a `tx_signature`, the seller broadcasts the funding. A channel's row has its fees.
    """
    check_transition(None, SessionStatus.OPENING)
    return SessionRecord(
        session_id=session_id,
        operator_id=principal.operator_id,
        account_id=terms.account_id,
        key_id=principal.key_id,
        to=terms.to,
        # If this service holds the payee of a channel, the deposit watcher posts the arrival.
        recipient_account_id=recipient.account_id if channel is None else None,
        recipient_token_account=recipient.token_account,
        category=terms.category,
        cap=terms.cap_micro,
        idempotency_key=idempotency_key,
        status=SessionStatus.OPENING.value,
        escrow_token_account=escrow_token_account,
        tx_signature=tx_signature,
        created_us=now_us,
        recipient_owner=recipient.owner,
        opening_fee=opening_fee,
        closing_fee=closing_fee,
        protocol=(SessionProtocol.ESCROW if channel is None else SessionProtocol.MPP).value,
        origin=None if channel is None else channel.origin,
        url=url,
        channel=None if channel is None else channel.address,
        by_operator=by_operator,
    )


class SessionOpenHandler(Handler[SessionRecord]):
    """Says what the outcomes of the transaction that funds a session's escrow change."""

    kind = Kind.SESSION_OPEN

    def load(self, connection: Connection, subject_id: str, *, lock: bool = False) -> SessionRecord:
        """Return the session."""
        return store.SESSIONS.existing(connection, subject_id, lock=lock)

    def newest_signature(self, subject: SessionRecord) -> str | None:
        """Return the signature of the session's newest funding."""
        return subject.tx_signature

    def settled(self, ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
        """Return the outcome of a session whose escrow is funded."""
        check_transition(SessionStatus.OPENING, SessionStatus.OPEN)
        limits, now_us = limits_of(self._context), ending.now_us
        tx_signature = ending.tx.name or ending.tx.signature
        change = store.SESSIONS.to_change(
            ending.subject,
            store.IS_OPENING,
            status=SessionStatus.OPEN.value,
            tx_signature=tx_signature,
            opened_us=now_us,
            closes_us=closes_us(limits, opened_us=now_us, charged_us=None),
        )
        return outcomes.funded(change, tx_signature)

    def failed(self, ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
        """Return the outcome of a session whose funding the chain rejected."""
        assert ending.failure is not None  # noqa: S101 - it has failed
        is_short = ending.failure.reason is FailureReason.INSUFFICIENT_FUNDS
        return failed(ending, _SHORT if is_short else _FAILED)

    async def prepare(self, subject: SessionRecord) -> int:  # noqa: ARG002
        """Return the rent exemption of an escrow in lamports."""
        return await self._context.chain.rent_exemption(escrow.ESCROW_BYTES)

    def sign_replacement(self, resigning: Resigning[SessionRecord]) -> Replacement | Refusal:
        """Sign a replacement, unless the account is now paused.

        It is proved that the previous transaction never landed. Otherwise a closed escrow could be created
        again.
        """
        session, source = resigning.subject, resigning.source
        refusal = rules.paused_refusal(stored_policy(source.policy))
        if refusal is not None:
            return refusal
        signed = _signed(
            self._context,
            source,
            resigning.blockhash,
            session_id=session.session_id,
            cap_micro=session.cap,
            rent_exempt_lamports=resigning.prepared,
        )
        change = store.SESSIONS.to_change(
            session, store.IS_OPENING, tx_signature=signed.signature, opening_fee=signed.fee_lamports
        )
        return Replacement(signed=signed, change=change, rent=resigning.prepared)

    def dropped(self, ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
        """Return the outcome of a failed session: its account was paused before a replacement was signed."""
        message = f"{ending.reason.message} The transaction had expired without landing; nothing was moved."
        return failed(ending, attrs.evolve(ending.reason, message=message))

    def landed_late(self, ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
        """Return the outcome of a funding that landed after it was considered expired.

        An existing escrow cannot be created again: of two openings one lands, and the other fails. So usually
        nothing has moved twice, and the session continues with the one that landed.
        """
        tx, session, now_us = ending.tx, ending.subject, ending.now_us
        if session.status == SessionStatus.OPENING:
            return self.settled(ending)
        if session.status == SessionStatus.FAILED:
            check_transition(session.status, SessionStatus.OPEN)
            # Callers no longer expect the session: it closes automatically, and the cap is returned.
            reopened = store.SESSIONS.to_change(
                session,
                store.IS_FAILED,
                status=SessionStatus.OPEN.value,
                error=None,
                message=None,
                tx_signature=tx.name or tx.signature,
                opened_us=now_us,
                closes_us=now_us,
                key_expires_us=None,
            )
            return outcomes.funded(reopened, tx.name or tx.signature, is_held=False)
        if session.status == SessionStatus.SETTLED:
            return outcomes.outcome_of(session, outcomes.escrow_of(session).lost(tx))
        return outcomes.outcome_of(session)

    def report(self, ending: Ending[SessionRecord]) -> None:
        """Log the session."""
        report(ending.subject, detail=None if ending.failure is None else ending.failure.detail)


def failed(ending: Ending[SessionRecord], refusal: Refusal) -> Outcome[SessionRecord]:
    """Return the outcome of a session whose opening moved nothing and never will."""
    session = ending.subject
    check_transition(SessionStatus.OPENING, SessionStatus.FAILED)
    change = store.SESSIONS.to_change(
        session,
        store.IS_OPENING,
        status=SessionStatus.FAILED.value,
        tx_signature=ending.tx.name,
        error=refusal.code.value,
        message=refusal.message,
        key_expires_us=ending.now_us + KEY_LIFETIME_US,
    )
    record = audit.Record(
        actor=audit.ServerActor(session.operator_id),
        action=audit.SESSION_FAILED,
        subject=session.session_id,
        before={"status": SessionStatus.OPENING.value},
        after=outcomes.audited(change.after),
    )
    posting = Posting(account_id=session.account_id, release=session.cap, cap_release=session.cap)
    return outcomes.outcome_of(change, posting).also(audit=(record,))


def _signed(
    context: Context,
    source: AccountRecord,
    blockhash: Blockhash,
    *,
    session_id: str,
    cap_micro: int,
    rent_exempt_lamports: int,
) -> SignedTransaction:
    return escrow.open_escrow(
        context.signer,
        blockhash,
        usdc_mint=context.chain.usdc_mint,
        account_index=source.key_index,
        session_id=session_id,
        source=source.usdc_token_account,
        cap_micro=cap_micro,
        rent_exempt_lamports=rent_exempt_lamports,
    )


def terms_of(request: OpenSession) -> OpeningTerms:
    """Return the request's terms."""
    return OpeningTerms(
        account_id=request.account_id,
        to=request.to,
        cap_micro=to_micro(request.cap_usdc),
        category=request.category,
    )


def key_holder_of(record: SessionRecord) -> KeyHolder:
    """Return a stored session as the holder of an idempotency key."""
    return KeyHolder(
        terms=OpeningTerms(
            account_id=record.account_id,
            to=record.to,
            cap_micro=record.cap,
            category=record.category,
        ),
        if_equal=verdict_if_equal(record.status),
    )
