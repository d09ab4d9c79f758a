"""Payees outside the service, whose token accounts a test closes, freezes and creates again."""

from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import money
import outsiders
from outsiders import Wallet
from session_desk import Desk

from agentpay_server.ledger.context import Context

RENT = 2_039_280
"""Lamports that keep a token account alive."""

NUMBERS = count(1)


class Payee:
    """A wallet outside the service, with an empty token account; on a validator no test sees another's."""

    def __init__(self, desk: Desk) -> None:
        self._server = desk.server
        self.wallet = money.on_owner(desk.server, self._opened)
        self.token_account = self.wallet.token_account

    async def _opened(self, context: Context) -> Wallet:
        wallet = Wallet(context.chain, context.signer, next(NUMBERS))
        assert await outsiders.landed(context.chain, await wallet.open(0))
        return wallet

    def does(self, work: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Send a transaction, and wait until it has done what it says."""

        async def done(context: Context) -> None:
            assert await outsiders.landed(context.chain, await work())

        money.on_owner(self._server, done)

    def closes(self, token_account: str | None = None) -> None:
        self.does(lambda: self.wallet.close(token_account))

    def comes_back(self, micro: int = 1) -> None:
        self.does(lambda: self.wallet.open(micro))

    def empties(self, to: str) -> None:
        """Send all that its token account holds elsewhere."""
        held = self.holds() or 0
        self.does(lambda: self.wallet.pay((to, held)))

    def another(self) -> str:
        """Create a second token account besides the associated one."""

        async def work(context: Context) -> str:
            address, signature = await self.wallet.open_another("another")
            assert await outsiders.landed(context.chain, signature)
            return address

        return money.on_owner(self._server, work)

    def holds(self, token_account: str | None = None) -> int | None:
        """Return its micro-USDC on chain; None where there is no token account."""

        async def look(context: Context) -> int | None:
            (found,) = await context.chain.token_accounts([token_account or self.token_account])
            return None if found is None else found.amount_micro

        return money.on_owner(self._server, look)
