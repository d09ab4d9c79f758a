"""The blocks of the embedded chain: its height, valid blockhashes, and messages seen. No I/O.

A block takes 0.4 s of the server's clock. Heights and blockhashes are computed, not produced, so a manual
clock can jump by days at no cost. A blockhash is derived from the chain's name, its height and the number of
restores so far. So a blockhash that was issued after a snapshot is invalid once the snapshot is restored.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

from attrs import frozen
from solders.hash import Hash
from solders.message import Message, to_bytes_versioned
from solders.transaction import VersionedTransaction

from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS
from agentpay_server.platform.capturing import Restore, captured

BLOCK_US: Final = 400_000
"""Duration of a block, in microseconds of the server's clock."""

TRANSACTIONS_PER_BLOCK: Final = 1_000
"""Maximum per block. Bounds the messages to remember while their blockhashes are valid."""

FIRST_SLOT: Final = 435_888_000
"""The slot of the first block: realistic for a running chain."""


def slot_at(height: int) -> int:
    """Return the slot of the block at a height: every slot has a block."""
    return FIRST_SLOT + height


@frozen
class BlockPosition:
    """The height of the newest block, and when it began, in microseconds since the epoch."""

    height: int
    since_us: int


class Blocks:
    """The blocks of one chain. Heights never decrease, not even when the clock is set back.

    `now_us` is the server's clock, in microseconds since the epoch.
    """

    def __init__(self, genesis: str, now_us: Callable[[], int]) -> None:
        self._genesis = genesis
        self._now_us = now_us
        self._height = 0
        self._since_us = now_us()
        # Parallel lists: from each first height on, blockhashes include that number of restores.
        self._first_heights = [0]
        self._forks = [0]
        self._restores = 0
        self._landed = (0, 0)
        self._known: dict[Hash, int] = {}
        self._latest: tuple[int, Hash] | None = None

    def height(self) -> int:
        """Return the height of the newest block."""
        elapsed_us = self._now_us() - self._since_us
        if elapsed_us < 0:
            # The clock was set back: continue from its new time at the current height.
            self._since_us += elapsed_us
        elif elapsed_us >= BLOCK_US:
            count = elapsed_us // BLOCK_US
            self._height += count
            self._since_us += count * BLOCK_US
        return self._height

    def position(self) -> BlockPosition:
        """Return the current position, for the ledger."""
        return BlockPosition(self.height(), self._since_us)

    def latest(self) -> tuple[int, Hash]:
        """Return the height of the newest block and its blockhash."""
        height = self.height()
        if self._latest is None or self._latest[0] != height:
            self._latest = height, self.hash_at(height)
            self._remember(self._latest[1], height)
        return self._latest

    def height_of(self, blockhash: Hash) -> int | None:
        """Return the height of a blockhash's block; None if it is expired or unknown."""
        newest = self.height()
        oldest = max(newest - BLOCKHASH_LIFE_BLOCKS, 0)
        found = self._known.get(blockhash)
        if found is None:
            # Only requested blockhashes are cached. Computing the whole window takes under a millisecond and
            # is rarely needed, for example at the first lookup after a restart.
            missing = set(range(oldest, newest + 1)) - set(self._known.values())
            for height in missing:
                self._remember(self.hash_at(height), height)
            found = self._known.get(blockhash)
        return found if found is not None and oldest <= found <= newest else None

    def land(self) -> int:
        """Count a transaction in the newest block and return its height. A full block ends."""
        height = self.height()
        at, count = self._landed
        self._landed = height, count + 1 if at == height else 1
        if self._landed[1] == TRANSACTIONS_PER_BLOCK:
            self.begin()
        return height

    def begin(self, count: int = 1) -> None:
        """Begin `count` blocks now."""
        self._height = self.height() + count

    def resume(self, position: BlockPosition) -> None:
        """Begin a new block, above both `position` and the current height."""
        if position.height >= self.height():
            self._height, self._since_us = position.height, position.since_us
        self.begin()

    def capture(self) -> Restore:
        """Begin a block, and return a function that restores the current state and begins another block.

        A restore makes blockhashes from before the capture valid again; later ones stay invalid.
        """
        height, since_us = self.height(), self._since_us
        first_heights, forks = self._first_heights.copy(), self._forks.copy()
        self.begin()

        def restore() -> None:
            self._restores += 1
            # The clock is not read, because it may not be restored yet.
            self._height, self._since_us = height + 1, since_us
            self._first_heights = [*first_heights, self._height]
            self._forks = [*forks, self._restores]
            self._forget_forks()
            self._known.clear()
            self._latest = None

        return restore

    def hash_at(self, height: int) -> Hash:
        """Return the hash of the block at a height; forks whose blocks have all expired are forgotten."""
        fork = self._forks[max(bisect_right(self._first_heights, height) - 1, 0)]
        return Hash.from_bytes(hashlib.sha256(f"block {self._genesis} {fork} {height}".encode()).digest())

    def _remember(self, blockhash: Hash, height: int) -> None:
        if len(self._known) > 2 * BLOCKHASH_LIFE_BLOCKS:
            oldest = self._height - BLOCKHASH_LIFE_BLOCKS
            self._known = {known: at for known, at in self._known.items() if at >= oldest}
        self._known[blockhash] = height

    def _forget_forks(self) -> None:
        """Forget forks whose blocks have all expired: a test suite restores thousands of times."""
        count = bisect_right(self._first_heights, max(self._height - BLOCKHASH_LIFE_BLOCKS, 0)) - 1
        del self._first_heights[:count]
        del self._forks[:count]


# --- The messages that the embedded chain has executed or permanently refused
#
# A message is the part of a transaction that is signed. Like a cluster, the chain executes a message at most
# once, whatever its signatures: a fee payer can sign one message in many valid ways. A message is remembered
# while its blockhash may be valid.

_NO_SIGNATURES: Final[frozenset[str]] = frozenset()


@frozen
class SeenMessage:
    """A message that a chain has seen.

    Attributes:
        height: the block in which it landed or was refused.
        refused: the first signatures with which it was refused; empty if it landed.
    """

    message_hash: Hash
    height: int
    refused: frozenset[str] = _NO_SIGNATURES


def message_hash_of(transaction: VersionedTransaction) -> Hash:
    """Return the identity of a transaction's message."""
    return Message.hash_raw_message(to_bytes_versioned(transaction.message))


def is_signed_by_payer(transaction: VersionedTransaction) -> bool:
    """Return whether the first signature, which identifies the transaction, is the fee payer's and valid."""
    message = transaction.message
    return transaction.signatures[0].verify(message.account_keys[0], to_bytes_versioned(message))


class SeenMessages:
    """The messages whose blockhashes may still be valid."""

    def __init__(self) -> None:
        # Ordered by height.
        self._seen: dict[Hash, SeenMessage] = {}

    def get(self, message_hash: Hash) -> SeenMessage | None:
        """Return a message's record; None if it is new."""
        return self._seen.get(message_hash)

    def landed(self, message_hash: Hash, height: int) -> SeenMessage:
        """Record that a message was executed, successfully or not."""
        return self._add(SeenMessage(message_hash, height))

    def refused(self, message_hash: Hash, height: int, signature: str) -> SeenMessage:
        """Record that a message can never land, and the signature under which it was refused."""
        # Removed first, so that the order stays that of heights.
        known = self._seen.pop(message_hash, None)
        signatures = _NO_SIGNATURES if known is None else known.refused
        return self._add(SeenMessage(message_hash, height, signatures | {signature}))

    def load(self, seen: Iterable[SeenMessage]) -> None:
        """Replace all messages by those of a ledger, oldest first."""
        self._seen = {}
        for message in seen:
            known = self._seen.get(message.message_hash)
            refused = message.refused if known is None else known.refused | message.refused
            self._seen[message.message_hash] = SeenMessage(message.message_hash, message.height, refused)

    def capture(self) -> Restore:
        """Return a function that restores the current content."""
        return captured(self, "_seen")

    def _add(self, seen: SeenMessage) -> SeenMessage:
        """Add a message, and forget those whose blockhashes have expired."""
        self._seen[seen.message_hash] = seen
        oldest = seen.height - BLOCKHASH_LIFE_BLOCKS
        while (first := next(iter(self._seen.values()))).height < oldest:
            del self._seen[first.message_hash]
        return seen
