"""The persistence of the embedded chain: the ledger protocol, its types, and the ledger in memory.

The virtual machine executes in memory first. The effects are then written as one page, and reported only
after that. If the process dies before the page is written, the transaction has not happened, because memory
is lost too. `MemoryLedger` ends with the process, and can be captured and restored; `store.py` has the ledger
in the database.

The status of every signature is in the ledger, without a limit; `ChainHistory` has the newest transactions,
and the times of their blocks.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from attrs import field, frozen
from solders.account import Account
from solders.hash import Hash
from solders.pubkey import Pubkey

from agentpay_server.chain.embedded.blocks import BLOCK_US, BlockPosition, SeenMessage
from agentpay_server.chain.embedded.virtual_machine import Executed, serialized
from agentpay_server.chain.protocol import Deposit, SignatureStatus
from agentpay_server.platform.capturing import Restore, captured

HISTORY_LENGTH: Final = 5_000
"""Maximum number of transactions kept, in memory and in a ledger, at about 5 KB each."""


class LedgerMovedError(Exception):
    """The ledger is not where this writer left it: another process has written to it."""


class ForeignLedgerError(Exception):
    """The ledger belongs to a chain with other keys: this server could not pay, mint or sign on it."""


@frozen(kw_only=True)
class ChainState:
    """The position of a chain: its slot, and the height of its newest block.

    Attributes:
        genesis: identifies the chain; derived from its treasury and mint authority.
        slot: grows by one with each transaction.
        height_since_us: when that block began, in microseconds since the epoch.
    """

    genesis: str
    slot: int
    height: int
    height_since_us: int


@frozen(kw_only=True)
class Credit:
    """A credit of a token account. Each slot has one transaction."""

    slot: int
    deposit: Deposit


@frozen(kw_only=True)
class PersistedPage:
    """A unit that is written atomically.

    Attributes:
        before: the chain's position at the previous page; None for the first page.
        after: the chain's position after this page.
        first_accounts: the accounts of a new chain by address, in Solana's serialization; None for none.
        signatures: the outcome of each signature, and its message.
        executed: the transactions, by slot, with the accounts that they changed.
    """

    before: ChainState | None
    after: ChainState
    first_accounts: dict[str, bytes | None] = field(factory=dict, repr=lambda accounts: str(len(accounts)))
    signatures: dict[str, tuple[SignatureStatus, SeenMessage]] = field(factory=dict)
    credits: list[Credit] = field(factory=list)
    executed: dict[int, Executed] = field(factory=dict)

    def accounts(self) -> dict[str, bytes | None]:
        """Return the changed accounts, by address, in Solana's serialization; None for a deleted one."""
        changed: dict[str, bytes | None] = {**self.first_accounts}
        for executed in self.executed.values():
            changed |= serialized(executed.after)
        return changed


class Ledger(Protocol):
    """Stores the pages of one chain."""

    async def read(self) -> tuple[ChainState, Mapping[str, bytes]] | None:
        """Return the chain's position and all its accounts, consistently; None if it never began."""
        ...

    async def seen(self, *, from_height: int) -> Sequence[SeenMessage]:
        """Return the messages that landed or were refused at or above a height, oldest first."""
        ...

    async def status(self, signature: str) -> SignatureStatus | None:
        """Return the status of a transaction; None if no page contains it."""
        ...

    async def name_of(self, message_hash: Hash) -> str | None:
        """Return the signature under which a message landed or was refused; None if neither."""
        ...

    async def credits(self, token_account: str, *, after_slot: int, count: int) -> Sequence[Credit]:
        """Return up to `count` credits of a token account after a slot, oldest first."""
        ...

    async def newest(self, *, count: int) -> Sequence[Executed]:
        """Return the newest transactions, oldest first; a ledger may forget older ones than these."""
        ...

    def acknowledge(self, token_account: str, slot: int) -> None:
        """Note that the credits of a token account up to a slot are posted; a ledger may forget them."""
        ...

    def capture(self) -> Restore:
        """Return a function that restores the current content.

        Raises:
            RuntimeError: the ledger is append-only.
        """
        ...

    async def write(self, page: PersistedPage) -> None:
        """Write a page durably.

        Raises:
            LedgerMovedError: the ledger is not at `page.before`; nothing was written.
        """
        ...


_REMEMBERED_CREDITS: Final = 16_384


DepositListener = Callable[[Deposit | None], None]
"""Is notified of deposits, and must not wait. None means that some deposits may have been missed."""


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


class MemoryLedger:
    """Keeps the pages of one chain. Its coroutines never suspend."""

    def __init__(self) -> None:
        self._state: ChainState | None = None
        self._accounts: dict[Pubkey, Account | None] = {}
        self._signatures: dict[str, tuple[SignatureStatus, SeenMessage]] = {}
        self._names: dict[Hash, str] = {}
        self._credits = RecentCredits()
        self._newest: deque[Executed] = deque(maxlen=HISTORY_LENGTH)

    async def read(self) -> tuple[ChainState, Mapping[str, bytes]] | None:
        if self._state is None:
            return None
        accounts = serialized(self._accounts)
        return self._state, {address: data for address, data in accounts.items() if data is not None}

    async def seen(self, *, from_height: int) -> Sequence[SeenMessage]:
        recent = [seen for _, seen in self._signatures.values() if seen.height >= from_height]
        return sorted(recent, key=lambda seen: seen.height)

    async def status(self, signature: str) -> SignatureStatus | None:
        status, _ = self._signatures.get(signature, (None, None))
        return status

    async def name_of(self, message_hash: Hash) -> str | None:
        return self._names.get(message_hash)

    async def credits(self, token_account: str, *, after_slot: int, count: int) -> Sequence[Credit]:
        return self._credits.after(token_account, after_slot)[:count]

    async def newest(self, *, count: int) -> Sequence[Executed]:
        return list(self._newest)[-count:]

    async def write(self, page: PersistedPage) -> None:
        if page.before != self._state:
            raise LedgerMovedError("the ledger is not where this page begins")
        self._state = page.after
        for address, account in page.first_accounts.items():
            key = Pubkey.from_string(address)
            self._accounts[key] = None if account is None else Account.from_bytes(account)
        for executed in page.executed.values():
            self._accounts.update(executed.after)
            self._newest.append(executed)
        self._signatures.update(page.signatures)
        self._names.update((seen.message_hash, name) for name, (_, seen) in page.signatures.items())
        for credit in page.credits:
            self._credits.add(credit)

    def acknowledge(self, token_account: str, slot: int) -> None:
        """See `Ledger.acknowledge`: posted credits are forgotten."""
        self._credits.forget(token_account, slot)

    def capture(self) -> Restore:
        return captured(self, "_state", "_accounts", "_newest", "_signatures", "_names", "_credits")


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
