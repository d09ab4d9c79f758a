"""The stream of events as this or another process commits them: `GET /ext/v1/console/stream` (CO21).

One poll of the outbox serves all streams of a process; without streams it is not polled. The same read finds
the keys that were revoked or have expired, so that no later event is sent to their streams. Events are sent
in the order of `seq`, so that a stream can resume from one number. A missing number may belong to a
transaction that has not committed yet, so later events wait for it; but only briefly, because a rollback
leaves a permanent gap.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Final

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.deliveries import LIST_EVENTS
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import EventRecord
from agentpay_server.ledger import outbox as store
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.spending import live_keys
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem
from agentpay_server.platform.logs import log
from agentpay_server.platform.principals import Principal

POLL_SECONDS: Final = 0.5

GAP_SECONDS: Final = 2.0
"""Longest wait for a missing number."""

HEARTBEAT_SECONDS: Final = 15.0

STREAMS_OF_ONE_KEY: Final = 10

_POLL_MAX: Final = 500
_PAGE: Final = 100
_QUEUE_MAX: Final = 1000
"""Events queued for a slow reader; beyond that the stream ends, and the reader resumes."""

_RETRY: Final = b"retry: 2000\n\n"
_HEARTBEAT: Final = b": \n\n"
_RESET: Final = b"event: reset\ndata: {}\n\n"
"""The identifier to resume from is unknown; the client reads missed events from the lists."""

logger: logging.Logger = logging.getLogger(__name__)


class EventTail:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams: defaultdict[str, set[_Stream]] = defaultdict(set)
        self._position: int | None = None
        self._gaps: dict[int, float] = {}
        self._starting = asyncio.Lock()
        self._is_closed = False

    async def stream(self, principal: Principal, last_event_id: str | None) -> AsyncGenerator[bytes]:
        """Return events from now on, or after `last_event_id`, as server-sent events.

        The stream ends when the key is revoked or expires. Raises `rate_limited` if the key has too many
        open streams.
        """
        operator_id = principal.operator_id
        stream = _Stream(principal.key_id)
        if sum(each.key_id == stream.key_id for each in self._streams[operator_id]) >= STREAMS_OF_ONE_KEY:
            raise Problem(
                ErrorCode.RATE_LIMITED,
                f"This key has {STREAMS_OF_ONE_KEY} streams open, which is the limit. Close one, or read "
                f"{LIST_EVENTS.operation}.",
                says_what_to_do=True,
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._streams[operator_id].add(stream)
        if self._is_closed:
            stream.end()
        try:
            after = None if last_event_id is None else await self._seq_of(operator_id, last_event_id)
            joined = await self._join()
        except BaseException:
            self._leave(operator_id, stream)
            raise
        if after is None:
            begin, after = _RETRY + (b"" if last_event_id is None else _RESET), joined
        else:
            begin = _RETRY
        sent = self._sent(operator_id, stream, begin, after, joined)
        # Start the generator, so that closing it runs its `finally`.
        await anext(sent)
        return sent

    def close(self) -> None:
        """End all streams permanently: the server stops, or restores a snapshot."""
        self._is_closed = True
        self._end_streams()

    def _end_streams(self) -> None:
        for streams in self._streams.values():
            for stream in streams:
                stream.end()

    async def _sent(
        self, operator_id: str, stream: "_Stream", begin: bytes, after: int, joined: int
    ) -> AsyncGenerator[bytes]:
        try:
            yield b""
            yield begin
            while after < joined and not stream.is_over:
                rows = await self._context.database.read(store.between, operator_id, after, joined, _PAGE)
                if not rows:
                    break
                after = rows[-1].seq
                yield b"".join(map(_printed, rows))
            # The loop above has sent the events up to `joined`.
            while (news := await stream.next(HEARTBEAT_SECONDS)) is not None:
                yield b"".join(_printed(row) for row in news if row.seq > joined) or _HEARTBEAT
        finally:
            self._leave(operator_id, stream)

    def _leave(self, operator_id: str, stream: "_Stream") -> None:
        self._streams[operator_id].discard(stream)
        if not self._streams[operator_id]:
            del self._streams[operator_id]

    async def _seq_of(self, operator_id: str, event_id: str) -> int | None:
        if not identifiers.is_identifier(event_id, identifiers.EVENT):
            return None
        row = await self._context.database.read(store.EVENTS.get, event_id)
        return row.seq if row is not None and row.operator_id == operator_id else None

    async def _join(self) -> int:
        """Return the number up to which events were sent, and follow later ones."""
        async with self._starting:
            if self._position is None:
                self._position = await self._context.database.read(store.last_seq)
                self._context.tasks.start_loop(self._follow())
            return self._position

    async def _follow(self) -> None:
        try:
            while self._streams:
                try:
                    is_more = await self._poll()
                except Exception as error:  # noqa: BLE001 - the next poll may succeed
                    log(logger, logging.ERROR, "work.failed", exception=error, worker=type(self).__name__)
                    is_more = False
                await asyncio.sleep(0 if is_more else POLL_SECONDS)
        finally:
            self._position = None
            self._gaps.clear()
            self._end_streams()

    async def _poll(self) -> bool:
        """Send new events; return whether more may be available at once."""
        assert self._position is not None  # noqa: S101 - set before the first poll
        streams = [stream for each in self._streams.values() for stream in each]
        key_ids = {stream.key_id for stream in streams}
        rows, alive = await self._context.database.read(
            _news, self._position, key_ids, self._context.clock.now_us()
        )
        if any(stream.key_id not in key_ids for each in self._streams.values() for stream in each):
            # It has joined since, and its key may have been revoked before the last of these events.
            return True
        for stream in streams:
            if stream.key_id not in alive:
                stream.end()
        settled = self._settled(rows)
        if not settled:
            return False
        self._position = settled[-1].seq
        by_operator = defaultdict(list)
        for row in settled:
            by_operator[row.operator_id].append(row)
        for operator_id, theirs in by_operator.items():
            for stream in self._streams.get(operator_id, ()):
                stream.put(theirs)
        return len(settled) == _POLL_MAX

    def _settled(self, rows: list[EventRecord]) -> list[EventRecord]:
        """Return the events before the first number that may still be committed."""
        assert self._position is not None  # noqa: S101 - set before the first poll
        now, expected = asyncio.get_running_loop().time(), self._position + 1
        noticed, self._gaps, count = self._gaps, {}, len(rows)
        for place, row in enumerate(rows):
            if row.seq > expected:
                since = self._gaps[expected] = noticed.get(expected, now)
                if now - since < GAP_SECONDS:
                    count = min(count, place)
            expected = row.seq + 1
        return rows[:count]


class _Stream:
    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        self.is_over = False
        self._waiting: list[EventRecord] = []
        self._changed = asyncio.Event()

    def put(self, rows: list[EventRecord]) -> None:
        """End the stream if its reader has too many unread events."""
        if self.is_over:
            return
        self._waiting += rows
        if len(self._waiting) > _QUEUE_MAX:
            self.is_over = True
        self._changed.set()

    def end(self) -> None:
        self.is_over = True
        self._changed.set()

    async def next(self, within_seconds: float) -> list[EventRecord] | None:
        """Return an empty list after the timeout, None at the end of the stream."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._changed.wait()
        except TimeoutError:
            return []
        if self.is_over:
            return None
        self._changed.clear()
        rows, self._waiting = self._waiting, []
        return rows


def _news(
    connection: Connection, position: int, key_ids: set[str], now_us: int
) -> tuple[list[EventRecord], set[str]]:
    """Return the events after a position, and which keys were alive when the last of them was committed."""
    return store.after(connection, position, _POLL_MAX), live_keys(connection, key_ids, now_us)


def _printed(row: EventRecord) -> bytes:
    # A body is one line of ASCII.
    return f"id: {row.event_id}\ndata: {row.body}\n\n".encode("ascii")
