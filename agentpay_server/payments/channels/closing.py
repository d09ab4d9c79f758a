"""Closing channels: the header for the seller, the forced close, and the books of what the chain shows.

A caller's close hands out the highest voucher, for the seller to settle. If the chain does not show within
60 seconds that the seller has sealed the channel, or if there is no voucher, the service closes it by force.
That needs the seller for nothing: a request on chain, then, after the grace period, one transaction that
seals the channel and pays it out. The treasury pays its fees.

Each step is decided from what the chain shows at that moment, so it may be repeated after a crash, by any
server. What is settled is what did not come back to the account in the transaction that closed the escrow.
"""

import json
import logging
from collections.abc import Mapping
from typing import Final

from attrs import evolve
from solders.pubkey import Pubkey

from agentpay.contract.errors import ErrorCode
from agentpay.contract.sessions import CLOSE_SESSION, ClosingReason, Session, SessionStatus
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import Voucher
from agentpay_server.chain.custody import spending_key
from agentpay_server.chain.protocol import AccountData, Blockhash, ChainUnreachableError, Payout
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import AccountRecord, SessionRecord
from agentpay_server.engine.handlers import Ending, Handler, Resigning, pending_transaction
from agentpay_server.engine.policy import Refusal
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit, entries
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.apply import apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US
from agentpay_server.ledger.outcome import Outcome, Unit
from agentpay_server.ledger.transactions import Kind, State, StoredTransaction
from agentpay_server.payments.challenges import mpp, mpp_sessions
from agentpay_server.payments.channels import store as channel_store
from agentpay_server.payments.channels import upto
from agentpay_server.payments.channels.building import opening_of, pay_out, request_close, voucher_signature
from agentpay_server.payments.channels.rules import (
    SEAL_US,
    Act,
    Due,
    is_ended_by_seller,
    next_act,
    outcome_of,
)
from agentpay_server.payments.channels.store import CHANNELS, Channel
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.logs import log
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import outcomes, unknown_payouts
from agentpay_server.sessions.responses import limits_of, report, to_response
from agentpay_server.sessions.rules import check_transition, closed_by, retry_us
from agentpay_server.sessions.store import IS_CLOSING, IS_OPEN, SESSIONS
from agentpay_server.transfers.responses import report as report_transfer
from agentpay_server.transfers.store import TRANSFERS

_AGAIN_US: Final = 2 * SECOND_US
"""When to poll again for a payout that is not irreversible yet."""

_FROZEN: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The account's token account is frozen or missing, so what the channel returns would be lost: "
    "the payout waits.",
)
_REFUSED: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The chain refused a transaction that closes the channel; the service will sign another later.",
)

logger: logging.Logger = logging.getLogger(__name__)


class ChannelClosing:
    """Closes channels, and posts their end."""

    def __init__(self, context: Context, driver: Settlement) -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        self._driver = driver
        # The sessions that are reported already.
        self._unproved: set[str] = set()

    async def close(self, principal: Principal, session: SessionRecord) -> Session:
        """Begin to close an open session, and return it with the header to present to its seller.

        Closing again returns the header again, until the session is settled.

        Raises:
            Problem: `service_unavailable` while the clocks differ.
        """
        failpoint(Operation.CHANNEL_CLOSE, Step.BEGUN)
        if session.status == SessionStatus.OPEN:
            await self._database.run(self._claim, session.session_id, principal)
            self._context.wakeup.set()
            failpoint(Operation.CHANNEL_CLOSE, Step.CLAIMED)
        channel = await self._database.read(channel_store.of_session, session.session_id)
        header = None
        if channel.session.status == SessionStatus.CLOSING and channel.session.running_total:
            account = await self._database.read(account_store.ACCOUNTS.existing, session.account_id)
            header = self.header(channel, account, channel.session.running_total, is_closing=True)
        return to_response(channel.session, header=header)

    def header(
        self,
        channel: Channel,
        account: AccountRecord,
        cumulative_micro: int,
        *,
        is_closing: bool = False,
        challenge: dict[str, object] | None = None,
    ) -> tuple[str, str]:
        """Return name and value of the header that presents a stored voucher, and sign it.

        Args:
            channel: the channel.
            account: the paying account.
            cumulative_micro: the stored amount of the voucher.
            is_closing: whether the voucher closes the channel.
            challenge: the challenge to answer; None for the newest one.
        """
        address = channel.session.channel
        assert address is not None  # noqa: S101 - stored with the opening, from whose terms it follows
        voucher = Voucher(channel=Pubkey.from_string(address), cumulative_micro=cumulative_micro)
        payload = mpp_sessions.voucher_payload(
            voucher,
            signer=channel.record.signer,
            signature=voucher_signature(self._context.signer, voucher, account_index=account.key_index),
            is_closing=is_closing,
        )
        return mpp.credential(challenge or json.loads(channel.record.newest_challenge), payload)

    def payer(self, account: AccountRecord) -> str:
        """Return the address that pays for an account's channels."""
        return self._context.signer.address(spending_key(account.key_index))

    # --- What is due

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

    async def _advanced(self, session_id: str) -> bool:
        """Take one step; return whether another one may be due."""
        channel = await self._database.read(channel_store.of_session, session_id)
        if channel.session.status not in (SessionStatus.OPEN, SessionStatus.CLOSING):
            return False
        pending = await self._database.read(chain_transactions.pending, Kind.CHANNEL_CLOSE, session_id)
        if pending is not None:
            await self._driver.drive(pending)
            return True
        found, _ = await self._compared(channel)
        if channel.session.status == SessionStatus.OPEN:
            is_ended = await self._is_ended(channel, found)
            return await self._database.run(self._claim_unasked, session_id, is_ended)
        return await self._closed_further(channel, found)

    async def compare(self, session_id: str) -> bool:
        """Compare a session's channel with the books; return False while it is opening.

        A channel that its seller has ended takes no voucher any more, and its payout is posted.

        Raises:
            ChainUnreachableError: the chain does not show yet what the seller has settled, or shows more than
                its transactions prove.
        """
        channel = await self._database.read(channel_store.of_session, session_id)
        if channel.session.status not in (SessionStatus.OPEN, SessionStatus.CLOSING):
            return channel.session.status != SessionStatus.OPENING
        if not self._context.clock_check.agrees():
            raise ChainUnreachableError("this server's clock differs from its database's")
        found, is_proved = await self._compared(channel)
        if not is_proved:
            raise ChainUnreachableError("a channel shows more as settled than its transactions")
        if channel.session.status == SessionStatus.OPEN:
            is_ended = await self._is_ended(channel, found)
            await self._database.run(self._claim_unasked, session_id, is_ended)
        if found is None:
            if await self._database.read(chain_transactions.pending, Kind.CHANNEL_CLOSE, session_id):
                raise ChainUnreachableError("a transaction that closes a channel is in flight")
            await self._post(channel)
        return True

    async def _closed_further(self, channel: Channel, found: codecs.ChannelAccount | None) -> bool:
        session_id, now_us = channel.session.session_id, self._context.clock.now_us()
        due = next_act(found, force_us=channel.record.force_us or 0)
        if due.act is Act.POST:
            return await self._post(channel)
        if due.at_us > now_us:
            await self._database.run(self._wait, session_id, due.at_us)
            return False
        return await self._sign_and_send(channel, due)

    async def _compared(self, channel: Channel) -> tuple[codecs.ChannelAccount | None, bool]:
        """Return a channel as the chain shows it; suspend its account if its seller has settled too much.

        A node may report a false account, but cannot make up a voucher that the account's key has signed. So
        the account is suspended only for such a voucher in an irreversible transaction. Also returns False if
        there is none (yet) for what the channel shows: its close, which only returns money, goes on.
        """
        session = channel.session
        assert session.channel is not None  # noqa: S101 - it is a channel
        (account,) = await self._chain.account_data([session.channel])
        found = read_found(account)
        if found is not None and is_beyond_books(session, found):
            settled_micro = found.settled_micro
            if not await self._chain.is_settled(
                session.channel, signer=channel.record.signer, cumulative_micro=settled_micro
            ):
                self._report_unproved(session, settled_micro)
                return found, False
            self._unproved.discard(session.session_id)
            await unknown_payouts.compare_channel(self._context, session, settled_micro)
        return found, True

    def _report_unproved(self, session: SessionRecord, settled_micro: int) -> None:
        if session.session_id in self._unproved:
            return
        self._unproved.add(session.session_id)
        log(
            logger,
            logging.WARNING,
            "session.unproved_payout",
            session_id=session.session_id,
            account_id=session.account_id,
            settled_usdc=audit.usdc(settled_micro),
            running_total_usdc=audit.usdc(session.running_total),
        )

    async def _is_ended(self, channel: Channel, found: codecs.ChannelAccount | None) -> bool:
        """Return whether the seller has ended an open session's channel: one false reply does not end it."""
        if not is_ended_by_seller(found):
            return False
        if found is None:
            return await self._payout(channel.session) is not None
        again, _ = await self._compared(channel)
        return is_ended_by_seller(again)

    async def _payout(self, session: SessionRecord) -> Payout | None:
        """Return the irreversible payout of a channel."""
        account = await self._database.read(account_store.ACCOUNTS.existing, session.account_id)
        return await self._chain.payout_of(session.escrow_token_account, to=account.usdc_token_account)

    async def _sign_and_send(self, channel: Channel, due: Due) -> bool:
        account = await self._database.read(account_store.ACCOUNTS.existing, channel.session.account_id)
        if due.act is not Act.REQUEST:
            (held,) = await self._chain.token_accounts([account.usdc_token_account])
            if held is None or held.is_frozen:
                reason = ClosingReason.ACCOUNT_MISSING if held is None else ClosingReason.ACCOUNT_FROZEN
                await self._database.run(self._postpone, channel.session.session_id, _FROZEN, reason)
                return False
        blockhash = await self._chain.latest_blockhash()
        tx = await self._database.run(self._sign, channel.session.session_id, due, blockhash)
        if tx is None:
            return False
        await self._driver.drive(tx)
        return True

    # --- Units of work

    def _claim(self, connection: Connection, session_id: str, principal: Principal) -> None:
        now_us = self._context.clock.now_us()
        self._context.clock_check.require(now_us)
        channel = channel_store.of_session(connection, session_id, lock=True)
        # Without a voucher, the seller has nothing to settle.
        force_us = now_us + (SEAL_US if channel.session.running_total else 0)
        self._close(connection, channel, principal, now_us, force_us=force_us)

    def _claim_unasked(self, connection: Connection, session_id: str, is_ended: bool) -> bool:  # noqa: FBT001
        now_us = self._context.clock.now_us()
        # A wrong clock would end sessions early, and other servers would wait for a time in the future.
        self._context.clock_check.require(now_us)
        channel = channel_store.of_session(connection, session_id, lock=True)
        session = channel.session
        if session.status != SessionStatus.OPEN or session.opened_us is None:
            return session.status == SessionStatus.CLOSING
        if is_ended:
            reason, force_us = ClosingReason.PAYEE_SEALED, now_us + SEAL_US
        elif session.closes_us is None or session.closes_us > now_us:
            # A voucher has extended the time limit.
            return False
        elif upto.is_upto(session):
            reason, force_us = None, upto.unsettled_until_us(channel)
            if now_us < force_us:
                SESSIONS.change(connection, session, IS_OPEN, closes_us=force_us)
                return False
        else:
            limits = limits_of(self._context)
            reason = closed_by(limits, opened_us=session.opened_us, now_us=now_us)
            force_us = now_us
        server = audit.ServerActor(session.operator_id)
        self._close(connection, channel, server, now_us, force_us=force_us, reason=reason)
        return True

    def _close(
        self,
        connection: Connection,
        channel: Channel,
        actor: "Principal | audit.ServerActor",
        now_us: int,
        *,
        force_us: int,
        reason: ClosingReason | None = None,
    ) -> None:
        session = SESSIONS.change(
            connection,
            channel.session,
            IS_OPEN,
            status=SessionStatus.CLOSING.value,
            closed_by=None if reason is None else reason.value,
            closes_us=force_us if reason is None else now_us,
        )
        if session is None:
            return
        check_transition(SessionStatus.OPEN, SessionStatus.CLOSING)
        CHANNELS.changed(connection, channel.record, force_us=force_us)
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

    def _wait(self, connection: Connection, session_id: str, until_us: int) -> None:
        self._context.clock_check.require()
        SESSIONS.change(connection, session_id, IS_CLOSING, closes_us=until_us)

    def _postpone(
        self, connection: Connection, session_id: str, refusal: Refusal, reason: ClosingReason
    ) -> None:
        now_us = self._context.clock.now_us()
        self._context.clock_check.require(now_us)
        session = SESSIONS.existing(connection, session_id, lock=True)
        if session.status == SessionStatus.CLOSING:
            postponed(session, refusal, reason, now_us).write(connection)

    def _sign(
        self, connection: Connection, session_id: str, due: Due, blockhash: Blockhash
    ) -> StoredTransaction | None:
        now_us = self._context.clock.now_us()
        if not self._context.clock_check.agrees(now_us):
            raise ChainUnreachableError("this server's clock differs from its database's")
        channel = channel_store.of_session(connection, session_id, lock=True)
        if channel.session.status != SessionStatus.CLOSING:
            return None
        if chain_transactions.pending(connection, Kind.CHANNEL_CLOSE, session_id) is not None:
            return None
        account = account_store.ACCOUNTS.existing(connection, channel.session.account_id)
        opening = opening_of(channel, payer=self.payer(account), usdc_mint=self._chain.usdc_mint)
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
            now_us=now_us,
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

    async def _post(self, channel: Channel) -> bool:
        session = channel.session
        payout = await self._payout(session)
        if payout is None:
            raise ChainUnreachableError("the payout of a channel is not irreversible yet")
        if await self._payout(session) != payout:
            raise ChainUnreachableError("a payout of a channel was reported in two ways")
        failpoint(Operation.CHANNEL_CLOSE, Step.LANDED)
        posted = await self._database.run(self._posted, session.session_id, payout)
        failpoint(Operation.CHANNEL_CLOSE, Step.POSTED)
        if posted is not None:
            self._context.wakeup.set()
            if upto.is_upto(posted):
                payment = await self._database.read(TRANSFERS.existing, posted.session_id)
                report_transfer(self._context, payment, spent_us=posted.created_us)
                return False
            report(posted)
            if posted.settled is not None and posted.settled > posted.running_total:
                unknown_payouts.report(posted, payout.signature)
        return False

    def _posted(self, connection: Connection, session_id: str, payout: Payout) -> SessionRecord | None:
        now_us = self._context.clock.now_us()
        if not self._context.clock_check.agrees(now_us):
            raise ChainUnreachableError("this server's clock differs from its database's")
        unit = Unit(connection, self._context, now_us)
        session = SESSIONS.existing(connection, session_id)
        account_store.ACCOUNTS.existing(connection, session.account_id, lock=True)
        session = SESSIONS.existing(connection, session_id, lock=True)
        if session.status != SessionStatus.CLOSING:
            return None
        found = outcome_of(cap_micro=session.cap, gained_micro=payout.gained_micro)
        tx = _row_of(connection, session, payout, now_us)
        check_transition(SessionStatus.CLOSING, SessionStatus.SETTLED)
        change = SESSIONS.to_change(
            session,
            IS_CLOSING,
            status=SessionStatus.SETTLED.value,
            settled=found.settled_micro,
            settlement_tx_signature=payout.signature,
            settled_us=now_us,
            closes_us=None,
            error=None,
            message=None,
            stuck_reason=None,
            key_expires_us=now_us + KEY_LIFETIME_US,
        )
        payment = None
        if upto.is_upto(session):
            payment = upto.settled(
                TRANSFERS.existing(connection, session_id, lock=True),
                paid_micro=found.settled_micro,
                tx_signature=payout.signature,
                now_us=now_us,
            )
        outcome = outcomes.settled(
            change,
            tx,
            now_us,
            paid=found.settled_micro,
            deposited=found.deposited_micro,
            is_credited=entries.is_deposit_posted(connection, session.account_id, payout.signature),
            shown=None if payment is None else payment[1:],
        )
        if payment is not None:
            outcome = evolve(outcome, changes=payment[:1])
        elif found.settled_micro > session.running_total:
            outcome = unknown_payouts.suspending(
                outcome, session, payout.signature, settled_micro=found.settled_micro
            )
        return apply(unit, outcome, tx)


def is_beyond_books(session: SessionRecord, found: codecs.ChannelAccount) -> bool:
    """Return whether a seller has settled more than the books handed out."""
    # What is settled of a payment up to a maximum, its seller signs.
    return not upto.is_upto(session) and found.settled_micro > session.running_total


def read_found(account: AccountData | None) -> codecs.ChannelAccount | None:
    """Return a channel as the chain shows it; None if it has no account, or one of another program."""
    if account is None or account.program != str(codecs.PROGRAM):
        return None
    try:
        return codecs.read_channel(account.data)
    except codecs.ChannelError as error:
        raise ChainUnreachableError("a node shows a malformed channel") from error


def _row_of(connection: Connection, session: SessionRecord, payout: Payout, now_us: int) -> StoredTransaction:
    """Return the row of a payout: the service's own, or a new one for the seller's."""
    for tx in chain_transactions.of_subject(connection, payout.signature, session.session_id):
        return tx
    tx = StoredTransaction(
        signature=payout.signature,
        kind=Kind.CHANNEL_CLOSE,
        subject_id=session.session_id,
        account_id=session.account_id,
        state=State.FINALIZED,
        raw=None,
        last_valid_block_height=0,
        created_us=now_us,
        ended_us=now_us,
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
