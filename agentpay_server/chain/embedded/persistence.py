"""The persistence of the embedded chain: the ledger protocol and its types.

The virtual machine executes in memory first. The effects are then written as one page, and reported only
after that. If the process dies before the page is written, the transaction has not happened, because memory
is lost too. `store.py` implements the protocol.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import define, field, frozen
from solders.hash import Hash

from agentpay_server.chain.embedded.seen_messages import SeenMessage
from agentpay_server.chain.protocol import Deposit, SignatureStatus


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
class Page:
    """A unit that is written atomically.

    Attributes:
        before: the chain's position at the previous page; None for the first page.
        after: the chain's position after this page.
        accounts: the changed accounts, by address, in Solana's serialization; None for a deleted one.
    """

    before: ChainState | None
    after: ChainState
    accounts: Mapping[str, bytes | None] = field(factory=dict, repr=lambda accounts: str(len(accounts)))
    statuses: Mapping[str, SignatureStatus] = field(factory=dict)
    seen: Mapping[str, SeenMessage] = field(factory=dict)
    credits: Sequence[Credit] = ()


@define
class Draft:
    """The contents of the next page; the attributes are those of `Page`."""

    accounts: dict[str, bytes | None] = field(factory=dict)
    statuses: dict[str, SignatureStatus] = field(factory=dict)
    seen: dict[str, SeenMessage] = field(factory=dict)
    credits: list[Credit] = field(factory=list)

    def page(self, *, before: ChainState | None, after: ChainState) -> Page:
        """Return the page."""
        return Page(
            before=before,
            after=after,
            accounts=self.accounts,
            statuses=self.statuses,
            seen=self.seen,
            credits=self.credits,
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

    async def write(self, page: Page) -> None:
        """Write a page durably.

        Raises:
            LedgerMovedError: the ledger is not at `page.before`; nothing was written.
        """
        ...
