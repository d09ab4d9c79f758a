"""Reads channels from the chain, and tells which facts are proved.

A node may lag, and one reply of it may be false. So nothing that cannot be undone follows from one reply: an
open channel ends only when a second read or an irreversible transaction agrees, and what is posted is what
irreversible transactions prove (`chain/channels/evidence.py`).
"""

import logging

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelAccount
from agentpay_server.chain.protocol import AccountData, ChainUnreachableError, ChannelHistory
from agentpay_server.database.tables import SessionRecord
from agentpay_server.ledger import accounts, audit
from agentpay_server.ledger.context import Context
from agentpay_server.payments.channels import store as channel_store
from agentpay_server.payments.channels import upto
from agentpay_server.payments.channels.rules import ChannelPayout, is_ended_by_seller, payout_of
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
            proven_micro = (await self._history(channel)).proven_micro
            if proven_micro < found.settled_micro:
                self._report_unproved(session, found.settled_micro)
                return found, False
            self._unproved.discard(session.session_id)
            await unknown_payouts.compare_channel(self._context, session, proven_micro)
        return found, True

    async def is_ended(self, channel: Channel, found: ChannelAccount | None) -> bool:
        """Return whether the seller has ended an open session's channel: one false reply does not end it."""
        if not is_ended_by_seller(found):
            return False
        if found is None:
            return (await self._history(channel)).payout is not None
        again, _ = await self.compared(channel)
        return is_ended_by_seller(again)

    async def payout(self, channel: Channel) -> ChannelPayout:
        """Return what the irreversible payout of a channel means for its account.

        Raises:
            ChainUnreachableError: there is none yet, or replies differ.
        """
        session, payout = channel.session, (await self._history(channel)).payout
        if payout is None:
            raise ChainUnreachableError("the payout of a channel is not irreversible yet")
        owed = {}
        for each in await self._database.read(channel_store.at, session.account_id, payout.channels):
            # A node that does not show the payout yet must not hide that it paid this channel too.
            history = await self._history(each, including=payout.signature)
            if history.payout is not None and history.payout.signature == payout.signature:
                owed[each.session.session_id] = max(each.session.cap - history.proven_micro, 0)
        return payout_of(payout, session.session_id, cap_micro=session.cap, owed=owed)

    async def _history(self, channel: Channel, *, including: str | None = None) -> ChannelHistory:
        session = channel.session
        assert session.channel is not None  # noqa: S101 - it is a channel
        account = await self._database.read(accounts.ACCOUNTS.existing, session.account_id)
        return await self._chain.channel_history(
            session.channel,
            signer=channel.record.signer,
            to=account.usdc_token_account,
            including=including,
        )

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
    return found.settled_micro > upto.handed_out_micro(session)


def read_found(account: AccountData | None) -> ChannelAccount | None:
    """Return a channel as the chain shows it; None if it has no account, or one of another program."""
    if account is None or account.program != str(codecs.PROGRAM):
        return None
    try:
        return codecs.read_channel(account.data)
    except codecs.ChannelError as error:
        raise ChainUnreachableError("a node shows a malformed channel") from error
