"""What the embedded chain writes down, so that it outlives the process: the protocol, and its vocabulary.

The virtual machine lives in memory and executes first; what a transaction did is then written as one page,
and only then does anybody hear of it. A process that dies before the page is written takes the memory with
it: the transaction has not happened. Where pages are kept is not known here (`chain/embedded/store.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import define, field, frozen
from solders.hash import Hash

from agentpay_server.chain.embedded.seen_messages import SeenMessage
from agentpay_server.chain.protocol import Deposit, SignatureStatus


class LedgerMovedError(Exception):
    """The ledger is not where the writer left it: another process has gone on from there."""


class ForeignLedgerError(Exception):
    """The ledger is of a chain that began with other keys: nobody could pay, mint or sign on it with ours."""


@frozen(kw_only=True)
class ChainState:
    """Where a chain stands.

    Attributes:
        genesis: names the chain: it follows from the keys that it began with.
        slot: how many transactions it has processed.
        height: of its newest block.
        height_since_us: when that block began, in microseconds since the epoch; 0 where that is unknown.
    """

    genesis: str
    slot: int
    height: int
    height_since_us: int


@frozen(kw_only=True)
class Credit:
    """Money that came into a token account, and when.

    Attributes:
        slot: of the transaction that brought it; there is one in each.
        deposit: what came.
    """

    slot: int
    deposit: Deposit


@frozen(kw_only=True)
class Page:
    """What is written at once, all or nothing.

    Attributes:
        before: where the chain stood at the last page; None when there is none yet.
        after: where it stands now.
        accounts: the accounts that have changed, by address, as Solana serialises them; None for one that is
            gone.
        statuses: what became of transactions, by signature.
        seen: their messages, by signature.
        credits: what came into token accounts, in order.
    """

    before: ChainState | None
    after: ChainState
    accounts: Mapping[str, bytes | None] = field(factory=dict, repr=lambda accounts: str(len(accounts)))
    statuses: Mapping[str, SignatureStatus] = field(factory=dict)
    seen: Mapping[str, SeenMessage] = field(factory=dict)
    credits: Sequence[Credit] = ()


@define
class Draft:
    """What is to be on the next page; the attributes are those of `Page`."""

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
    """Keeps the pages of one chain."""

    async def read(self) -> tuple[ChainState, Mapping[str, bytes]] | None:
        """Return where the chain stands and all of its accounts, of one moment; None when it never began."""
        ...

    async def seen(self, *, from_height: int) -> Sequence[SeenMessage]:
        """Return the messages that landed or were refused from a height on, oldest first."""
        ...

    async def status(self, signature: str) -> SignatureStatus | None:
        """Return what became of a transaction; None when no page tells of it."""
        ...

    async def name_of(self, message_hash: Hash) -> str | None:
        """Return the signature under which a message landed, or was refused; None when no page tells of it."""
        ...

    async def credits(self, token_account: str, *, after_slot: int, count: int) -> Sequence[Credit]:
        """Return up to `count` credits of a token account after a slot, oldest first."""
        ...

    async def write(self, page: Page) -> None:
        """Write a page; on return it outlives whatever happens to the process.

        Raises:
            LedgerMovedError: the ledger is not at `page.before`; nothing was written.
        """
        ...
