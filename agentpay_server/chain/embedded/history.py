"""The embedded chain's newest transactions, and the times of its blocks.

The status of every signature is in the ledger, without a limit.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from solders.pubkey import Pubkey

from agentpay_server.chain.embedded.blocks import BLOCK_US, BlockPosition
from agentpay_server.chain.embedded.persistence import HISTORY_LENGTH, Ledger
from agentpay_server.chain.embedded.virtual_machine import Executed
from agentpay_server.platform.capturing import Restore


class ChainHistory:
    """The newest transactions of a chain, oldest first.

    Attributes:
        first_height: the history is complete from this block height on.
    """

    def __init__(self) -> None:
        self.first_height: int = 0
        # Whether it holds what the ledger holds of earlier runs.
        self._is_recalled = False
        self._heights: list[int] = []
        self._executed: dict[str, Executed] = {}
        # Transactions by address; built at the first query.
        self._by_address: dict[Pubkey, deque[Executed]] | None = None
        self._listeners: list[Callable[[Executed], None]] = []

    def add(self, executed: Executed) -> None:
        """Add a transaction, and notify the listeners."""
        self._executed[executed.signature] = executed
        self._heights.append(executed.height)
        if self._by_address is not None:
            _index(self._by_address, executed)
        if len(self._executed) > HISTORY_LENGTH:
            self._forget(next(iter(self._executed.values())))
        for listener in tuple(self._listeners):
            listener(executed)

    def get(self, signature: str) -> Executed | None:
        """Return a transaction; None if it is not in the history."""
        return self._executed.get(signature)

    def of_address(self, address: Pubkey) -> Iterator[Executed]:
        """Return the transactions that name an address, newest first."""
        if self._by_address is None:
            self._by_address = {}
            for executed in self._executed.values():
                _index(self._by_address, executed)
        return reversed(self._by_address.get(address, deque()))

    def __len__(self) -> int:
        return len(self._executed)

    def of_block(self, height: int) -> Sequence[Executed]:
        """Return the transactions of the block at a height, in their order."""
        count = bisect_right(self._heights, height)
        if not count or self._heights[count - 1] != height:
            return ()
        return [executed for executed in self._executed.values() if executed.height == height]

    def newest_until(self, height: int) -> Executed | None:
        """Return the newest transaction that executed at or below a height."""
        count = bisect_right(self._heights, height)
        return None if not count else list(self._executed.values())[count - 1]

    def block_time(self, newest: BlockPosition, height: int) -> int:
        """Return when a block began, in seconds since the epoch: blocks take 0.4 s, some are shorter."""
        time_us = newest.since_us - (newest.height - height) * BLOCK_US
        before = self.newest_until(height)
        return max(time_us, 0 if before is None else before.time_us) // 1_000_000

    async def recall(self, ledger: Ledger, transaction_count: int) -> None:
        """Load what the ledger holds of earlier runs, once, without notifying the listeners.

        `transaction_count` is how many transactions have executed since the chain began.
        """
        if self._is_recalled:
            return
        found = await ledger.newest(count=HISTORY_LENGTH)
        first_height = self.first_height
        if len(found) == transaction_count:
            first_height = 0
        elif found:
            # Of the oldest block, some transactions may be missing.
            first_height = found[0].height + 1
        self._replace(found, first_height)
        self._is_recalled = True

    def forget_recall(self) -> None:
        """Load from the ledger again at the next recall: the machine was rebuilt from it."""
        self._is_recalled = False

    def listen(self, listener: Callable[[Executed], None]) -> Callable[[], None]:
        """Notify `listener` of every transaction from now on, and return a function that stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def capture(self) -> Restore:
        """Return a function that restores the current content."""
        executed, first_height = tuple(self._executed.values()), self.first_height
        is_recalled = self._is_recalled

        def restore() -> None:
            self._replace(executed, first_height)
            self._is_recalled = is_recalled

        return restore

    def _replace(self, executed: Sequence[Executed], first_height: int) -> None:
        self._executed = {each.signature: each for each in executed}
        self._heights = [each.height for each in executed]
        self._by_address = None
        self.first_height = first_height

    def _forget(self, oldest: Executed) -> None:
        del self._executed[oldest.signature]
        del self._heights[0]
        self.first_height = oldest.height + 1
        if self._by_address is not None:
            for key in set(oldest.transaction.message.account_keys):
                its = self._by_address[key]
                its.popleft()
                if not its:
                    del self._by_address[key]


def _index(by_address: dict[Pubkey, deque[Executed]], executed: Executed) -> None:
    for key in set(executed.transaction.message.account_keys):
        by_address.setdefault(key, deque()).append(executed)
