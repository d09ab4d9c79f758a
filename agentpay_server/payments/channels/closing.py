"""Closing channels: the header for the seller, and the steps of the forced close.

A caller's close hands out the highest voucher, for the seller to settle. If the chain does not show within
60 seconds that the seller has sealed the channel, or if there is no voucher, the service closes it by force.
That needs the seller for nothing: a request on chain, then, after the grace period, one transaction that
seals the channel and pays it out. The treasury pays its fees.

Each step is decided from what the chain shows at that moment, so it may be repeated after a crash, by any
server.
"""

import json
from typing import Final

from agentpay.contract.errors import ErrorCode
from agentpay.contract.sessions import ClosingReason, Session, SessionStatus
from agentpay_server.chain.channels.codecs import ChannelAccount
from agentpay_server.chain.protocol import Blockhash, ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import SessionRecord
from agentpay_server.engine.movement import pending_transaction
from agentpay_server.engine.policy import Refusal
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.accounts import ACCOUNTS
from agentpay_server.ledger.apply import Unit
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import Kind, StoredTransaction
from agentpay_server.payments.channels import claims, settling, upto
from agentpay_server.payments.channels import store as channel_store
from agentpay_server.payments.channels.building import opening_of, pay_out, request_close, voucher_header
from agentpay_server.payments.channels.on_chain import ChannelsOnChain
from agentpay_server.payments.channels.rules import Act, Due, next_act
from agentpay_server.payments.channels.store import Channel
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import unknown_payouts
from agentpay_server.sessions.responses import report, to_response
from agentpay_server.sessions.store import IS_CLOSING, SESSIONS
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
            await self._database.run(claims.claim, self._context, session_id, principal)
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
        return await self._database.run(claims.claim_due, self._context, session_id, is_ended=is_ended)

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
        posted = await self._database.run(settling.post, self._context, channel.session.session_id, payout)
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
            unknown_payouts.report(posted, payout.signature)

    # --- Units of work

    def _wait(self, connection: Connection, session_id: str, until_us: int) -> None:
        self._context.clock_check.require()
        SESSIONS.change(connection, session_id, IS_CLOSING, closes_us=until_us)

    def _postpone(self, connection: Connection, session_id: str, reason: ClosingReason) -> None:
        now_us = self._context.clock.now_us()
        self._context.clock_check.require(now_us)
        session = SESSIONS.existing(connection, session_id, lock=True)
        if session.status == SessionStatus.CLOSING:
            settling.postponed(session, _FROZEN, reason, now_us).write(connection)

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
