"""Money that came into a token account, whoever sent it: what the service asks of a chain to book it.

What is booked, and once only, is the service's: unique on `(signature, token_account)`, without transactions
of its own, the cursor in the same commit as what it passed. Looking at an account whose balance is the booked
one is a waste; `Chain.token_accounts` tells a hundred balances at a time.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Protocol

from attrs import frozen

from agentpay_server.chain.protocol import Chain


@frozen(kw_only=True)
class Deposit:
    """A transaction after which a token account held more USDC than before.

    Attributes:
        signature: base58 text of the transaction's signature.
        token_account: the account that holds more.
        amount_micro: how much more, in micro-USDC, at least 1.
        sender: the token account that the money came from, if there is exactly one that held less.
    """

    signature: str
    token_account: str
    amount_micro: int
    sender: str | None


@frozen(kw_only=True)
class DepositBatch:
    """The next stretch of an account's history.

    Attributes:
        deposits: oldest first; many transactions are none.
        cursor: where the stretch ends, for the next look.
    """

    deposits: tuple[Deposit, ...]
    cursor: str


Booked = Callable[[], Awaitable[Collection[str]]]
"""Tells of transactions that what they brought to a token account is booked; it need not tell of all such."""


async def nothing_booked() -> Collection[str]:
    """Tell of none."""
    return ()


class DepositSource(Protocol):
    """A chain whose token accounts have a history."""

    def deposits(
        self, token_account: str, *, after: str | None, booked: Booked = nothing_booked
    ) -> AsyncIterator[DepositBatch]:
        """Yield what came in since a cursor, in batches, oldest first, irreversible transactions alone.

        Stopping anywhere loses nothing: a batch can be read again from the cursor before it. What was booked
        may come again.

        Args:
            token_account: address of a USDC token account.
            after: the cursor of the last batch that was booked; None for all of its history.
            booked: what may be left out, where it would take a call to read it.

        Raises:
            ChainUnavailableError: the rest cannot be read now.
        """
        ...


class WatchedChain(Chain, DepositSource, Protocol):
    """A chain that also tells what came in."""
