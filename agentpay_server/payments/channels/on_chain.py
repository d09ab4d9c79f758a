"""Reads channels from the chain, and tells which facts are proved.

A node may lag, and one reply of it may be false. So nothing that cannot be undone follows from one reply: an
open channel ends, and a payout is posted, only when a second read or an irreversible transaction agrees.
"""

import logging

from attrs import evolve

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelAccount
from agentpay_server.chain.protocol import AccountData, ChainUnreachableError, Payout
from agentpay_server.database.tables import SessionRecord
from agentpay_server.ledger import accounts, audit
from agentpay_server.ledger.context import Context
from agentpay_server.payments.channels import upto
from agentpay_server.payments.channels.rules import is_ended_by_seller
from agentpay_server.payments.channels.store import Channel
from agentpay_server.platform.logs import log
from agentpay_server.sessions import unknown_payouts

logger: logging.Logger = logging.getLogger(__name__)


class ChannelsOnChain:
    """Reads channels, and compares them with the books."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        # The sessions that are reported already.
        self._unproved: set[str] = set()

    async def compared(self, channel: Channel) -> tuple[ChannelAccount | None, bool]:
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

    async def is_ended(self, channel: Channel, found: ChannelAccount | None) -> bool:
        """Return whether the seller has ended an open session's channel: one false reply does not end it."""
        if not is_ended_by_seller(found):
            return False
        if found is None:
            return await self._payout(channel.session) is not None
        again, _ = await self.compared(channel)
        return is_ended_by_seller(again)

    async def payout(self, channel: Channel) -> Payout:
        """Return the irreversible payout of a channel, read twice.

        Raises:
            ChainUnreachableError: there is none yet, or the two replies differ.
        """
        payout = await self._payout(channel.session)
        if payout is None:
            raise ChainUnreachableError("the payout of a channel is not irreversible yet")
        if await self._payout(channel.session) != payout:
            raise ChainUnreachableError("a payout of a channel was reported in two ways")
        return await self._own_part(channel, payout) if payout.is_shared else payout

    async def _payout(self, session: SessionRecord) -> Payout | None:
        account = await self._database.read(accounts.ACCOUNTS.existing, session.account_id)
        return await self._chain.payout_of(session.escrow_token_account, to=account.usdc_token_account)

    async def _own_part(self, channel: Channel, payout: Payout) -> Payout:
        """Return what a transaction that paid out several channels returned of one of them at most.

        Balances do not tell from which channel the account got how much, but vouchers say what was settled.
        """
        session = channel.session
        assert session.channel is not None  # noqa: S101 - it is a channel
        settled_micro = await self._chain.highest_voucher(session.channel, signer=channel.record.signer)
        return evolve(payout, gained_micro=min(payout.gained_micro, session.cap - settled_micro))

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


def is_beyond_books(session: SessionRecord, found: ChannelAccount) -> bool:
    """Return whether a seller has settled more than the books handed out."""
    # What is settled of a payment up to a maximum, its seller signs.
    return not upto.is_upto(session) and found.settled_micro > session.running_total


def read_found(account: AccountData | None) -> ChannelAccount | None:
    """Return a channel as the chain shows it; None if it has no account, or one of another program."""
    if account is None or account.program != str(codecs.PROGRAM):
        return None
    try:
        return codecs.read_channel(account.data)
    except codecs.ChannelError as error:
        raise ChainUnreachableError("a node shows a malformed channel") from error
