"""The plausible position of a cluster: block heights, slots, and new blockhashes.

Each number that a node reports is checked (`heights.py`). An implausible one is requested again, because one
URL may serve many nodes. After some attempts it is replaced by an estimate from earlier claims, or refused.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

from attrs import frozen

from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    Blockhash,
    ChainUnreachableError,
    DoubtfulNodeError,
    UnprovenError,
)
from agentpay_server.chain.rpc import blocks, replies
from agentpay_server.chain.rpc.heights import (
    MOST_UNFINALIZED_BLOCKS,
    SlotRate,
    has_plausible_life,
    life_seconds,
)
from agentpay_server.chain.rpc.polling import Recent
from agentpay_server.chain.rpc.replies import Epoch

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

Call = Callable[..., Awaitable[object]]


@frozen(kw_only=True)
class Reading:
    """The position that a node reported, and the plausible one."""

    reported: Epoch
    accepted: Epoch


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
        return (await self._reading.get()).accepted

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
        reading = await self._reading.get()
        if slot <= reading.accepted.slot:
            return
        # Until the pace is known, the accepted position is the lowest of half a minute. A cluster may be
        # faster: then the newest position counts, if the node returns the finalized block too.
        is_pace_known = self._slots.expected(asyncio.get_running_loop().time()) is not None
        if is_pace_known or slot > reading.reported.slot:
            raise UnprovenError("a transaction is reported as irreversible before its slot is")
        if await blocks.read_height(self._call, slot) > reading.reported.block_height:
            raise UnprovenError("a transaction is reported as irreversible above the block height")

    def close(self) -> None:
        """Stop requests; waiting callers get an error."""
        recents: tuple[Recent[Any], ...] = (self._reading, self._blockhash)
        for recent in recents:
            recent.close()

    async def _read(self) -> Reading:
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
        return Reading(reported=reported, accepted=accepted)

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
            reading = await self._reading.get()
            reply = await self._call("getLatestBlockhash", _CONFIRMED)
            value, last_valid_height = replies.read_blockhash(reply)
            is_new = self._is_new(last_valid_height, reading.reported.block_height)
            if is_new and self._do_slots_fit(
                reading.reported, replies.read_position(reply), last_valid_height
            ):
                return Blockhash(value=value, last_valid_block_height=last_valid_height)
            self._doubt("getLatestBlockhash", last_valid_height, reading.reported.block_height)
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
