"""What a transaction brought to token accounts, and the embedded chain's record of it: pure, and in memory.

Nobody sends a machine's token accounts a statement: what came in is what they hold after a transaction less
what they held before. Whose accounts they are is not known here, nor what becomes of it.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from agentpay_server.chain.deposits import Deposit
from agentpay_server.chain.ledger import Credit

_REMEMBERED_CREDITS: Final = 4_096


class DepositListener(Protocol):
    """Who is told of money that comes in, at once and without waiting."""

    def is_own(self, signature: str) -> bool:
        """Return whether whoever sent a transaction books all of it, so that it is not to be journalled."""
        ...

    def arrived(self, token_account: str | None) -> None:
        """Hear that the history of a token account goes on; None: of any, something was not told."""
        ...


def deposits_of(signature: str, before: Mapping[str, int], after: Mapping[str, int]) -> list[Deposit]:
    """Return what a transaction brought, from the micro-USDC that token accounts held before and after it."""
    changes = {
        token_account: after.get(token_account, 0) - before.get(token_account, 0)
        for token_account in {**before, **after}
    }
    senders = [token_account for token_account, change in changes.items() if change < 0]
    return [
        Deposit(
            signature=signature,
            token_account=token_account,
            amount_micro=change,
            sender=senders[0] if len(senders) == 1 else None,
        )
        for token_account, change in changes.items()
        if change > 0
    ]


class RecentCredits:
    """The journal of a chain that keeps nothing beyond the process: what nobody has passed yet.

    What comes to token accounts that nobody looks at makes way for newer credits.
    """

    def __init__(self) -> None:
        self._credits: dict[tuple[int, str], Credit] = {}

    def add(self, credit: Credit) -> None:
        """Remember a credit; beyond a few thousand, the oldest is forgotten."""
        self._credits[credit.slot, credit.deposit.token_account] = credit
        if len(self._credits) > _REMEMBERED_CREDITS:
            del self._credits[next(iter(self._credits))]

    def after(self, token_account: str, slot: int) -> list[Credit]:
        """Return the credits of a token account after a slot, oldest first, and forget those before."""
        own = [credit for credit in self._credits.values() if credit.deposit.token_account == token_account]
        for credit in own:
            if credit.slot <= slot:
                del self._credits[credit.slot, token_account]
        return [credit for credit in own if credit.slot > slot]
