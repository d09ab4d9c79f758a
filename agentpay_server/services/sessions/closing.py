"""Closing a session: claimed in one commit, its settlement signed in the next, then brought to its end.

From the claim on no charge is accepted: what is settled is what was charged. While the chain is away, or when
what a settlement was signed on has changed before it landed (a stranger's money in the escrow, a payee's
token account that was closed), whoever closes the session looks again. What only others can mend (a frozen
token account) leaves it `closing` with the money in its escrow and the reason beside it: the next close tries
at once, and the worker after a while of the clock, longer each time.
"""

import asyncio
import logging
from typing import Final

from agentpay.contract.sessions import CLOSE_SESSION, SessionStatus
from agentpay_server import audit
from agentpay_server.chain import escrow
from agentpay_server.chain.protocol import ChainUnavailableError, Failure, FailureReason, SignedTransaction
from agentpay_server.clock import real_now_us
from agentpay_server.context import Context
from agentpay_server.crash_points import Operation, Step, fault_point
from agentpay_server.database.connection import Connection
from agentpay_server.domain.sessions import (
    MOST_PAYEES_CREATED,
    PAYEES_CREATED_WITHIN_US,
    check_transition,
    closed_by,
    retry_us,
    settlement,
)
from agentpay_server.domain.transfers import KEY_LIFETIME_US, LEASE_US
from agentpay_server.logs import log
from agentpay_server.principals import Principal
from agentpay_server.services.sessions import booking
from agentpay_server.services.sessions.answers import limits_of, report
from agentpay_server.services.sessions.payout import (
    REFUSED_BY_CHAIN,
    TOO_MANY_CREATED,
    Obstacle,
    Scene,
    look,
    obstacle,
)
from agentpay_server.services.settlement import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Ended,
    Landed,
    Settlement,
)
from agentpay_server.store import accounts as account_store
from agentpay_server.store import confirmed
from agentpay_server.store import expired as expired_store
from agentpay_server.store import session_settlements as settlements
from agentpay_server.store import sessions as store
from agentpay_server.store.accounts import AccountRecord
from agentpay_server.store.expired import Kind
from agentpay_server.store.sessions import SessionRecord

# What the look at the chain did not show yet, where the chain refused the first settlement.
_CHANGED_SINCE: Final = {FailureReason.ACCOUNT_MISSING, FailureReason.ACCOUNT_FROZEN}

logger: logging.Logger = logging.getLogger(__name__)


class Closing:
    """Claims sessions, signs their settlement and drives it."""

    def __init__(self, context: Context, driver: Settlement) -> None:
        self._context = context
        self._database = context.database
        self._driver = driver

    async def closed(
        self, session_id: str, deadline: float, *, principal: Principal | None = None
    ) -> SessionRecord:
        """Close an open or closing session, and return it as it stands after that, or at the deadline.

        Args:
            session_id: the session.
            deadline: until when to wait, in the event loop's time.
            principal: who asks; None when the session closes by itself, or is taken up again.
        """
        fault_point(Operation.SESSION_CLOSE, Step.BEGUN)
        session = await self._claimed(session_id, principal)
        pause = 0.0
        while session.status == SessionStatus.CLOSING and session.error is None:
            is_new = False
            if session.signed is None:
                if pause and self._is_over(deadline):
                    return session
                await asyncio.sleep(pause)
                pause = min(max(pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
                session, is_new = await self._signed(session)
            if session.signed is not None:
                steps = ClosingSteps(self._context, session)
                settled = await self._driver.settle(
                    session_id, session.signed, steps, is_new=is_new, deadline=deadline
                )
                if settled is None:
                    return await self._database.read(_current, session_id)
                session = settled
        return session

    def _is_over(self, deadline: float) -> bool:
        """Whether whoever waits has to be told how things stand; the worker goes on."""
        return asyncio.get_running_loop().time() >= deadline or self._context.tasks.closing.done()

    async def _claimed(self, session_id: str, principal: Principal | None) -> SessionRecord:
        """Return a session, claimed if it was open, or closing and put off."""
        session = await self._database.read(_current, session_id)
        is_put_off = session.status == SessionStatus.CLOSING and session.closes_us is not None
        if session.status != SessionStatus.OPEN and not is_put_off:
            return session
        claimed = await self._database.run(self._claim, session_id, principal)
        fault_point(Operation.SESSION_CLOSE, Step.CLAIMED)
        return claimed

    def _claim(self, connection: Connection, session_id: str, principal: Principal | None) -> SessionRecord:
        until_us = real_now_us() + LEASE_US
        now_us = self._context.clock.now_us()
        if principal is None:
            is_claimed = self._claim_due(connection, session_id, now_us, until_us)
        else:
            is_claimed = settlements.claim_closing(connection, session_id, until_us=until_us)
        if not is_claimed:
            settlements.claim_put_off(connection, session_id, until_us=until_us)
            return _current(connection, session_id)
        check_transition(SessionStatus.OPEN, SessionStatus.CLOSING)
        session = _current(connection, session_id)
        audit.record(
            connection,
            principal or audit.Server(session.operator_id),
            action=CLOSE_SESSION.name,
            subject=session_id,
            now_us=now_us,
            before={"status": SessionStatus.OPEN.value},
            after={
                "status": session.status,
                "cap_usdc": audit.usdc(session.cap),
                # From now on nothing is charged: these are what is settled.
                "settled_usdc": audit.usdc(session.running_total),
                "returned_usdc": audit.usdc(session.cap - session.running_total),
            },
        )
        return session

    def _claim_due(self, connection: Connection, session_id: str, now_us: int, until_us: int) -> bool:
        session = _current(connection, session_id)
        if session.opened_us is None:
            return False
        reason = closed_by(limits_of(self._context), opened_us=session.opened_us, now_us=now_us)
        return settlements.claim_due(
            connection, session_id, now_us=now_us, closed_by=reason.value, until_us=until_us
        )

    async def _signed(self, session: SessionRecord) -> tuple[SessionRecord, bool]:
        """Sign the settlement of a claimed session, as far as the chain allows.

        Returns:
            The session as it stands then, and whether it was signed here.
        """
        try:
            account = await self._database.read(_account, session.account_id)
            scene = await look(self._context, session, account)
            closing, is_ours = await self._database.run(self._sign, session.session_id, scene)
        except ChainUnavailableError:
            return await self._database.read(_current, session.session_id), False
        if is_ours and closing.error is not None:
            self._context.wakeup.set()
            report(closing)
        is_signed = is_ours and closing.signed is not None
        if is_signed and closing.payee_created_us is not None:
            log(
                logger,
                logging.WARNING,
                "session.payee_recreated",
                session_id=closing.session_id,
                account_id=closing.account_id,
                usdc_token_account=scene.payee.token_account,
            )
        return closing, is_signed

    def _sign(self, connection: Connection, session_id: str, scene: Scene) -> tuple[SessionRecord, bool]:
        session = store.session(connection, session_id, lock=True)
        assert session is not None  # noqa: S101 - sessions are never deleted
        if session.status != SessionStatus.CLOSING or session.signed is not None:
            return session, False
        found = sign(connection, self._context, session, scene)
        if found is not None:
            _put_off(connection, self._context, session, found)
        return _current(connection, session_id), True


class ClosingSteps:
    """What is booked for one session at each end of the transaction that settles it."""

    def __init__(self, context: Context, session: SessionRecord) -> None:
        self._context = context
        self._database = context.database
        self._session = session

    @property
    def operation(self) -> Operation:
        """What the transaction is for, for fault points."""
        return Operation.SESSION_CLOSE

    async def sent(self) -> None:
        """Nobody is told of a settlement before it has landed."""

    async def landed(self, signed: SignedTransaction, end: Landed) -> SessionRecord:
        """Book a session that is settled on chain."""
        settled, is_ours = await self._database.run(self._settle, signed, is_watched=not end.is_irreversible)
        self._context.wakeup.set()
        if is_ours:
            report(settled)
        return settled

    async def failed(self, signed: SignedTransaction, failure: Failure) -> SessionRecord:
        """Book a settlement that the chain refused: the session stays closing, and is signed again."""
        closing, is_ours = await self._database.run(self._refuse, signed, failure.reason)
        self._context.wakeup.set()
        if is_ours:
            report(closing, detail=failure.detail)
        return closing

    async def expired(self, signed: SignedTransaction) -> SignedTransaction | Ended[SessionRecord]:
        """Sign again, whatever the policy says by now."""
        current = await self._database.read(_current, self._session.session_id)
        if current.status != SessionStatus.CLOSING:
            # An earlier settlement has landed after all: there is no escrow to look at.
            return Ended(current)
        account = await self._database.read(_account, self._session.account_id)
        scene = await look(self._context, self._session, account)
        if scene.blockhash.last_valid_block_height <= signed.last_valid_block_height:
            # Of a node that lags: the height that proved the expiry was already above it.
            raise ChainUnavailableError("the chain offered a blockhash that has expired")
        following = await self._database.run(self._sign_again, signed, scene)
        if isinstance(following, Ended):
            self._context.wakeup.set()
        return following

    def _settle(
        self, connection: Connection, signed: SignedTransaction, *, is_watched: bool
    ) -> tuple[SessionRecord, bool]:
        now_us = self._context.clock.now_us()
        check_transition(SessionStatus.CLOSING, SessionStatus.SETTLED)
        is_ours = settlements.set_settled(
            connection,
            self._session.session_id,
            tx_signature=signed.signature,
            settled_us=now_us,
            key_expires_us=now_us + KEY_LIFETIME_US,
        )
        session = _current(connection, self._session.session_id)
        if is_ours:
            booking.book_settled(connection, self._context, session, now_us)
            if is_watched:
                confirmed.watch(connection, signed, session.session_id)
        return session, is_ours

    def _refuse(
        self, connection: Connection, signed: SignedTransaction, reason: FailureReason
    ) -> tuple[SessionRecord, bool]:
        session = store.session(connection, self._session.session_id, lock=True)
        assert session is not None  # noqa: S101 - sessions are never deleted
        if session.signed is None or session.signed.signature != signed.signature:
            return session, False
        # Another look tells why, and what to do instead. One is enough: a payee who goes on to open and close
        # its account would have the treasury pay a fee for each.
        is_worth_a_look = reason in _CHANGED_SINCE and session.settlements == 1
        if reason is FailureReason.ACCOUNT_NOT_EMPTY or is_worth_a_look:
            settlements.drop_settlement(connection, session.session_id, until_us=real_now_us() + LEASE_US)
        else:
            _put_off(connection, self._context, session, REFUSED_BY_CHAIN)
        return _current(connection, session.session_id), True

    def _sign_again(
        self, connection: Connection, expired: SignedTransaction, scene: Scene
    ) -> SignedTransaction | Ended[SessionRecord]:
        session = store.session(connection, self._session.session_id, lock=True)
        assert session is not None  # noqa: S101 - sessions are never deleted
        if session.status != SessionStatus.CLOSING or session.signed is None:
            return Ended(session)
        if session.signed.signature != expired.signature:
            return session.signed
        expired_store.watch(
            connection,
            expired,
            kind=Kind.SESSION_SETTLE,
            subject_id=session.session_id,
            account_id=session.account_id,
            now_us=self._context.clock.now_us(),
            detail=session.deposited,
        )
        found = sign(connection, self._context, session, scene)
        if found is not None:
            _put_off(connection, self._context, session, found)
        signed_again = _current(connection, session.session_id)
        return signed_again.signed or Ended(signed_again)


def sign(connection: Connection, context: Context, session: SessionRecord, scene: Scene) -> Obstacle | None:
    """Sign and store the settlement of a closing session, or return what is in its way.

    Raises:
        ChainUnavailableError: nothing is signed for the account now.
    """
    legs = settlement(
        cap_micro=session.cap,
        running_total_micro=session.running_total,
        escrow_micro=scene.escrow.amount_micro,
    )
    now_us = context.clock.now_us()
    creates = legs.settled_micro > 0 and scene.payee.new_owner is not None
    # Locked where it matters: two closings at once must not both find room.
    account = _account(connection, session.account_id, lock=creates)
    if account.stopped_us is not None:
        raise ChainUnavailableError("nothing is signed for the account")
    found = obstacle(session, legs, scene)
    if found is None and creates and not _may_create(connection, account, now_us):
        found = TOO_MANY_CREATED
    if found is not None:
        return found
    signed = escrow.settle_escrow(
        context.signer,
        scene.blockhash,
        usdc_mint=context.chain.usdc_mint,
        account_index=account.key_index,
        session_id=session.session_id,
        number=session.settlements + 1,
        payee=scene.payee.token_account,
        payee_micro=legs.settled_micro,
        new_payee_owner=scene.payee.new_owner,
        source=account.usdc_token_account,
        source_micro=legs.account_leg_micro,
    )
    until_us = real_now_us() + LEASE_US
    settlements.sign_settlement(
        connection,
        session.session_id,
        signed,
        deposited=legs.deposited_micro,
        payee_created_us=now_us if creates else None,
        until_us=until_us,
    )
    return None


def _may_create(connection: Connection, account: AccountRecord, now_us: int) -> bool:
    after_us = now_us - PAYEES_CREATED_WITHIN_US
    created = settlements.payees_created(connection, account.account_id, after_us=after_us)
    return created < MOST_PAYEES_CREATED


def _put_off(connection: Connection, context: Context, session: SessionRecord, found: Obstacle) -> None:
    settlements.put_off(
        connection,
        session.session_id,
        closes_us=context.clock.now_us() + retry_us(session.put_offs),
        error=found.refusal.code.value,
        message=found.refusal.message,
        stuck_reason=found.reason.value,
    )


def _current(connection: Connection, session_id: str) -> SessionRecord:
    record = store.session(connection, session_id)
    assert record is not None  # noqa: S101 - sessions are never deleted
    return record


def _account(connection: Connection, account_id: str, *, lock: bool = False) -> AccountRecord:
    record = account_store.account(connection, account_id, lock=lock)
    assert record is not None  # noqa: S101 - accounts are never deleted
    return record
