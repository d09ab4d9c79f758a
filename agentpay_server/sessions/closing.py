"""Closing a session: claimed in one commit, its settlement signed in the next, then driven to its outcome.

A closing session has either a settlement in flight, which the engine drives, or a time at which the
settlement must be signed (`closes_us`). Once claimed it accepts no charges, so all accepted charges are
settled. If the chain does not respond, or its state has changed since the settlement was signed (a third
party paid into the escrow, the payee's token account was closed), the chain is read again. If a token account
is frozen, the session stays `closing`, with the money in its escrow and the reason stored. The next close
request then retries at once, the scheduler after a growing interval.

Sessions close automatically at their idle limit or lifetime, by the server's clock, with the same settlement.
"""

import asyncio
import logging
import math
from functools import partial
from typing import Any, Final, Protocol

from agentpay.contract.ext.sessions import CLOSE_SESSION, ClosingReason, Session, SessionStatus
from agentpay_server.chain import transactions
from agentpay_server.chain.protocol import Blockhash, ChainUnreachableError, FailureReason
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import AccountRecord, SessionRecord
from agentpay_server.engine.broadcast import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from agentpay_server.engine.movement import (
    Ending,
    Movement,
    Replacement,
    Resigning,
    pending_transaction,
)
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.apply import Outcome, Unit
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.logs import log
from agentpay_server.platform.principals import Principal
from agentpay_server.platform.scheduler import Backoff
from agentpay_server.platform.tasks import SingleFlight, all_ended
from agentpay_server.sessions import outcomes, store
from agentpay_server.sessions.outcomes import limits_of, report
from agentpay_server.sessions.payouts import (
    REFUSED_BY_CHAIN,
    TOO_MANY_CREATED,
    Obstacle,
    PayoutState,
    obstacle,
    read_payout,
)
from agentpay_server.sessions.rules import (
    MAX_PAYEES_CREATED,
    PAYEES_CREATED_WITHIN_US,
    check_transition,
    closed_by,
    retry_us,
    settlement,
)


class Channels(Protocol):
    """Closes the channels of sessions over HTTP 402."""

    async def close(self, principal: Principal, session: SessionRecord) -> Session:
        """Begin to close an open session, and return it with the header to present to its seller."""
        ...

    async def advance(self, owner_id: str) -> None:
        """Do what is due for a channel, of a session or of a payment, given what the chain shows of it."""
        ...


# Failures that a change on chain explains: read the chain again and sign another settlement.
_CHANGED_SINCE: Final = {FailureReason.ACCOUNT_MISSING, FailureReason.ACCOUNT_FROZEN}

_CLAIM_US: Final = 5 * SECOND_US
"""How long other processes leave a claimed session to the process that has claimed it."""

logger: logging.Logger = logging.getLogger(__name__)


class Closing:
    """Claims sessions, signs their settlement and drives it."""

    def __init__(self, context: Context, driver: Settlement) -> None:
        self._context = context
        self._database = context.database
        self._driver = driver

    async def closed(
        self, session: SessionRecord, deadline: float, *, principal: Principal | None = None
    ) -> SessionRecord:
        """Close an open or closing session; return its state after that, or at the deadline.

        Args:
            session: the session, as just read.
            deadline: when to stop waiting, in the event loop's time.
            principal: the caller; None for an automatic close or recovery.

        Raises:
            Problem: `service_unavailable` for a caller while the clocks differ.
        """
        if principal is not None and session.status != SessionStatus.SETTLED:
            self._context.clock_check.require()
        failpoint(Operation.SESSION_CLOSE, Step.BEGUN)
        session = await self._claimed(session, principal)
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, at_once=True)
        while session.status == SessionStatus.CLOSING and session.error is None:
            if session.closes_us is None:
                settled = await self._driver.finish(Operation.SESSION_CLOSE, session.session_id, deadline)
            else:
                if backoff.seconds and self._is_over(deadline):
                    return session
                await asyncio.sleep(backoff.seconds)
                backoff.lengthen()
                session, tx = await self._signed(session)
                if tx is None:
                    continue
                settled = await self._driver.settle(tx, session, is_new=True, deadline=deadline)
            if settled is not None:
                session = settled
                continue
            session = await self._database.read(store.SESSIONS.existing, session.session_id)
            if self._is_over(deadline):
                return session
        return session

    def _is_over(self, deadline: float) -> bool:
        """Return whether the caller must get a response now; the scheduler continues."""
        return asyncio.get_running_loop().time() >= deadline or self._context.tasks.closing.done()

    async def _claimed(self, session: SessionRecord, principal: Principal | None) -> SessionRecord:
        """Return a session; claim it first if it is open, or closing and postponed."""
        is_postponed = session.status == SessionStatus.CLOSING and session.error is not None
        if session.status != SessionStatus.OPEN and not is_postponed:
            return session
        claimed = await self._database.run(self._claim, session, principal)
        failpoint(Operation.SESSION_CLOSE, Step.CLAIMED)
        return claimed

    def _claim(
        self, connection: Connection, session: SessionRecord, principal: Principal | None
    ) -> SessionRecord:
        session_id, now_us, reason = session.session_id, self._context.clock.now_us(), None
        # Other servers would wait for a time in the future.
        self._context.clock_check.require(now_us)
        sign_us = takeover_us(self._context, now_us)
        if principal is None and session.opened_us is not None:
            reason = closed_by(limits_of(self._context), opened_us=session.opened_us, now_us=now_us)
        claimed = claim(
            connection,
            session_id,
            actor=principal or audit.ServerActor(session.operator_id),
            now_us=now_us,
            closes_us=sign_us,
            reason=reason,
            # A charge may have extended the time limit since the session was found due.
            if_due=principal is None,
        )
        # If it is not open, it is closing, and perhaps postponed, or another server was faster.
        retried = claimed or store.SESSIONS.change(
            connection,
            session_id,
            store.IS_CLOSING,
            store.IS_UNSIGNED,
            error=None,
            message=None,
            closes_us=sign_us,
        )
        return retried or store.SESSIONS.existing(connection, session_id)

    async def _signed(self, session: SessionRecord) -> tuple[SessionRecord, StoredTransaction | None]:
        """Sign the settlement of a claimed session, if the chain allows it.

        Returns:
            The current session, and its settlement if it was signed here.
        """
        chain = self._context.chain
        try:
            state = await read_payout(self._context, session)
            blockhash = await chain.latest_blockhash()
            closing, tx, is_ours = await self._database.run(self._sign, session, state, blockhash)
        except ChainUnreachableError:
            return await self._database.read(store.SESSIONS.existing, session.session_id), None
        if is_ours and closing.error is not None:
            self._context.wakeup.set()
            report(closing)
        if tx is not None and closing.payee_created_us is not None:
            log(
                logger,
                logging.WARNING,
                "session.payee_recreated",
                session_id=closing.session_id,
                account_id=closing.account_id,
                usdc_token_account=state.payee.token_account,
            )
        return closing, tx

    def _sign(
        self, connection: Connection, session: SessionRecord, state: PayoutState, blockhash: Blockhash
    ) -> tuple[SessionRecord, StoredTransaction | None, bool]:
        """Return the session, its settlement if signed now, and whether this call changed anything."""
        # The account comes first, as in every unit of work. If the settlement may create a token account, it
        # is locked: two concurrent closings must not both pass that check.
        account = account_store.ACCOUNTS.existing(
            connection, session.account_id, lock=state.payee.new_owner is not None
        )
        session = store.SESSIONS.existing(connection, session.session_id, lock=True)
        if session.status != SessionStatus.CLOSING or session.closes_us is None:
            return session, None, False
        unit = Unit.begin(connection, self._context)
        found = sign(unit, session, account, state, blockhash)
        if isinstance(found, Obstacle):
            return _postponed(session, found, unit.now_us).write(connection), None, True
        tx = pending_transaction(
            found.signed,
            kind=Operation.SESSION_CLOSE,
            subject_id=session.session_id,
            account_id=session.account_id,
            credits_account_id=session.recipient_account_id,
            pays_out=True,
            detail=found.detail,
            rent=found.rent,
            budgeted=found.rent,
            by_operator=session.by_operator,
            now_us=unit.now_us,
        )
        signed = found.change.write(connection)
        chain_transactions.insert_following(connection, tx)
        return signed, tx, True


def _accounts(tx: StoredTransaction, subject: SessionRecord) -> tuple[str, ...]:
    """Return both sides."""
    payee = subject.recipient_account_id
    return (tx.account_id,) if payee is None else (tx.account_id, payee)


def _landed(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    """Return the outcome of a session that is settled on chain."""
    session = ending.subject
    return outcomes.settled(
        session,
        ending.tx,
        ending.now_us,
        escrow=outcomes.escrow_of(session),
        paid=session.running_total,
        deposited=outcomes.deposited_micro(ending.tx),
    )


def _failed(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    """Return the outcome of a settlement that the chain rejected: it is to be settled later."""
    session, failure = ending.subject, ending.failure
    assert failure is not None  # noqa: S101 - it has failed
    # Reading the chain again shows the reason and the alternative. Do so only once: a payee that keeps
    # opening and closing its account would make the treasury pay a fee each time.
    may_have_alternative = failure.reason in _CHANGED_SINCE and session.settlements == 1
    if failure.reason is FailureReason.ACCOUNT_NOT_EMPTY or may_have_alternative:
        sign_us = takeover_us(ending.context, ending.now_us)
        return outcomes.outcome_of(_unsigned(session, sign_us=sign_us))
    return outcomes.outcome_of(_postponed(session, REFUSED_BY_CHAIN, ending.now_us))


def _resign(resigning: Resigning[SessionRecord]) -> Replacement | Obstacle:
    """Sign a replacement, whatever the current policy is."""
    unit = resigning.unit
    session = store.SESSIONS.existing(unit.connection, resigning.subject.session_id, lock=True)
    return sign(unit, session, resigning.source, resigning.prepared, resigning.blockhash)


def _expired(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    """Postpone the settlement of a session that cannot be settled now."""
    return outcomes.outcome_of(_postponed(ending.subject, ending.reason, ending.now_us))


def _late(ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
    """Return the outcome of a settlement that landed after it was considered expired.

    An escrow cannot be settled twice: of two settlements one lands, and the other fails.
    """
    is_closing = ending.subject.status == SessionStatus.CLOSING
    return _landed(ending) if is_closing else outcomes.outcome_of(ending.subject)


SESSION_SETTLE: Final[Movement[SessionRecord]] = Movement(
    kind=Operation.SESSION_CLOSE,
    load=store.SESSIONS.existing,
    newest=lambda session: session.settlement_tx_signature,
    landed=_landed,
    failed=_failed,
    expired=_expired,
    late=_late,
    resign=_resign,
    prepare=read_payout,
    accounts=_accounts,
    report=outcomes.report_ending,
)
"""The transaction that settles a session."""


def claim(
    connection: Connection,
    session_id: str,
    *,
    actor: Principal | audit.ServerActor | None,
    now_us: int,
    closes_us: int | None,
    reason: ClosingReason | None = None,
    if_due: bool = False,
) -> SessionRecord | None:
    """Claim an open session for its close: from then on nothing is drawn; return None if it is not open.

    Its settlement is signed at `closes_us`. Without a caller's request there is a `reason`. Without an
    `actor`, the audit record of the cause says who closes it. With `if_due` it must be due too.
    """
    conditions = (store.IS_OPEN, store.IS_DUE) if if_due else (store.IS_OPEN,)
    session = store.SESSIONS.change(
        connection,
        session_id,
        *conditions,
        given={"now_us": now_us} if if_due else {},
        status=SessionStatus.CLOSING.value,
        closed_by=None if reason is None else reason.value,
        closes_us=closes_us,
    )
    if session is None:
        return None
    check_transition(SessionStatus.OPEN, SessionStatus.CLOSING)
    if actor is not None:
        # Nothing more is drawn, so these amounts are final; the seller of a channel may settle less.
        total = audit.usdc(session.running_total)
        amounts = {"running_total_usdc": total}
        if session.channel is None:
            returned = audit.usdc(session.cap - session.running_total)
            amounts = {"settled_usdc": total, "returned_usdc": returned}
        audit.record(
            connection,
            actor,
            action=CLOSE_SESSION.name,
            subject=session_id,
            now_us=now_us,
            before={"status": SessionStatus.OPEN.value},
            after={"status": session.status, "cap_usdc": audit.usdc(session.cap), **amounts},
        )
    return session


def takeover_us(context: Context, now_us: int) -> int:
    """Return when other processes sign the settlement of a closing session, unless this one does first.

    A manual clock belongs to one process: its next advance signs it.
    """
    return now_us + (0 if context.clock.is_manual else _CLAIM_US)


def sign(
    unit: Unit, session: SessionRecord, account: AccountRecord, state: PayoutState, blockhash: Blockhash
) -> Replacement | Obstacle:
    """Sign the settlement of a closing session, or find the obstacle.

    `account` is locked if the settlement may create a token account.

    Raises:
        ChainUnreachableError: signing is suspended for the account.
    """
    if account.suspended_us is not None:
        raise ChainUnreachableError("the account is blocked: nothing is signed for it")
    legs = settlement(
        cap_micro=session.cap,
        running_total_micro=session.running_total,
        escrow_micro=state.escrow.amount_micro,
    )
    creates = legs.settled_micro > 0 and state.payee.new_owner is not None
    found = obstacle(session, legs, state)
    if found is None and creates and not _may_create(unit.connection, account, unit.now_us):
        found = TOO_MANY_CREATED
    if found is not None:
        return found
    signed = transactions.settle_escrow(
        unit.context.signer,
        blockhash,
        usdc_mint=unit.context.chain.usdc_mint,
        account_index=account.key_index,
        session_id=session.session_id,
        number=session.settlements + 1,
        payee=state.payee.token_account,
        payee_micro=legs.settled_micro,
        new_payee_owner=state.payee.new_owner,
        source=account.usdc_token_account,
        source_micro=legs.account_leg_micro,
    )
    change = store.SESSIONS.to_change(
        session,
        store.IS_CLOSING,
        add={"settlements": 1},
        error=None,
        message=None,
        stuck_reason=None,
        settlement_tx_signature=signed.signature,
        payee_created_us=unit.now_us if creates else None,
        # Another process may have postponed it meanwhile.
        closes_us=None,
    )
    rent = state.payee.rent if creates else 0
    detail = outcomes.detail_of(legs.deposited_micro)
    return Replacement(signed=signed, change=change, detail=detail, rent=rent, budgeted=rent)


def _may_create(connection: Connection, account: AccountRecord, now_us: int) -> bool:
    after_us = now_us - PAYEES_CREATED_WITHIN_US
    created = store.payees_created(connection, account.account_id, after_us=after_us)
    return created < MAX_PAYEES_CREATED


def _postponed(session: SessionRecord, found: Obstacle, now_us: int) -> Change[SessionRecord]:
    return _unsigned(
        session,
        sign_us=now_us + retry_us(session.postponements),
        add={"postponements": 1},
        error=found.refusal.code.value,
        message=found.refusal.message,
        stuck_reason=found.reason.value,
    )


def _unsigned(
    session: SessionRecord,
    *,
    sign_us: int,
    **values: Any,  # noqa: ANN401
) -> Change[SessionRecord]:
    """Return the change that another settlement must be signed, from `sign_us` on."""
    return store.SESSIONS.to_change(
        session,
        store.IS_CLOSING,
        settlement_tx_signature=None,
        payee_created_us=None,
        closes_us=sign_us,
        **values,
    )


_BATCH: Final = 100
_WAIT_SECONDS: Final = 5.0
"""How long a run waits for an unresponsive chain; running closings continue."""


class SessionSchedule:
    """Closes sessions at their time limits, settles postponed ones, and looks at channels when due."""

    def __init__(self, context: Context, closing: Closing, channels: Channels) -> None:
        self._context = context
        self._closing = closing
        self._channels = channels
        self._closes: SingleFlight[str, None] = SingleFlight(context.tasks)

    async def resume(self) -> None:
        """Settle sessions that an earlier process has claimed but not signed, without waiting."""
        for session_id in await self._context.database.read(store.claimed):
            self._close(session_id)

    async def next_due_us(self) -> int | None:
        """Return when the next session is due that this process is not closing already, if any."""
        due = await self._due(1)
        return due[0][1] if due else None

    async def run_due(self) -> bool:
        """Close one batch of due sessions, and wait for their outcome; raises if one of them fails."""
        closes = await self._started()
        await all_ended(closes, within_seconds=_WAIT_SECONDS)
        return bool(closes)

    async def _started(self) -> "list[asyncio.Task[Any]]":
        now_us = self._context.clock.now_us()
        return [self._close(session_id) for session_id, due_us in await self._due(_BATCH) if due_us <= now_us]

    async def _due(self, count: int) -> list[tuple[str, int]]:
        found = await self._context.database.read(store.due, count + len(self._closes))
        return [due for due in found if due[0] not in self._closes]

    async def _closed(self, session_id: str) -> None:
        session = await self._context.database.read(store.SESSIONS.get, session_id)
        if session is None or session.channel is not None:
            await self._channels.advance(session_id)
        else:
            await self._closing.closed(session, math.inf)

    def _close(self, session_id: str) -> "asyncio.Task[Any]":
        return self._closes.start(session_id, partial(self._closed, session_id))
