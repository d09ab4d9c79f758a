"""The blocks of the embedded chain: how high it stands, and which blockhashes are valid.

A block takes 0.4 s of the server's clock, whether anything lands in it or not. Heights and blockhashes are
computed, not produced: a manual clock that jumps by days costs no more than one that stands still. Nothing
here does any I/O.

A blockhash follows from the chain's name, from its height, and from how often the chain had been restored to
a snapshot by then. Blockhashes of an abandoned future are therefore never valid in another one.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from attrs import frozen
from solders.hash import Hash

from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS

BLOCK_US: Final = 400_000
"""How long a block takes, in microseconds of the server's clock."""

TRANSACTIONS_PER_BLOCK: Final = 1_000
"""How many a block holds, which bounds what must be remembered for as long as blockhashes are valid."""

FIRST_SLOT: Final = 435_888_000
"""The slot of the first block: some day on the real chain, not its beginning."""


def slot_at(height: int) -> int:
    """Return the slot of the block of a height: no slot is without a block."""
    return FIRST_SLOT + height


@frozen
class Standing:
    """Where block production stands.

    Attributes:
        height: of the newest block.
        since_us: when that block began, in microseconds since the epoch.
    """

    height: int
    since_us: int


class Blocks:
    """The blocks of one chain. Heights never decrease, even where the clock does.

    Args:
        genesis: names the chain.
        now_us: the server's clock, in microseconds since the epoch.
    """

    def __init__(self, genesis: str, now_us: Callable[[], int]) -> None:
        self._genesis = genesis
        self._now_us = now_us
        self._height = 0
        self._since_us = now_us()
        # From which height on blockhashes mix in which number of restores.
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
            # The clock was set back: time goes on from there, and the height from where it is.
            self._since_us += elapsed_us
        elif elapsed_us >= BLOCK_US:
            count = elapsed_us // BLOCK_US
            self._height += count
            self._since_us += count * BLOCK_US
        return self._height

    def standing(self) -> Standing:
        """Return where block production stands, to be kept."""
        return Standing(self.height(), self._since_us)

    def latest(self) -> tuple[int, Hash]:
        """Return the height of the newest block and its blockhash."""
        height = self.height()
        if self._latest is None or self._latest[0] != height:
            self._latest = height, self._hash(height)
            self._remember(self._latest[1], height)
        return self._latest

    def height_of(self, blockhash: Hash) -> int | None:
        """Return the height of a valid blockhash's block; None for one that is too old or unknown."""
        newest = self.height()
        oldest = max(newest - BLOCKHASH_LIFE_BLOCKS, 0)
        found = self._known.get(blockhash)
        if found is None:
            # Only those that were asked for are known: computing all of a window takes a fraction of a
            # millisecond, and is for the rare case, such as the first look after a restart.
            missing = set(range(oldest, newest + 1)) - set(self._known.values())
            for height in missing:
                self._remember(self._hash(height), height)
            found = self._known.get(blockhash)
        return found if found is not None and oldest <= found <= newest else None

    def land(self) -> int:
        """Put a transaction into the newest block, and return its height; a block that is full ends."""
        height = self.height()
        at, count = self._landed
        self._landed = height, count + 1 if at == height else 1
        if self._landed[1] == TRANSACTIONS_PER_BLOCK:
            self.begin()
        return height

    def begin(self, count: int = 1) -> None:
        """Begin `count` blocks ahead of time."""
        self._height = self.height() + count

    def resume(self, standing: Standing) -> None:
        """Continue after `standing`, and after every block so far, with a block that nobody has seen."""
        if standing.height >= self.height():
            self._height, self._since_us = standing.height, standing.since_us
        self.begin()

    def capture(self) -> Callable[[], None]:
        """Begin a block, and return what brings the chain back to the block before and begins another one.

        What was handed out before the capture is valid again after a restore; what was handed out since then
        never is.
        """
        height, since_us = self.height(), self._since_us
        first_heights, forks = self._first_heights.copy(), self._forks.copy()
        self.begin()

        def restore() -> None:
            self._restores += 1
            # The clock is not read: it may not have been brought back yet.
            self._height, self._since_us = height + 1, since_us
            self._first_heights = [*first_heights, self._height]
            self._forks = [*forks, self._restores]
            self._forget_forks()
            self._known.clear()
            self._latest = None

        return restore

    def _hash(self, height: int) -> Hash:
        fork = self._forks[bisect_right(self._first_heights, height) - 1]
        return Hash.from_bytes(hashlib.sha256(f"block {self._genesis} {fork} {height}".encode()).digest())

    def _remember(self, blockhash: Hash, height: int) -> None:
        if len(self._known) > 2 * BLOCKHASH_LIFE_BLOCKS:
            oldest = self._height - BLOCKHASH_LIFE_BLOCKS
            self._known = {known: at for known, at in self._known.items() if at >= oldest}
        self._known[blockhash] = height

    def _forget_forks(self) -> None:
        """Forget forks whose blocks have all expired: a suite restores thousands of times."""
        count = bisect_right(self._first_heights, max(self._height - BLOCKHASH_LIFE_BLOCKS, 0)) - 1
        del self._first_heights[:count]
        del self._forks[:count]
