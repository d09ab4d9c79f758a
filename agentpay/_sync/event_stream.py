# Generated from _async by scripts/unasync.py. Edit that one.
"""A stream of events that is open: reads its chunks, and yields their events."""

from collections import deque
from collections.abc import Generator
from types import TracebackType
from typing import Self, cast

from agentpay._calls.event_stream import EventReader
from agentpay.contract.events import AnyEvent
from agentpay.contract.responses import RawResponse
from agentpay.errors import AgentPayError


class EventStream:
    """Events as they are recorded, until the server ends the stream or `close` is called.

    Use it as a context manager, and iterate over it. The sync client connects when the context is entered,
    or else at the first event; the sync client when `stream` is called. Every event that is recorded from
    then on is yielded.

    Attributes:
        response: the response that began the stream, without its content; None before.
        last_event_id: the last event that was yielded, to continue after it in another stream; before the
            first one, the event that the stream was asked to begin after.
    """

    __module__ = "agentpay.resources"

    def __init__(
        self, pieces: Generator[RawResponse | bytes, None], last_event_id: str | None = None
    ) -> None:
        self._pieces = pieces
        self._reader = EventReader()
        self._events: deque[AnyEvent] = deque()
        self.response: RawResponse | None = None
        self.last_event_id: str | None = last_event_id

    @classmethod
    def open(
        cls, pieces: Generator[RawResponse | bytes, None], last_event_id: str | None = None
    ) -> Self:
        """Return a stream that is connected. Used by the client."""
        stream = cls(pieces, last_event_id)
        stream._begin()
        return stream

    def close(self) -> None:
        """Close the connection. No event follows; closing twice is allowed."""
        self._events.clear()
        self._pieces.close()


    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AnyEvent:
        self._begin()
        while not self._events:
            piece = self._next()
            if piece is None:
                raise StopIteration
            try:
                self._events.extend(cast("list[AnyEvent]", self._reader.feed(piece)))
            except AgentPayError:
                self.close()
                raise
        event = self._events.popleft()
        self.last_event_id = event.id
        return event

    def _begin(self) -> None:
        if self.response is None:
            self.response = cast("RawResponse | None", self._next())

    def _next(self) -> bytes | None:
        try:
            for piece in self._pieces:
                return cast("bytes", piece)
        except AgentPayError as error:
            # Reading has no effect.
            error.outcome = "not_done"
            raise
        return None
