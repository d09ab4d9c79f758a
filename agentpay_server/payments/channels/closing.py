"""Closing channels: the header for the seller, the steps of the forced close, and the channel's end.

A caller's close hands out the highest voucher, for the seller to settle. If the chain does not show within
60 seconds that the seller has sealed the channel, or if there is no voucher, the service closes it by force.
That needs the seller for nothing: a request on chain, then, after the grace period, one transaction that
seals the channel and pays it out. The treasury pays its fees.

Each step is decided from what the chain shows at that moment, so it may be repeated after a crash, by any
server. The settled amount is the part that did not return to the account in the transaction that paid the
channel out.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from attrs import evolve
from solders.transaction import VersionedTransaction

from agentpay.contract.errors import ErrorCode
from agentpay.contract.sessions import CLOSE_SESSION, ClosingReason, Session, SessionStatus
from agentpay_server.chain.channels.codecs import PROGRAM, ChannelAccount, OnchainStatus
from agentpay_server.chain.protocol import Blockhash, ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import SessionRecord
from agentpay_server.engine.handlers import Ending, Handler, Resigning, pending_transaction
from agentpay_server.engine.policy import Refusal
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import audit, entries
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.accounts import ACCOUNTS
from agentpay_server.ledger.apply import Outcome, Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US
from agentpay_server.ledger.transactions import Kind, State, StoredTransaction
from agentpay_server.payments.channels import store as channel_store
from agentpay_server.payments.channels import upto
from agentpay_server.payments.channels.on_chain import (
    SEAL_US,
    Act,
    ChannelPayout,
    ChannelsOnChain,
    Due,
    is_beyond_books,
    is_ended_by_seller,
    next_act,
    read_found,
)
from agentpay_server.payments.channels.signing import opening_of, pay_out, request_close, voucher_header
from agentpay_server.payments.channels.store import CHANNELS, Channel
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.pace import Every
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import outcomes, payouts
from agentpay_server.sessions.outcomes import limits_of, report, to_response
from agentpay_server.sessions.rules import check_transition, closed_by, retry_us
from agentpay_server.sessions.store import IS_CLOSING, IS_OPEN, SESSIONS
from agentpay_server.transfers.responses import report as report_transfer
from agentpay_server.transfers.store import TRANSFERS

_AGAIN_US: Final = 2 * SECOND_US
"""When to poll again for a payout that is not irreversible yet."""

_UNSETTLED: Final = (SessionStatus.OPEN, SessionStatus.CLOSING)
_FROZEN: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The account's token account is frozen or missing, so what the channel returns would be lost: "
    "the payout waits.",
)


class ChannelClosing:
    """Closes channels, and posts their end."""

    def __init__(self, context: Context, driver: Settlement) -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        self._driver = driver
        self._on_chain = ChannelsOnChain(context)

    async def close(self, principal: Principal, session: SessionRecord) -> Session:
        """Begin to close an open session, and return it with the header to present to its seller.

        Closing again returns the header again, until the session is settled.

        Raises:
            Problem: `service_unavailable` while the clocks differ.
        """
        failpoint(Operation.CHANNEL_CLOSE, Step.BEGUN)
        session_id = session.session_id
        if session.status == SessionStatus.OPEN:
            await self._database.run(claim, self._context, session_id, principal)
            self._context.wakeup.set()
            failpoint(Operation.CHANNEL_CLOSE, Step.CLAIMED)
        channel = await self._database.read(channel_store.of_session, session_id)
        session, header = channel.session, None
        if session.status == SessionStatus.CLOSING and session.running_total:
            account = await self._database.read(ACCOUNTS.existing, session.account_id)
            signer, total_micro = self._context.signer, session.running_total
            header = voucher_header(signer, channel, account, total_micro, is_closing=True)
        return to_response(session, header=header)

    async def compare(self, session_id: str) -> bool:
        """Compare a session's channel with the books; return False while it is opening.

        A channel that its seller has ended takes no voucher any more, and its payout is posted.

        Raises:
            ChainUnreachableError: the chain does not show yet what the seller has settled, or shows more than
                its transactions prove.
        """
        channel = await self._database.read(channel_store.of_session, session_id)
        if channel.session.status not in _UNSETTLED:
            return channel.session.status != SessionStatus.OPENING
        if not self._context.clock_check.agrees():
            raise ChainUnreachableError("this server's clock differs from its database's")
        found, is_proved = await self._on_chain.compared(channel)
        if not is_proved:
            raise ChainUnreachableError("a channel shows more as settled than its transactions")
        if channel.session.status == SessionStatus.OPEN:
            is_closing = await self._claim_due(channel, found)
            if found is None and not is_closing:
                raise ChainUnreachableError("the payout of a channel is not irreversible yet")
        if found is None:
            if await self._database.read(chain_transactions.pending, Kind.CHANNEL_CLOSE, session_id):
                raise ChainUnreachableError("a transaction that closes a channel is in flight")
            await self._post(channel)
        return True

    async def advance(self, session_id: str) -> None:
        """Do what is due for a session: close it by force, or post what the chain shows.

        Raises:
            Problem: `service_unavailable` while the clocks differ.
        """
        try:
            while await self._advanced(session_id):
                pass
        except ChainUnreachableError:
            await self._database.run(self._wait, session_id, self._context.clock.now_us() + _AGAIN_US)

    # --- Steps

    async def _advanced(self, session_id: str) -> bool:
        """Take one step; return whether another one may be due."""
        channel = await self._database.read(channel_store.of_session, session_id)
        if channel.session.status not in _UNSETTLED:
            return False
        pending = await self._database.read(chain_transactions.pending, Kind.CHANNEL_CLOSE, session_id)
        if pending is not None:
            await self._driver.drive(pending)
            return True
        found, _ = await self._on_chain.compared(channel)
        if channel.session.status == SessionStatus.OPEN:
            return await self._claim_due(channel, found)
        due = next_act(found, force_us=channel.record.force_us or 0)
        if due.act is Act.POST:
            await self._post(channel)
            return False
        if due.at_us > self._context.clock.now_us():
            await self._database.run(self._wait, session_id, due.at_us)
            return False
        return await self._sign_and_send(channel, due)

    async def _claim_due(self, channel: Channel, found: ChannelAccount | None) -> bool:
        is_ended = await self._on_chain.is_ended(channel, found)
        session_id = channel.session.session_id
        return await self._database.run(claim_due, self._context, session_id, is_ended=is_ended)

    async def _sign_and_send(self, channel: Channel, due: Due) -> bool:
        session = channel.session
        account = await self._database.read(ACCOUNTS.existing, session.account_id)
        if due.act is not Act.REQUEST:
            (held,) = await self._chain.token_accounts([account.usdc_token_account])
            if held is None or held.is_frozen:
                reason = ClosingReason.ACCOUNT_MISSING if held is None else ClosingReason.ACCOUNT_FROZEN
                await self._database.run(self._postpone, session.session_id, reason)
                return False
        blockhash = await self._chain.latest_blockhash()
        tx = await self._database.run(self._sign, session.session_id, due, blockhash)
        if tx is None:
            return False
        await self._driver.drive(tx)
        return True

    async def _post(self, channel: Channel) -> None:
        payout = await self._on_chain.payout(channel)
        failpoint(Operation.CHANNEL_CLOSE, Step.LANDED)
        posted = await self._database.run(post, self._context, channel.session.session_id, payout)
        failpoint(Operation.CHANNEL_CLOSE, Step.POSTED)
        if posted is None:
            return
        self._context.wakeup.set()
        if upto.is_upto(posted):
            payment = await self._database.read(TRANSFERS.existing, posted.session_id)
            report_transfer(self._context, payment, spent_us=posted.created_us)
        else:
            report(posted)
        if payout.is_beyond(upto.handed_out_micro(posted)):
            payouts.report(posted, payout.signature)

    # --- Units of work

    def _wait(self, connection: Connection, session_id: str, until_us: int) -> None:
        self._context.clock_check.require()
        SESSIONS.change(connection, session_id, IS_CLOSING, closes_us=until_us)

    def _postpone(self, connection: Connection, session_id: str, reason: ClosingReason) -> None:
        now_us = self._context.clock.now_us()
        self._context.clock_check.require(now_us)
        session = SESSIONS.existing(connection, session_id, lock=True)
        if session.status == SessionStatus.CLOSING:
            postponed(session, _FROZEN, reason, now_us).write(connection)

    def _sign(
        self, connection: Connection, session_id: str, due: Due, blockhash: Blockhash
    ) -> StoredTransaction | None:
        unit = Unit.begin(connection, self._context)
        channel = channel_store.of_session(connection, session_id, lock=True)
        if channel.session.status != SessionStatus.CLOSING:
            return None
        if chain_transactions.pending(connection, Kind.CHANNEL_CLOSE, session_id) is not None:
            return None
        account = ACCOUNTS.existing(connection, channel.session.account_id)
        opening = opening_of(self._context, channel, account)
        signer = self._context.signer
        if due.act is Act.REQUEST:
            signed = request_close(signer, blockhash, opening, account_index=account.key_index)
        else:
            cluster = self._chain.cluster_name
            signed = pay_out(signer, blockhash, opening, cluster=cluster, seals=due.act is Act.SEAL)
        tx = pending_transaction(
            signed,
            kind=Kind.CHANNEL_CLOSE,
            subject_id=session_id,
            account_id=account.account_id,
            detail=json.dumps({"act": due.act.value}),
            by_operator=channel.session.by_operator,
            now_us=unit.now_us,
        )
        chain_transactions.insert_following(connection, tx)
        SESSIONS.changed(
            connection,
            session_id,
            IS_CLOSING,
            add={"settlements": 1},
            error=None,
            message=None,
            stuck_reason=None,
            closes_us=None,
        )
        return tx


def claim(connection: Connection, context: Context, session_id: str, principal: Principal) -> None:
    """Claim a session that a caller closes, if it is still open.

    Raises:
        Problem: `service_unavailable` while the clocks differ.
    """
    now_us = context.clock.now_us()
    context.clock_check.require(now_us)
    channel = channel_store.of_session(connection, session_id, lock=True)
    # Without a voucher, the seller has nothing to settle.
    force_us = now_us + (SEAL_US if channel.session.running_total else 0)
    claimed = to_closing(connection, channel, due_us=force_us, force_us=force_us)
    if claimed is not None:
        _record(connection, claimed, principal, now_us)


def claim_due(connection: Connection, context: Context, session_id: str, *, is_ended: bool) -> bool:
    """Claim a session that its seller has ended, or whose time is over; return whether it is closing.

    Raises:
        Problem: `service_unavailable` while the clocks differ.
    """
    now_us = context.clock.now_us()
    # A wrong clock would end sessions early, and other servers would wait for a time in the future.
    context.clock_check.require(now_us)
    channel = channel_store.of_session(connection, session_id, lock=True)
    session = channel.session
    if session.status != SessionStatus.OPEN or session.opened_us is None:
        return session.status == SessionStatus.CLOSING
    reason: ClosingReason | None
    due_us = force_us = now_us
    if is_ended:
        reason, force_us = ClosingReason.PAYEE_SEALED, now_us + SEAL_US
    elif session.closes_us is None or session.closes_us > now_us:
        # A voucher has extended the time limit.
        return False
    elif upto.is_upto(session):
        reason, due_us = None, upto.unsettled_until_us(channel)
        force_us = due_us
        if now_us < force_us:
            SESSIONS.change(connection, session, IS_OPEN, closes_us=force_us)
            return False
    else:
        reason = closed_by(limits_of(context), opened_us=session.opened_us, now_us=now_us)
    claimed = to_closing(connection, channel, due_us=due_us, force_us=force_us, reason=reason)
    if claimed is not None:
        _record(connection, claimed, audit.ServerActor(session.operator_id), now_us)
    return True


def to_closing(
    connection: Connection,
    channel: Channel,
    *,
    due_us: int,
    force_us: int,
    reason: ClosingReason | None = None,
) -> Channel | None:
    """Return a channel that is closing from now on; None if it was not open.

    Args:
        connection: of the unit of work, which has locked the channel.
        channel: the channel.
        due_us: when to look at the chain next.
        force_us: from when on the service acts in place of the seller.
        reason: why it is closed without its caller's request.
    """
    session = SESSIONS.change(
        connection,
        channel.session,
        IS_OPEN,
        status=SessionStatus.CLOSING.value,
        closed_by=None if reason is None else reason.value,
        closes_us=due_us,
    )
    if session is None:
        return None
    check_transition(SessionStatus.OPEN, SessionStatus.CLOSING)
    return Channel(session=session, record=CHANNELS.changed(connection, channel.record, force_us=force_us))


def _record(
    connection: Connection, claimed: Channel, actor: Principal | audit.ServerActor, now_us: int
) -> None:
    session = claimed.session
    if upto.is_upto(session):
        # Its payment stays submitted.
        return
    audit.record(
        connection,
        actor,
        action=CLOSE_SESSION.name,
        subject=session.session_id,
        now_us=now_us,
        before={"status": SessionStatus.OPEN.value},
        after={
            "status": session.status,
            "cap_usdc": audit.usdc(session.cap),
            "running_total_usdc": audit.usdc(session.running_total),
        },
    )


_REFUSED: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The chain refused a transaction that closes the channel; the service will sign another later.",
)


def post(
    connection: Connection, context: Context, session_id: str, payout: ChannelPayout
) -> SessionRecord | None:
    """Post the payout of a closing channel; return its session, or None if another server was faster.

    Raises:
        ChainUnreachableError: the clocks differ.
    """
    unit = Unit.begin(connection, context)
    session = SESSIONS.existing(connection, session_id)
    ACCOUNTS.existing(connection, session.account_id, lock=True)
    session = SESSIONS.existing(connection, session_id, lock=True)
    if session.status != SessionStatus.CLOSING:
        return None
    tx = _row_of(connection, session, payout.signature, unit.now_us)
    check_transition(SessionStatus.CLOSING, SessionStatus.SETTLED)
    has_paid = session.running_total > 0 or payout.settled_micro > 0
    change = SESSIONS.to_change(
        session,
        IS_CLOSING,
        status=SessionStatus.SETTLED.value,
        settled=payout.settled_micro,
        settlement_tx_signature=payout.signature,
        settled_us=unit.now_us,
        key_expires_us=None if has_paid else unit.now_us + KEY_LIFETIME_US,
        closes_us=None,
        error=None,
        message=None,
        stuck_reason=None,
    )
    # With another channel of the account that it pays out, or before: this one may have been empty.
    is_posted = entries.is_deposit_posted(connection, session.account_id, payout.signature)
    payment = None
    if upto.is_upto(session):
        payment = upto.settled(
            TRANSFERS.existing(connection, session_id, lock=True),
            paid_micro=payout.settled_micro,
            tx_signature=payout.signature,
            now_us=unit.now_us,
        )
    outcome = outcomes.settled(
        change,
        tx,
        unit.now_us,
        paid=payout.settled_micro,
        deposited=0 if is_posted else payout.deposited_micro,
        shown=None if payment is None else payment[1:],
    )
    if payment is not None:
        outcome = evolve(outcome, changes=payment[:1])
    if payout.is_beyond(upto.handed_out_micro(session)):
        outcome = payouts.suspending(outcome, session, payout.signature, settled_micro=payout.settled_micro)
    return apply(unit, outcome, tx)


def _row_of(connection: Connection, session: SessionRecord, signature: str, now_us: int) -> StoredTransaction:
    """Return the row of a payout: the service's own, or a new one for the seller's."""
    for tx in chain_transactions.of_subject(connection, signature, session.session_id):
        return tx
    tx = StoredTransaction(
        signature=signature,
        kind=Kind.CHANNEL_CLOSE,
        subject_id=session.session_id,
        account_id=session.account_id,
        state=State.FINALIZED,
        raw=None,
        last_valid_block_height=0,
        created_us=now_us,
        ended_us=now_us,
        by_operator=session.by_operator,
    )
    chain_transactions.insert_transaction(connection, tx)
    return tx


def postponed(
    session: SessionRecord, refusal: Refusal, reason: ClosingReason, now_us: int
) -> Change[SessionRecord]:
    """Return that a closing session is polled again later, and why."""
    return SESSIONS.to_change(
        session,
        IS_CLOSING,
        add={"postponements": 1},
        error=refusal.code.value,
        message=refusal.message,
        stuck_reason=reason.value,
        closes_us=now_us + retry_us(session.postponements),
    )


class ChannelCloseHandler(Handler[SessionRecord]):
    """Says what the outcomes of the service's own transactions that close a channel change.

    By themselves they move nothing in the books: `ChannelClosing` polls the chain again.
    """

    kind = Kind.CHANNEL_CLOSE
    # It only returns money to the account, also to one that may not sign.
    is_replaced = False
    # The subject is read again under the account's lock: another server may have settled the session.
    needs_accounts = True

    def load(self, connection: Connection, subject_id: str, *, lock: bool = False) -> SessionRecord:
        """Return the session."""
        return SESSIONS.existing(connection, subject_id, lock=lock)

    def newest_signature(self, subject: SessionRecord) -> str | None:  # noqa: ARG002
        """Return None: what closes a channel has no replacement."""
        return None

    def settled(self, ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
        """Look at the chain again. The fees of a session that pays nothing count at its end."""
        fee = ending.tx.fee if _is_request(ending.tx) else 0
        return _again(ending, add={"opening_fee": fee})

    def failed(self, ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
        """Look at the chain again, later: the seller may have been faster."""
        session = ending.subject
        if session.status != SessionStatus.CLOSING:
            return outcomes.outcome_of(session)
        reason = ClosingReason.SETTLEMENT_REFUSED
        return outcomes.outcome_of(postponed(session, _REFUSED, reason, ending.now_us))

    def sign_replacement(self, resigning: Resigning[SessionRecord]) -> None:
        """Never called: what is due may be another step by now."""
        raise NotImplementedError

    def dropped(self, ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
        """Look at the chain again."""
        return _again(ending)

    def landed_late(self, ending: Ending[SessionRecord]) -> Outcome[SessionRecord]:
        """Look at the chain again."""
        return _again(ending)


def _again(ending: Ending[SessionRecord], add: Mapping[str, int] | None = None) -> Outcome[SessionRecord]:
    session = ending.subject
    if session.status != SessionStatus.CLOSING:
        return outcomes.outcome_of(session)
    return outcomes.outcome_of(
        SESSIONS.to_change(session, IS_CLOSING, add=add or {}, closes_us=ending.now_us)
    )


def _is_request(tx: StoredTransaction) -> bool:
    return bool(json.loads(tx.detail or "{}").get("act") == Act.REQUEST.value)


_BATCH: Final = 100
"""How many accounts one call to the chain reads."""

_LOOK_EVERY_SECONDS: Final = 5.0


class ChannelWatch:
    """Posts what sellers do to channels."""

    def __init__(self, context: Context, closing: ChannelClosing) -> None:
        self._context = context
        self._database = context.database
        self._closing = closing
        self._every = Every(_LOOK_EVERY_SECONDS)

    def executed(self, transaction: VersionedTransaction) -> None:
        """Check the channels after a transaction of the embedded chain, if it may change one."""
        if PROGRAM in transaction.message.account_keys:
            self._context.tasks.start(self.poll_once())

    async def poll(self) -> bool:
        """Check every unsettled channel; return whether any has changed."""
        seq, is_any_changed = 0, False
        while page := await self._database.read(channel_store.unsettled_after, seq, _BATCH):
            for channel in await self._changed(page):
                is_any_changed = True
                # Another server does it while this one's clock is wrong.
                with suppress(Problem):
                    await self._closing.advance(channel.session.session_id)
            seq = page[-1].record.seq
        return is_any_changed

    async def next_due_us(self) -> int | None:
        """Return when to check next; None on a manual clock before then, since advancing it does not help."""
        return self._every.due_us(self._context.clock)

    async def run_due(self) -> bool:
        """Check every channel, if it is time."""
        if not self._every.is_due:
            return False
        try:
            with suppress(ChainUnreachableError):
                return await self.poll()
            return False
        finally:
            self._every.restart()

    async def poll_once(self) -> None:
        """Check every unsettled channel, unless the chain does not respond; the schedule repeats it."""
        with suppress(ChainUnreachableError):
            await self.poll()

    async def _changed(self, page: Sequence[Channel]) -> list[Channel]:
        """Return the channels whose state on chain calls for something now."""
        addresses = [channel.session.channel or "" for channel in page]
        accounts = await self._context.chain.account_data(addresses)
        changed = []
        for channel, account in zip(page, accounts, strict=True):
            found = read_found(account)
            is_open = channel.session.status == SessionStatus.OPEN
            is_gone = found is None or found.status is OnchainStatus.DISTRIBUTED
            is_beyond = found is not None and is_beyond_books(channel.session, found)
            if is_gone or is_beyond or (is_open and is_ended_by_seller(found)):
                changed.append(channel)
        return changed
