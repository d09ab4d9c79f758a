"""The plausible position of a cluster: block heights, slots, new blockhashes, and irreversible blocks.

Each number that a node reports is checked (`SlotRate`). An implausible one is requested again, because one
URL may serve many nodes. After some attempts it is replaced by an estimate from earlier claims, or refused.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from statistics import median_low
from typing import Any, Final

from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    Blockhash,
    ChainUnreachableError,
    DoubtfulNodeError,
    UnprovenError,
    reported_landing_heights,
)
from agentpay_server.plugins.cluster import replies
from agentpay_server.plugins.cluster.polling import Recent
from agentpay_server.plugins.cluster.replies import Epoch, count, member, read_hash, read_slots, read_validity

# --- Irreversible blocks, to check what nodes report about them.
#
# A node has a gap in its blocks after downtime and a restart from a snapshot. It knows the blocks before and
# after the gap, and responds as if it were complete. Heights reveal the gap because they count blocks: the
# difference of two heights is the number of blocks between them.

_MOST_STEPS: Final = 64
_MOST_BLOCKS: Final = 100_000  # Per reply; the blocks of a blockhash's life are 150.

_MAX_ERROR_BLOCKS: Final = 2 * BLOCKHASH_LIFE_BLOCKS
"""Maximum error of a last valid height that a node reported with a blockhash."""

Call = Callable[..., Awaitable[object]]


async def read_height(call: Call, slot: int) -> int:
    """Return the height of the irreversible block in a slot."""
    return count(await _block(call, slot), "blockHeight")


async def landing_heights(
    call: Call, tip: Epoch, blockhash: str, last_valid_height: int
) -> tuple[int, int] | None:
    """See `Chain.landing_heights`. `tip` is the node's position, above the last valid height."""
    first = last_valid_height - BLOCKHASH_LIFE_BLOCKS
    slot = await slot_of(call, tip, first) if first >= 0 else None
    if slot is None:
        return None
    if read_hash(member(await _block(call, slot), "blockhash", str)) == blockhash:
        return reported_landing_heights(last_valid_height)
    # The height is wrong. A node that is another life ahead has seen the right block, and knows its hash.
    if tip.block_height <= last_valid_height + BLOCKHASH_LIFE_BLOCKS:
        raise ChainUnreachableError("a node reported a wrong last valid height for a blockhash")
    reply = await call("isBlockhashValid", blockhash, {"commitment": "finalized"})
    slot, is_valid = read_validity(reply)
    if is_valid or slot < tip.slot:
        raise ChainUnreachableError("a blockhash may still be valid")
    return max(first - _MAX_ERROR_BLOCKS, 0), await read_height(call, slot)


async def _block(call: Call, slot: int) -> object:
    options = {
        "transactionDetails": "none",
        "rewards": False,
        "maxSupportedTransactionVersion": 255,  # No transactions are requested.
        "commitment": "finalized",
    }
    return await call("getBlock", slot, options)


async def has_all_blocks(call: Call, tip: Epoch, first_height: int, last_height: int) -> bool:
    """Return whether a node has every irreversible block from one height to another.

    `call` calls a method of the node with parameters. `tip`, the node's position, is above the last of the
    blocks.

    Raises:
        ChainUnreachableError: the node did not respond.
    """
    wanted = last_height - first_height + 1
    if not 0 < wanted <= _MOST_BLOCKS:
        return False
    slot = await slot_of(call, tip, first_height)
    if slot is None:
        return False
    slots = await _slots_from(call, slot, wanted)
    return len(slots) == wanted and await read_height(call, slots[-1]) == last_height


async def slot_of(call: Call, tip: Epoch, height: int) -> int | None:
    """Return the slot of the block at a height; None if the search finds no such block."""
    # A step of N slots skips at most N blocks, so it never overshoots.
    slot = tip.slot - (tip.block_height - height)
    for _ in range(_MOST_STEPS):
        if slot < 0:
            return None
        found = await _slots_from(call, slot, 1)
        if not found:
            return None
        above = await read_height(call, found[0]) - height
        if above == 0:
            return found[0]
        if above < 0:
            return None
        # Slots may be empty. The next block is then the same one, and the step must be longer.
        slot = min(slot - 1, found[0] - above)
    return None


async def _slots_from(call: Call, slot: int, most: int) -> list[int]:
    return read_slots(await call("getBlocksWithLimit", slot, most, {"commitment": "finalized"}))


# --- The plausibility of heights
#
# A height is a claim of a node. It is compared with earlier claims by the server's own clock: blocks come at
# a measured pace, and none comes early. `chain.py` does not sign with a blockhash whose last valid height is
# implausible, and `engine/broadcast.py` accepts no expiry before a blockhash can have expired.

MOST_UNFINALIZED_BLOCKS: Final = 150
"""Maximum blocks between the newest confirmed and finalized ones; about 31 on a healthy cluster."""

_INTERVAL_SECONDS: Final = 4.0
_INTERVAL_BLOCKS: Final = 8
_LONGEST_INTERVAL_SECONDS: Final = 20.0
_INTERVALS: Final = 5
_LEAST_INTERVALS: Final = 3
_WINDOW_SECONDS: Final = 30.0
_LEAST_SPAN_SECONDS: Final = 15.0
_SPACING_SECONDS: Final = 1.0
_TOLERANCE: Final = 20
"""Number of blocks, or slots, that a claim may be ahead of the pace; fewer than between finalized and
confirmed.
"""

_TOLERANCE_SECONDS: Final = 1.0
_LIFE_MARGIN: Final = 1.2
"""Tolerance of the pace. On a healthy cluster it causes no delay, because finality takes as long."""


class SlotRate:
    """Claims about a number that rises at a steady pace, such as a block height.

    The pace is the average over intervals of some seconds, without the fastest and the slowest one: a node
    that jumps ahead and later back affects only these two. The line goes through the median of the claims of
    the last half minute.
    """

    def __init__(self) -> None:
        # When a node reported which number.
        self._claims: deque[tuple[float, int]] = deque()
        self._intervals: deque[tuple[float, int]] = deque(maxlen=_INTERVALS)
        self._interval_start: tuple[float, int] | None = None

    @property
    def per_second(self) -> float | None:
        """The pace; None while it is unknown."""
        if len(self._intervals) < _LEAST_INTERVALS:
            return None
        by_pace = sorted(self._intervals, key=lambda interval: interval[1] / interval[0])[1:-1]
        pace = sum(gained for _, gained in by_pace) / sum(seconds for seconds, _ in by_pace)
        return pace if pace > 0 else None

    def note(self, value: int, now: float) -> None:
        """Record a claim, plausible or not: one that all nodes keep reporting is eventually accepted."""
        at, start = self._interval_start or (now, value)
        if self._interval_start is None:
            self._interval_start = (now, value)
        elif _is_interval(now - at, value - start):
            self._intervals.append((now - at, value - start))
            self._interval_start = (now, value)
        if not self._claims or now - self._claims[-1][0] >= _SPACING_SECONDS:
            self._claims.append((now, value))
        while self._claims[0][0] < now - _WINDOW_SECONDS:
            self._claims.popleft()

    def expected(self, now: float) -> int | None:
        """Return the number expected from earlier claims; None if there are too few."""
        pace = self.per_second
        claims = [(at, value) for at, value in self._claims if at >= now - _WINDOW_SECONDS]
        if pace is None or not claims or claims[-1][0] - claims[0][0] < _LEAST_SPAN_SECONDS:
            return None
        # The lower of two medians, to assume less progress if in doubt.
        return median_low(value + int(pace * (now - at)) for at, value in claims)

    def highest(self, now: float) -> int | None:
        """Return the highest plausible claim at a time; None if there is too little information."""
        expected = self.expected(now)
        return None if expected is None else expected + self._tolerance()

    def lowest(self, now: float) -> int | None:
        """Return the lowest plausible claim of a node that does not lag; None if it is unknown."""
        expected = self.expected(now)
        return None if expected is None else expected - self._tolerance()

    def is_plausible(self, value: int, now: float) -> bool:
        """Return whether a claim has not risen faster than possible since earlier claims."""
        highest = self.highest(now)
        return highest is None or value <= highest

    def accepted(self, value: int, now: float) -> int:
        """Return a number, at most the claim, that is safe to act on.

        While the pace is unknown, the lowest claim of the last half minute.
        """
        expected = self.expected(now)
        if expected is None:
            return min([value, *(claimed for _, claimed in self._claims)])
        return value if self.is_plausible(value, now) else min(value, expected)

    def newest_believable(self, now: float) -> int | None:
        """Return the highest plausible claim of the last half minute, or None."""
        values = [value for at, value in self._claims if at >= now - _WINDOW_SECONDS]
        return max((value for value in values if self.is_plausible(value, now)), default=None)

    def _tolerance(self) -> int:
        return max(_TOLERANCE, int((self.per_second or 0) * _TOLERANCE_SECONDS))


def _is_interval(seconds: float, gained: int) -> bool:
    """Return whether an interval is long enough that one block does not affect the pace."""
    is_long = seconds >= _INTERVAL_SECONDS and abs(gained) >= _INTERVAL_BLOCKS
    return is_long or seconds >= _LONGEST_INTERVAL_SECONDS


def has_plausible_life(last_valid_height: int, *, height: int, lowest_height: int | None = None) -> bool:
    """Return whether a blockhash's last valid height fits the cluster's height: whether it is new.

    `height` is that of the newest finalized block, read before the blockhash; `lowest_height` the lowest
    plausible height of that block, None if unknown.
    """
    known = height if lowest_height is None else max(height, lowest_height)
    ahead = last_valid_height - height
    return (
        last_valid_height >= known + BLOCKHASH_LIFE_BLOCKS
        and ahead <= BLOCKHASH_LIFE_BLOCKS + MOST_UNFINALIZED_BLOCKS
    )


def life_seconds(blocks_per_second: float) -> float:
    """Return how long a transaction may still land after it was signed, at a pace, with a margin."""
    return BLOCKHASH_LIFE_BLOCKS / blocks_per_second * _LIFE_MARGIN


_TRIES: Final = 3
_DEFAULT_BLOCK_SECONDS: Final = 0.4
"""Assumed time of a block until the cluster's pace is known. Only for pauses; no proof depends on it."""

_LONGEST_BLOCK_SECONDS: Final = 1.0
"""Maximum time of a block, for pauses: wrong heights could suggest a pace that is far too slow."""

_BLOCKHASH_BLOCKS: Final = 5
_QUIET_SECONDS: Final = 1.0
_MOST_EMPTY_SLOTS: Final = 16
"""Empty slots between two positions that are plausible at any distance; a leader misses four in a row."""

_CONFIRMED: Final = {"commitment": "confirmed"}
_FINALIZED: Final = {"commitment": "finalized"}

logger: logging.Logger = logging.getLogger(__name__)


class ChainHead:
    """Reads the cluster's position, once for all callers at about the same time.

    Args:
        call: calls a method of the node.
        blockhash_seconds: how long a blockhash is used for new transactions; None for the time of some
            blocks.
        is_surfpool: whether it is Surfpool: one honest node, which counts slots and heights differently,
            so that they cannot be compared, and reports no whole history.
    """

    def __init__(self, call: Call, blockhash_seconds: float | None, *, is_surfpool: bool = False) -> None:
        self._call = call
        self.is_surfpool = is_surfpool
        self._blockhash_seconds = blockhash_seconds
        self._heights = SlotRate()
        self._slots = SlotRate()
        self._doubted_at = -math.inf
        self._reading = Recent(self._read, _DEFAULT_BLOCK_SECONDS)
        self._blockhash = Recent(self._fetch_blockhash, 0.0)
        self._set_ages()

    @property
    def block_seconds(self) -> float:
        """The approximate time of a block, for pauses."""
        pace = self._heights.per_second
        return _DEFAULT_BLOCK_SECONDS if pace is None else min(1 / pace, _LONGEST_BLOCK_SECONDS)

    @property
    def blockhash_life_seconds(self) -> float:
        """How long a transaction may land after it was signed; infinite while the pace is unknown."""
        pace = self._heights.per_second
        return math.inf if pace is None else life_seconds(pace)

    async def tip(self) -> Epoch:
        """Return the newest plausible finalized block, which may be slightly old."""
        return (await self._reading.get())[1]

    async def blockhash(self) -> Blockhash:
        """Return a confirmed blockhash for a new transaction, no older than some blocks.

        Raises:
            ChainUnreachableError: no node responded, or no blockhash fits the height.
        """
        return await self._blockhash.get()

    def check_stands_at_tip(self, slot: int) -> None:
        """Raise unless a node at this slot has seen all that was finalized at the last height.

        Raises:
            DoubtfulNodeError: the node lags, or reports an implausible slot.
        """
        now = asyncio.get_running_loop().time()
        tip, highest = self._slots.newest_believable(now), self._slots.highest(now)
        if tip is not None and slot < tip:
            raise DoubtfulNodeError("a node that lags behind does not know a signature")
        if highest is not None and slot > highest + MOST_UNFINALIZED_BLOCKS:
            self._doubt("getSignatureStatuses", slot, highest)
            raise DoubtfulNodeError("a node with an implausible slot does not know a signature")

    def check_is_reached(self, slot: int) -> None:
        """Raise if the cluster cannot have reached a slot yet, by earlier claims.

        Raises:
            UnprovenError: the slot is implausible.
        """
        highest = self._slots.highest(asyncio.get_running_loop().time())
        if highest is not None and slot > highest + MOST_UNFINALIZED_BLOCKS:
            raise UnprovenError("a transaction is reported in a slot that the cluster has not reached")

    async def check_is_finalized(self, slot: int) -> None:
        """Raise unless the cluster has finalized a slot, as far as that is known.

        Raises:
            UnprovenError: the slot is above the newest plausible position.
            ChainUnreachableError: a node did not respond.
        """
        if slot <= (await self.tip()).slot:
            return
        # That position may be older than the report of the slot.
        self._reading.forget()
        reported, accepted = await self._reading.get()
        if slot <= accepted.slot:
            return
        # Until the pace is known, the accepted position is the lowest of half a minute. A cluster may be
        # faster: then the newest position counts, if the node returns the finalized block too.
        is_pace_known = self._slots.expected(asyncio.get_running_loop().time()) is not None
        if is_pace_known or slot > reported.slot:
            raise UnprovenError("a transaction is reported as irreversible before its slot is")
        if await read_height(self._call, slot) > reported.block_height:
            raise UnprovenError("a transaction is reported as irreversible above the block height")

    def close(self) -> None:
        """Stop requests; waiting callers get an error."""
        recents: tuple[Recent[Any], ...] = (self._reading, self._blockhash)
        for recent in recents:
            recent.close()

    async def _read(self) -> tuple[Epoch, Epoch]:
        """Return the position that a node reports, and the plausible one."""
        tries_left = _TRIES
        while True:
            reported = replies.read_epoch(await self._call("getEpochInfo", _FINALIZED))
            tries_left -= 1
            now = asyncio.get_running_loop().time()
            if self._is_plausible(reported, now) or not tries_left:
                break
        self._heights.note(reported.block_height, now)
        self._slots.note(reported.slot, now)
        self._set_ages()
        accepted = Epoch(
            block_height=self._heights.accepted(reported.block_height, now),
            slot=self._slots.accepted(reported.slot, now),
        )
        return reported, accepted

    def _is_plausible(self, reported: Epoch, now: float) -> bool:
        for line, value in ((self._heights, reported.block_height), (self._slots, reported.slot)):
            if not line.is_plausible(value, now):
                self._doubt("getEpochInfo", value, line.expected(now))
                return False
        return True

    async def _fetch_blockhash(self) -> Blockhash:
        """Return a new blockhash. An apparently old one is never used for signing.

        The height is read first, so a consistent node's is at least 150 blocks below the last valid height.
        """
        for _ in range(_TRIES):
            reported, _ = await self._reading.get()
            reply = await self._call("getLatestBlockhash", _CONFIRMED)
            value, last_valid_height = replies.read_blockhash(reply)
            is_new = self._is_new(last_valid_height, reported.block_height)
            if is_new and self._do_slots_fit(reported, replies.read_position(reply), last_valid_height):
                return Blockhash(value=value, last_valid_block_height=last_valid_height)
            self._doubt("getLatestBlockhash", last_valid_height, reported.block_height)
            # Either number may be wrong.
            self._reading.forget()
        raise ChainUnreachableError("the last valid height of the blockhash does not fit the block height")

    def _is_new(self, last_valid_height: int, height: int) -> bool:
        # Earlier claims reveal a node that reports both numbers wrong by the same amount.
        lowest = self._heights.lowest(asyncio.get_running_loop().time())
        return has_plausible_life(last_valid_height, height=height, lowest_height=lowest)

    def _do_slots_fit(self, reported: Epoch, slot: int, last_valid_height: int) -> bool:
        """Return whether the blocks between two positions fit the slots between them, of which few are empty.

        A node that reports all its heights wrong by the same amount is revealed by its slots.
        """
        slots = slot - reported.slot
        empty = slots - (last_valid_height - BLOCKHASH_LIFE_BLOCKS - reported.block_height)
        return self.is_surfpool or 0 <= empty <= slots // 4 + _MOST_EMPTY_SLOTS

    def _set_ages(self) -> None:
        seconds = self._blockhash_seconds
        self._reading.max_age_seconds = self.block_seconds
        self._blockhash.max_age_seconds = (
            self.block_seconds * _BLOCKHASH_BLOCKS if seconds is None else seconds
        )

    def _doubt(self, method: str, reported: int, expected: int | None) -> None:
        """Log an implausible number, at most once a second."""
        now = asyncio.get_running_loop().time()
        if now >= self._doubted_at + _QUIET_SECONDS:
            self._doubted_at = now
            logger.warning("%s returned %d, which does not fit %s: ignored", method, reported, expected)
