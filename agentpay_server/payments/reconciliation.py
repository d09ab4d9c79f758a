"""What is compared with the chain before this process first signs for an account: debits and channels.

The database may be an older copy. Payments on chain that it does not know are debits of the account. Vouchers
that it does not know show in their channel once the seller has settled them.
"""

from agentpay_server.accounts.deposits import Deposits
from agentpay_server.database.connection import Connection
from agentpay_server.ledger import accounts
from agentpay_server.ledger.context import Context
from agentpay_server.payments.channels import store as channel_store
from agentpay_server.payments.channels.closing import ChannelClosing


class Reconciliation:
    """Compares accounts with the chain, each once per start."""

    def __init__(self, context: Context, deposits: Deposits, channels: ChannelClosing) -> None:
        self._database = context.database
        self._deposits = deposits
        self._channels = channels
        # The sessions that are still to be compared, by the token account of their payer.
        self._remaining: dict[str, set[str]] = {}

    async def before_spend(self, token_account: str) -> None:
        """Compare an account's debits and channels with the books, and post its reported deposits.

        Raises:
            ChainUnreachableError: they could not be compared, so nothing may be signed for the account.
        """
        await self._deposits.poll_before_spend(token_account)
        remaining = self._remaining.get(token_account)
        if remaining is None:
            remaining = set(await self._database.read(_unsettled, token_account))
            self._remaining[token_account] = remaining
        for session_id in sorted(remaining):
            if await self._channels.compare(session_id):
                remaining.discard(session_id)


def _unsettled(connection: Connection, token_account: str) -> list[str]:
    account = accounts.account_at(connection, token_account)
    return [] if account is None else channel_store.unsettled_of(connection, account.account_id)
