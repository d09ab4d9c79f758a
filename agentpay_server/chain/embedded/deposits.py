"""Deposits of transactions, and the journal of deposits in a ledger in memory. Pure.

A deposit is an increase of a token account's balance by a transaction.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from agentpay_server.chain.embedded.persistence import Credit
from agentpay_server.chain.protocol import Deposit
from agentpay_server.platform.capturing import Restore

_REMEMBERED_CREDITS: Final = 16_384


class DepositListener(Protocol):
    """Receives notifications of deposits. Must not wait."""

    def arrived(self, deposit: Deposit | None) -> None:
        """Process a deposit. None means that some deposits may have been missed."""
        ...


def deposits_of(signature: str, before: Mapping[str, int], after: Mapping[str, int]) -> list[Deposit]:
    """Return a transaction's deposits, given the micro-USDC of token accounts before and after it."""
    changes = {
        token_account: after.get(token_account, 0) - before.get(token_account, 0)
        for token_account in {**before, **after}
    }
    senders = tuple(token_account for token_account, change in changes.items() if change < 0)
    return [
        Deposit(
            signature=signature,
            token_account=token_account,
            amount_micro=change,
            senders=senders,
            others=tuple(each for each in before if each not in (token_account, *senders)),
        )
        for token_account, change in changes.items()
        if change > 0
    ]


class RecentCredits:
    """The journal of a ledger in memory: deposits that no caller has acknowledged.

    Many token accounts are never read, so the journal is bounded: beyond 16,384 credits, the oldest are
    dropped.
    """

    def __init__(self) -> None:
        self._credits: dict[str, list[Credit]] = {}
        self._count = 0

    def add(self, credit: Credit) -> None:
        """Store a credit."""
        self._credits.setdefault(credit.deposit.token_account, []).append(credit)
        self._count += 1
        if self._count > _REMEMBERED_CREDITS:
            longest = next(iter(self._credits))
            self.forget(longest, self._credits[longest][0].slot)

    def after(self, token_account: str, slot: int) -> list[Credit]:
        """Return the credits of a token account after a slot, oldest first."""
        return [credit for credit in self._credits.get(token_account, ()) if credit.slot > slot]

    def forget(self, token_account: str, slot: int) -> None:
        """Forget the credits of a token account up to a slot."""
        known = self._credits.pop(token_account, [])
        left = [credit for credit in known if credit.slot > slot]
        if left:
            self._credits[token_account] = left
        self._count -= len(known) - len(left)

    def capture(self) -> Restore:
        """Return a function that restores the current content."""
        credits_, count = {address: list(found) for address, found in self._credits.items()}, self._count

        def restore() -> None:
            self._credits = {address: list(found) for address, found in credits_.items()}
            self._count = count

        return restore
