"""The persistence of the embedded chain: the ledger protocol and its types.

The virtual machine executes in memory first. The effects are then written as one page, and reported only
after that. If the process dies before the page is written, the transaction has not happened, because memory
is lost too. `memory_ledger.py` and `store.py` implement the protocol.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from attrs import define, field, frozen
from solders.hash import Hash

from agentpay_server.chain.embedded.executed import Executed
from agentpay_server.chain.embedded.seen_messages import SeenMessage
from agentpay_server.chain.embedded.virtual_machine import serialized
from agentpay_server.chain.protocol import Deposit, SignatureStatus
from agentpay_server.platform.capturing import Restore

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
        height_since_us: when that block began, in microseconds since the epoch; 0 if unknown.
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
        first_accounts: accounts that no transaction created, as those of a new chain, by address, in Solana's
            serialization; None for none.
        executed: the transactions, by slot, with the accounts that they changed.
    """

    before: ChainState | None
    after: ChainState
    first_accounts: Mapping[str, bytes | None] = field(factory=dict, repr=lambda accounts: str(len(accounts)))
    statuses: Mapping[str, SignatureStatus] = field(factory=dict)
    seen: Mapping[str, SeenMessage] = field(factory=dict)
    credits: Sequence[Credit] = ()
    executed: Mapping[int, Executed] = field(factory=dict)

    def accounts(self) -> dict[str, bytes | None]:
        """Return the changed accounts, by address, in Solana's serialization; None for a deleted one."""
        changed: dict[str, bytes | None] = {**self.first_accounts}
        for executed in self.executed.values():
            changed |= serialized(executed.after)
        return changed


@define
class Draft:
    """The contents of the next page; the attributes are those of `PersistedPage`."""

    first_accounts: dict[str, bytes | None] = field(factory=dict)
    statuses: dict[str, SignatureStatus] = field(factory=dict)
    seen: dict[str, SeenMessage] = field(factory=dict)
    credits: list[Credit] = field(factory=list)
    executed: dict[int, Executed] = field(factory=dict)

    def page(self, *, before: ChainState | None, after: ChainState) -> PersistedPage:
        """Return the page."""
        return PersistedPage(
            before=before,
            after=after,
            first_accounts=self.first_accounts,
            statuses=self.statuses,
            seen=self.seen,
            credits=self.credits,
            executed=self.executed,
        )


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
