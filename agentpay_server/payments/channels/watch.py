"""Watches the channels of sessions over HTTP 402: their sellers can end them at any time.

The embedded chain reports every transaction that it executes. A remote cluster is polled every few seconds of
real time. What is due by the clock is in the schedule of sessions.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from solders.transaction import VersionedTransaction

from agentpay.contract.sessions import SessionStatus
from agentpay_server.chain.channels.codecs import PROGRAM, OnchainStatus
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.ledger.context import Context
from agentpay_server.payments.channels import store as channel_store
from agentpay_server.payments.channels.closing import ChannelClosing
from agentpay_server.payments.channels.on_chain import is_beyond_books, read_found
from agentpay_server.payments.channels.rules import is_ended_by_seller
from agentpay_server.payments.channels.store import Channel
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.scheduler import Every

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
