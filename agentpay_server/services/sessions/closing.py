"""Closing a session: claimed in one commit, its settlement signed in the next, then brought to its end.

From the claim on no charge is accepted: what is settled is what was charged. While the chain is away, or a
stranger's money has come to the escrow since the look at it, whoever closes it looks again. What only others
can mend (the payee's token account is gone or frozen) leaves the session `closing` with the money in its
escrow and the reason beside it: the next close tries at once, and the worker after a while of the clock,
longer each time.
"""

import asyncio
from typing import Final

from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay_server.chain import escrow
from agentpay_server.chain.base import (
    Blockhash,
    ChainUnavailableError,
    Failure,
    FailureReason,
    SignedTransaction,
    TokenAccount,
)
from agentpay_server.clock import real_now_us
from agentpay_server.contract.sessions import SessionStatus
from agentpay_server.domain.policy import Refusal
from agentpay_server.domain.principals import Principal
from agentpay_server.domain.sessions import Settlement as Legs
from agentpay_server.domain.sessions import check_transition, retry_us, settlement
from agentpay_server.domain.transfers import KEY_LIFETIME_US, LEASE_US
from agentpay_server.faults import Operation, Step, fault_point
from agentpay_server.services import audit
from agentpay_server.services.context import Context
from agentpay_server.services.sessions import booking
from agentpay_server.services.sessions.answers import report
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
from agentpay_server.store.connection import Connection
from agentpay_server.store.expired import Kind
from agentpay_server.store.sessions import SessionRecord

_REFUSED: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The chain refused the settlement; nothing was moved, and the money is safe in the escrow. Close "
    "the session again to retry.",
)


@frozen(kw_only=True)
class Scene:
    """What a settlement needs to know of the chain.

    Attributes:
        escrow: the session's token account, with the cap in it at least.
        payee: the payee's token account; None when it is gone.
        source: the account's token account; None when it is gone.
        blockhash: a recent one, to sign under.
    """

    escrow: TokenAccount
    payee: TokenAccount | None
    source: TokenAccount | None
    blockhash: Blockhash


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
        if settlements.claim_closing(connection, session_id, until_us=until_us):
            check_transition(SessionStatus.OPEN, SessionStatus.CLOSING)
            if principal is not None:
                now_us = self._context.clock.now_us()
                audit.record(
                    connection, principal, action="sessions.close", subject=session_id, now_us=now_us
                )
        else:
            settlements.claim_put_off(connection, session_id, until_us=until_us)
        return _current(connection, session_id)

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
        return closing, is_ours and closing.signed is not None

    def _sign(self, connection: Connection, session_id: str, scene: Scene) -> tuple[SessionRecord, bool]:
        session = store.session(connection, session_id, lock=True)
        assert session is not None  # noqa: S101 - sessions are never deleted
        if session.status != SessionStatus.CLOSING or session.signed is not None:
            return session, False
        refusal = sign(connection, self._context, session, scene)
        if refusal is not None:
            _put_off(connection, self._context, session, refusal)
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
        refusal = None if failure.reason is FailureReason.ACCOUNT_NOT_EMPTY else _REFUSED
        closing, is_ours = await self._database.run(self._refuse, signed, refusal)
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
        self, connection: Connection, signed: SignedTransaction, refusal: Refusal | None
    ) -> tuple[SessionRecord, bool]:
        session = store.session(connection, self._session.session_id, lock=True)
        assert session is not None  # noqa: S101 - sessions are never deleted
        if session.signed is None or session.signed.signature != signed.signature:
            return session, False
        if refusal is None:
            settlements.drop_settlement(connection, session.session_id, until_us=real_now_us() + LEASE_US)
        else:
            _put_off(connection, self._context, session, refusal)
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
        refusal = sign(connection, self._context, session, scene)
        if refusal is not None:
            _put_off(connection, self._context, session, refusal)
        signed_again = _current(connection, session.session_id)
        return signed_again.signed or Ended(signed_again)


async def look(context: Context, session: SessionRecord, account: AccountRecord) -> Scene:
    """Read from the chain what a settlement needs.

    Raises:
        ChainUnavailableError: it did not answer, or does not show the escrow with the whole cap in it: a node
            that lags, or a settlement that has landed. Neither is settled (again) on such a look. Or nothing
            is signed for the account now.
    """
    if account.stopped_us is not None:
        raise ChainUnavailableError("nothing is signed for the account")
    addresses = [
        session.escrow_token_account,
        session.recipient_token_account,
        account.usdc_token_account,
    ]
    held, payee, source = await context.chain.token_accounts(addresses)
    if held is None or held.amount_micro < session.cap:
        raise ChainUnavailableError(f"the chain does not show the escrow of {session.session_id}")
    return Scene(
        escrow=held,
        payee=payee,
        source=source,
        blockhash=await context.chain.latest_blockhash(),
    )


def sign(connection: Connection, context: Context, session: SessionRecord, scene: Scene) -> Refusal | None:
    """Sign and store the settlement of a closing session, or return what is in its way.

    Raises:
        ChainUnavailableError: nothing is signed for the account now.
    """
    account = _account(connection, session.account_id)
    if account.stopped_us is not None:
        raise ChainUnavailableError("nothing is signed for the account")
    legs = settlement(
        cap_micro=session.cap,
        running_total_micro=session.running_total,
        escrow_micro=scene.escrow.amount_micro,
    )
    refusal = _obstacle(session, legs, scene)
    if refusal is not None:
        return refusal
    signed = escrow.settle_escrow(
        context.signer,
        scene.blockhash,
        usdc_mint=context.chain.usdc_mint,
        account_index=account.key_index,
        session_id=session.session_id,
        number=session.settlements + 1,
        payee=session.recipient_token_account,
        payee_micro=legs.settled_micro,
        source=account.usdc_token_account,
        source_micro=legs.account_leg_micro,
    )
    until_us = real_now_us() + LEASE_US
    settlements.sign_settlement(
        connection, session.session_id, signed, deposited=legs.deposited_micro, until_us=until_us
    )
    return None


def _obstacle(session: SessionRecord, legs: Legs, scene: Scene) -> Refusal | None:
    """Return what keeps the chain from settling, as far as a look tells; nobody is asked who gets nothing."""
    sides = (
        ("escrow's", session.escrow_token_account, scene.escrow, session.cap),
        ("payee's", session.recipient_token_account, scene.payee, legs.settled_micro),
        ("account's own", "", scene.source, legs.account_leg_micro),
    )
    for whose, address, held, amount_micro in sides:
        if amount_micro and (held is None or held.is_frozen):
            state = "does not exist any more" if held is None else "is frozen"
            named = f" {address}" if address else ""
            return Refusal(
                code=ErrorCode.TRANSFER_FAILED,
                message=f"The {whose} token account{named} {state}, so that the session cannot be settled; "
                "nothing was moved, and the money is safe in the escrow. Close the session again once that "
                "has changed.",
            )
    return None


def _put_off(connection: Connection, context: Context, session: SessionRecord, refusal: Refusal) -> None:
    settlements.put_off(
        connection,
        session.session_id,
        closes_us=context.clock.now_us() + retry_us(session.put_offs),
        error=refusal.code.value,
        message=refusal.message,
    )


def _current(connection: Connection, session_id: str) -> SessionRecord:
    record = store.session(connection, session_id)
    assert record is not None  # noqa: S101 - sessions are never deleted
    return record


def _account(connection: Connection, account_id: str) -> AccountRecord:
    record = account_store.account(connection, account_id)
    assert record is not None  # noqa: S101 - accounts are never deleted
    return record
