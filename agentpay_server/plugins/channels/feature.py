"""The plug-in: channels on chain, the escrows of sessions and of `upto` payments over HTTP 402."""

import asyncio
from typing import Final

from agentpay_server.database.connection import Connection
from agentpay_server.feature import Core, Feature, Phase
from agentpay_server.ledger import accounts
from agentpay_server.plugins.channels import store
from agentpay_server.plugins.channels.closing import CHANNEL_CLOSE, ChannelClosing, ChannelWatch
from agentpay_server.plugins.channels.opening import CHANNEL_OPEN

_RECOVERY_SECONDS: Final = 5.0
"""How long a start waits for what happened to channels while no server ran."""


class ChannelServices:
    def __init__(self, core: Core) -> None:
        self.closing: ChannelClosing = ChannelClosing(core.context, core.settlement)
        self.watch: ChannelWatch = ChannelWatch(core.context, self.closing)
        self._core = core
        # The sessions that are still to be compared since the start, by the token account of their payer.
        self._remaining: dict[str, set[str]] = {}

    async def before_signature(self, token_account: str) -> None:
        """Compare an account's channels with the books, each once per start.

        The database may be an older copy. Vouchers that it does not know show in their channel once the
        seller has settled them.
        """
        remaining = self._remaining.get(token_account)
        if remaining is None:
            remaining = set(await self._core.context.database.read(_unsettled, token_account))
            self._remaining[token_account] = remaining
        for session_id in sorted(remaining):
            if await self.closing.compare(session_id):
                remaining.discard(session_id)

    async def recover(self) -> None:
        # On a cluster, a transaction that closes a channel may take minutes: the rest is done meanwhile.
        poll = self._core.context.tasks.start(self.watch.poll_once())
        await asyncio.wait({poll}, timeout=_RECOVERY_SECONDS)


def _unsettled(connection: Connection, token_account: str) -> list[str]:
    account = accounts.account_at(connection, token_account)
    return [] if account is None else store.unsettled_of(connection, account.account_id)


FEATURE: Final[Feature[ChannelServices]] = Feature(
    name="channels",
    build=ChannelServices,
    movements=(CHANNEL_OPEN, CHANNEL_CLOSE),
    work=lambda s: [(Phase.LATER, s.watch)],
    recover=ChannelServices.recover,
    on_executed=lambda s: s.watch.executed,
    before_signature=lambda s: s.before_signature,
)
