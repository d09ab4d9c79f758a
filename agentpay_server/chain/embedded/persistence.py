"""The persistence of the embedded chain: the ledger protocol and its types.

The virtual machine executes in memory first. The effects are then written as one page, and reported only
after that. If the process dies before, the transaction has not happened: memory is lost too.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import define, field, frozen
from solders.hash import Hash

from agentpay_server.chain.embedded.seen_messages import SeenMessage
from agentpay_server.chain.protocol import Deposit, SignatureStatus


class LedgerMovedError(Exception):
    """Another process has written to the ledger."""


class ForeignLedgerError(Exception):
    """Its chain has other keys: this server could not pay, mint or sign on it."""


@frozen(kw_only=True)
class ChainState:
    """`genesis` is derived from treasury and mint authority; `slot` grows by one with each transaction.

    The block at `height` began at `height_since_us`, in microseconds since the epoch; 0 if unknown.
    """

    genesis: str
    slot: int
    height: int
    height_since_us: int


@frozen(kw_only=True)
class Credit:
    """Each slot has one transaction."""

    slot: int
    deposit: Deposit


@frozen(kw_only=True)
class Page:
    """Written atomically.

    `before` is the position at the previous page, None for the first one; `accounts` are the changed ones, by
    address, in Solana's serialization; None for a deleted one.
    """

    before: ChainState | None
    after: ChainState
    accounts: Mapping[str, bytes | None] = field(factory=dict, repr=lambda accounts: str(len(accounts)))
    statuses: Mapping[str, SignatureStatus] = field(factory=dict)
    seen: Mapping[str, SeenMessage] = field(factory=dict)
    credits: Sequence[Credit] = ()


@define
class Draft:
    """The contents of the next page."""

    accounts: dict[str, bytes | None] = field(factory=dict)
    statuses: dict[str, SignatureStatus] = field(factory=dict)
    seen: dict[str, SeenMessage] = field(factory=dict)
    credits: list[Credit] = field(factory=list)

    def page(self, *, before: ChainState | None, after: ChainState) -> Page:
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
        """The position and all accounts, consistently; None if the chain never began."""
        ...

    async def seen(self, *, from_height: int) -> Sequence[SeenMessage]:
        """The messages that landed or were refused at or above a height, oldest first."""
        ...

    async def status(self, signature: str) -> SignatureStatus | None:
        """None if no page contains the transaction."""
        ...

    async def name_of(self, message_hash: Hash) -> str | None:
        """The signature under which a message landed or was refused."""
        ...

    async def credits(self, token_account: str, *, after_slot: int, count: int) -> Sequence[Credit]:
        """Oldest first."""
        ...

    async def write(self, page: Page) -> None:
        """Durably. Raises `LedgerMovedError` if the ledger is not at `page.before`."""
        ...
