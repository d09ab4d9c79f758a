"""Opening a session: the unit of work that reserves its cap and signs, and what is booked at the end of that.

The policy check, the reservation of the whole cap, in the balance and in the daily limit, and the signed
bytes are one commit; a refusal stores nothing. Nothing here sends, and nothing here waits but for a new
blockhash: what is read from the chain comes in as `Sight`.
"""

from typing import Final

import attrs

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.sessions import OPEN_SESSION, OpenSession, SessionStatus
from agentpay.contract.usdc import to_micro
from agentpay_server import audit
from agentpay_server.chain import escrow
from agentpay_server.chain.protocol import (
    Blockhash,
    ChainUnavailableError,
    Failure,
    FailureReason,
    SignedTransaction,
)
from agentpay_server.clock import real_now_us
from agentpay_server.context import Context
from agentpay_server.crash_points import Operation
from agentpay_server.database.connection import Connection
from agentpay_server.domain import policy as rules
from agentpay_server.domain.policy import Means, Refusal
from agentpay_server.domain.sessions import (
    KeyHolder,
    Terms,
    check_transition,
    closes_us,
    crowd_refusal,
    opening_refusal,
)
from agentpay_server.domain.transfers import KEY_LIFETIME_US, LEASE_US
from agentpay_server.errors import signing_stopped
from agentpay_server.principals import Principal
from agentpay_server.services import low_balance
from agentpay_server.services.policies import stored_policy
from agentpay_server.services.sessions import booking
from agentpay_server.services.sessions.answers import limits_of, refused, report
from agentpay_server.services.settlement import Ended, Landed
from agentpay_server.services.sight import Sight
from agentpay_server.store import accounts as account_store
from agentpay_server.store import confirmed, spends
from agentpay_server.store import expired as expired_store
from agentpay_server.store import sessions as store
from agentpay_server.store.accounts import AccountRecord
from agentpay_server.store.expired import Kind
from agentpay_server.store.held_keys import Asked, Held
from agentpay_server.store.sessions import SessionRecord

_SHORT: Final = Refusal(
    code=ErrorCode.INSUFFICIENT_BALANCE,
    message="The balance had fallen below the cap when the transaction reached the chain; nothing was moved. "
    "Fund the account, then send the same key again.",
)
_FAILED: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The chain refused to fund the session's escrow; nothing was moved. Send the same key again to "
    "retry.",
)


class Opening:
    """The unit of work that decides about a new session, and reserves and signs, in one commit.

    Args:
        context: the parts of the server.
        principal: who asks.
        request: what is asked.
        held: what the key of the request stood for when it was judged: an ended session loses it.
        rent_exempt_lamports: what keeps an escrow alive.
    """

    def __init__(
        self,
        context: Context,
        principal: Principal,
        request: OpenSession,
        held: Held[SessionRecord],
        *,
        rent_exempt_lamports: int,
    ) -> None:
        self._context = context
        self._principal = principal
        self._request = request
        self._asked = asked_under(principal, request)
        self._held = held
        self._rent_exempt_lamports = rent_exempt_lamports
        self._terms = terms_of(request)

    def __call__(
        self, connection: Connection, sight: Sight | None, *, is_last_look: bool
    ) -> SessionRecord | None:
        """Decide, as any `SpendUnit`, and return the new session.

        Raises:
            Problem: the policy refuses it, the balance is too low, the account has too many sessions, or
                nothing is signed for it now;
                nothing is stored.
            Contended: the balance must be read again.
            ConflictError: another session has taken the idempotency key.
        """
        # Whoever changes the policy, or spends from the account, takes this lock: it puts them in one order.
        source = account_store.account(connection, self._request.account_id, lock=True)
        assert source is not None  # noqa: S101 - accounts are never deleted
        refusal = rules.paused_refusal(stored_policy(source.policy))
        if refusal is None and sight is None:
            return None
        if refusal is None and source.stopped_us is not None:
            raise signing_stopped(source.account_id)
        now_us = self._context.clock.now_us()
        if not store.KEYS.take(connection, self._asked, self._held, now_us):
            return None
        if refusal is None and sight is not None:
            refusal = self._refusal(connection, source, sight, now_us, is_last_look=is_last_look)
        if refusal is not None:
            raise refused(refusal, None)
        assert sight is not None  # noqa: S101 - without sight the account is paused, which is a refusal
        return self._reserved(connection, source, sight, now_us)

    def _refusal(
        self,
        connection: Connection,
        source: AccountRecord,
        sight: Sight,
        now_us: int,
        *,
        is_last_look: bool,
    ) -> Refusal | None:
        policy = stored_policy(source.policy)
        # The window ends where that of the next spend does: its time is never before the last one's.
        window_us = max(now_us, source.last_spend_us)
        counted = spends.against_daily_limit(connection, source, window_us)
        refusal = opening_refusal(
            policy,
            self._terms,
            sight.recipient,
            Means(spent_micro=counted, available_micro=sight.available_micro(source)),
            is_operator=not self._principal.is_agent,
        )
        refusal = sight.confirmed(refusal, source, is_last_look=is_last_look)
        if refusal is not None:
            return refusal
        # The account is locked: nobody opens another session of it before this one is stored.
        unsettled = store.unsettled(connection, source.account_id)
        return crowd_refusal(unsettled, self._context.settings.max_open_sessions)

    def _reserved(
        self, connection: Connection, source: AccountRecord, sight: Sight, now_us: int
    ) -> SessionRecord:
        context, request, terms = self._context, self._request, self._terms
        session_id = context.identifiers.new(identifiers.SESSION)
        signed = _signed(
            context,
            source,
            sight.blockhash,
            session_id=session_id,
            cap_micro=terms.cap_micro,
            rent_exempt_lamports=self._rent_exempt_lamports,
        )
        check_transition(None, SessionStatus.OPENING)
        record = SessionRecord(
            seq=0,
            session_id=session_id,
            operator_id=self._principal.operator_id,
            account_id=request.account_id,
            key_id=self._principal.key_id,
            to=request.to,
            recipient_account_id=sight.recipient.account_id,
            recipient_token_account=sight.recipient.token_account,
            category=request.category,
            cap=terms.cap_micro,
            running_total=0,
            idempotency_key=request.idempotency_key,
            held_key=request.idempotency_key,
            key_expires_us=None,
            status=SessionStatus.OPENING.value,
            error=None,
            message=None,
            escrow_token_account=escrow.escrow_address(
                context.signer, account_index=source.key_index, session_id=session_id
            ),
            tx_signature=signed.signature,
            settlement_tx_signature=None,
            tx_raw=signed.raw,
            tx_last_valid_block_height=signed.last_valid_block_height,
            settlements=0,
            put_offs=0,
            deposited=0,
            opened_us=None,
            settled_us=None,
            closes_us=None,
            created_us=now_us,
            leased_until_us=real_now_us() + LEASE_US,
            claimed_by_operator=self._asked.by_operator,
            recipient_owner=sight.recipient.owner,
            closed_by=None,
            stuck_reason=None,
            payee_created_us=None,
        )
        store.insert_session(connection, record)
        account_store.reserve_cap(connection, source.account_id, terms.cap_micro)
        audit.record(
            connection,
            self._principal,
            action=OPEN_SESSION.name,
            subject=session_id,
            now_us=now_us,
            after=booking.audited(record),
        )
        return record


class OpeningSteps:
    """What is booked for one session at each end of the transaction that funds its escrow."""

    def __init__(self, context: Context, session: SessionRecord) -> None:
        self._context = context
        self._database = context.database
        self._session = session

    @property
    def operation(self) -> Operation:
        """What the transaction is for, for fault points."""
        return Operation.SESSION_OPEN

    async def sent(self) -> None:
        """Nobody is told of an opening before it has landed."""

    async def landed(self, signed: SignedTransaction, end: Landed) -> SessionRecord:
        """Book a session whose escrow is funded."""
        is_watched = not end.is_irreversible
        opened, is_ours, is_low = await self._database.run(self._open, signed, is_watched=is_watched)
        self._context.wakeup.set()
        if is_ours:
            report(opened)
        if is_low:
            await low_balance.judge(self._context, opened.account_id)
        return opened

    async def failed(self, signed: SignedTransaction, failure: Failure) -> SessionRecord:
        """Book a session whose funding the chain refused."""
        refusal = _SHORT if failure.reason is FailureReason.INSUFFICIENT_FUNDS else _FAILED
        failed, is_ours = await self._database.run(self._fail, signed, refusal)
        if is_ours:
            report(failed, detail=failure.detail)
        return failed

    async def expired(self, signed: SignedTransaction) -> SignedTransaction | Ended[SessionRecord]:
        """Sign again, unless the account is paused by now.

        That the transaction before it never landed is proved by now, which an escrow relies on: one that was
        closed could be made again.
        """
        chain = self._context.chain
        blockhash = await chain.latest_blockhash()
        if blockhash.last_valid_block_height <= signed.last_valid_block_height:
            # Of a node that lags: the height that proved the expiry was already above it.
            raise ChainUnavailableError("the chain offered a blockhash that has expired")
        rent = await chain.rent_exemption(escrow.ESCROW_BYTES)
        following, is_ours = await self._database.run(self._sign_again, signed, blockhash, rent)
        if is_ours and isinstance(following, Ended):
            report(following.result)
        return following

    # What brings the opening to an end also returns whether it did, and not another driver before it.

    def _open(
        self, connection: Connection, signed: SignedTransaction, *, is_watched: bool
    ) -> tuple[SessionRecord, bool, bool]:
        """Return the session, whether it was opened here, and whether its account looks low."""
        now_us = self._context.clock.now_us()
        check_transition(SessionStatus.OPENING, SessionStatus.OPEN)
        is_ours = store.set_open(
            connection,
            self._session.session_id,
            tx_signature=signed.signature,
            opened_us=now_us,
            closes_us=closes_us(limits_of(self._context), opened_us=now_us, charged_us=None),
        )
        session = self._current(connection)
        is_low = False
        if is_ours:
            is_low = booking.book_opened(connection, self._context, session, now_us)
            if is_watched:
                confirmed.watch(connection, signed, session.session_id)
        return session, is_ours, is_low

    def _fail(
        self, connection: Connection, signed: SignedTransaction, refusal: Refusal
    ) -> tuple[SessionRecord, bool]:
        session, now_us = self._session, self._context.clock.now_us()
        check_transition(SessionStatus.OPENING, SessionStatus.FAILED)
        is_ours = store.set_failed(
            connection,
            session.session_id,
            tx_signature=signed.signature,
            error=refusal.code.value,
            message=refusal.message,
            key_expires_us=now_us + KEY_LIFETIME_US,
        )
        failed = self._current(connection)
        if is_ours:
            account_store.release_cap(connection, session.account_id, session.cap)
            audit.record(
                connection,
                audit.Server(session.operator_id),
                action=audit.SESSION_FAILED,
                subject=session.session_id,
                now_us=now_us,
                before={"status": SessionStatus.OPENING.value},
                after=booking.audited(failed),
            )
        return failed, is_ours

    def _sign_again(
        self,
        connection: Connection,
        expired: SignedTransaction,
        blockhash: Blockhash,
        rent_exempt_lamports: int,
    ) -> tuple[SignedTransaction | Ended[SessionRecord], bool]:
        session = store.session(connection, self._session.session_id, lock=True)
        assert session is not None  # noqa: S101 - sessions are never deleted
        if session.status != SessionStatus.OPENING or session.signed is None:
            return Ended(session), False
        if session.signed.signature != expired.signature:
            return session.signed, False
        source = account_store.account(connection, session.account_id, lock=True)
        assert source is not None  # noqa: S101 - accounts are never deleted
        if source.stopped_us is not None:
            raise ChainUnavailableError("nothing is signed for the account")
        expired_store.watch(
            connection,
            expired,
            kind=Kind.SESSION_OPEN,
            subject_id=session.session_id,
            account_id=session.account_id,
            now_us=self._context.clock.now_us(),
        )
        refusal = rules.paused_refusal(stored_policy(source.policy))
        if refusal is not None:
            message = f"{refusal.message} The transaction had expired without landing; nothing was moved."
            failed, is_ours = self._fail(connection, expired, attrs.evolve(refusal, message=message))
            return Ended(failed), is_ours
        signed = _signed(
            self._context,
            source,
            blockhash,
            session_id=session.session_id,
            cap_micro=session.cap,
            rent_exempt_lamports=rent_exempt_lamports,
        )
        store.sign_opening(connection, session.session_id, signed)
        return signed, False

    def _current(self, connection: Connection) -> SessionRecord:
        record = store.session(connection, self._session.session_id)
        assert record is not None  # noqa: S101 - sessions are never deleted
        return record


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


def asked_under(principal: Principal, request: OpenSession) -> Asked:
    """Return who asks under which key."""
    return Asked(
        account_id=request.account_id,
        idempotency_key=request.idempotency_key,
        by_operator=not principal.is_agent,
    )


def terms_of(request: OpenSession) -> Terms:
    """Return the parameters of a request that its idempotency key stands for."""
    return Terms(
        account_id=request.account_id,
        to=request.to,
        cap_micro=to_micro(request.cap_usdc),
        category=request.category,
    )


def key_holder_of(record: SessionRecord | None) -> KeyHolder | None:
    """Return what the rule of idempotency needs of the session that holds a key."""
    if record is None:
        return None
    return KeyHolder(
        terms=Terms(
            account_id=record.account_id, to=record.to, cap_micro=record.cap, category=record.category
        ),
        status=record.status,
        key_expires_us=record.key_expires_us,
    )
