# Generated from _async by scripts/unasync.py. Edit that one.
"""Bodies of responses to a caller's own httpx or httpx2 client: read in part, or watched."""

import contextlib
from collections.abc import Iterator, Callable
from typing import Any, NamedTuple, Self

from agentpay._pay402 import messages
from agentpay._pay402.challenges import BODY_MAX_BYTES
from agentpay.contract.bodies import Body, BodyError

# Messages are of either library, so they have no static type.
# ruff: noqa: ANN401


class Peeked(NamedTuple):
    """A body as far as it was read.

    Attributes:
        content: the whole body; None if it is too large, unreadable, or did not arrive in time.
        beginning: at most the first `BODY_MAX_BYTES`, as far as they arrived.
    """

    content: bytes | None
    beginning: bytes


def peek(response: Any, seconds: float) -> Peeked:
    """Return the body and leave the response as if unread. An error of the library is noted, not raised.

    Reads at most `BODY_MAX_BYTES` and one chunk, and no longer than `seconds` and one chunk.
    """
    if response.is_stream_consumed:
        read: bytes = response.content
        return Peeked(read if len(read) <= BODY_MAX_BYTES else None, read[:BODY_MAX_BYTES])
    stream, ends_at = response.stream, messages.monotonic() + seconds
    rest: Any = iter(stream)
    chunks: list[bytes] = []
    size, failure, is_whole = 0, None, False
    with messages.hastened(response, seconds):
        try:
            for chunk in rest:
                chunks.append(chunk)
                size += len(chunk)
                if size > BODY_MAX_BYTES or messages.monotonic() >= ends_at:
                    break
            else:
                is_whole = True
                stream.close()
        except Exception as error:  # noqa: BLE001 - of either library
            failure = error
            with contextlib.suppress(AttributeError, RuntimeError):
                error.request = response.request  # type: ignore[attr-defined]
    rest = None if is_whole or failure is not None else rest
    response.stream = messages.stream_of(_Replayed, response)(stream, chunks, rest, failure)
    content = _decoded(response, chunks) if is_whole else None
    # A part of a compressed body cannot be read.
    is_plain = not response.headers.get("content-encoding")
    return Peeked(content, (content or (b"".join(chunks) if is_plain else b""))[:BODY_MAX_BYTES])


def drop(response: Any) -> None:
    """Leave the rest of a peeked body unread. Libraries otherwise read it when they keep the response."""
    if isinstance(response.stream, _Replayed) and response.stream.cut():
        # A truncated compressed body cannot be decompressed.
        with contextlib.suppress(KeyError):
            del response.headers["content-encoding"]


def watch(response: Any, broken: Callable[[], None]) -> None:
    """Call `broken` if reading the body of a response ends in an error."""
    response.stream = messages.stream_of(_Watched, response)(response.stream, broken)


class _Wrapped:
    """A body that is read from another one, by an iterator of it."""

    _stream: Any
    _rest: Any

    @property
    def elapsed(self) -> Any:
        """Used by httpx2."""
        return getattr(self._stream, "elapsed", None)

    def close(self) -> None:
        self._stream.close()


class _Replayed(_Wrapped):
    """A body whose beginning has already been read. Reading it to its end raises what ended the reading."""

    def __init__(self, stream: Any, chunks: list[bytes], rest: Any, failure: Exception | None) -> None:
        self._stream = stream
        self._chunks = chunks
        self._rest = rest
        self._failure = failure
        self._is_cut = False

    def cut(self) -> bool:
        """Leave the rest unread; return whether a rest exists."""
        if self._rest is None and self._failure is None:
            return False
        self._chunks, self._is_cut = [], True
        return True

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._is_cut:
            return
        if self._failure is not None:
            raise self._failure
        if self._rest is not None:
            for chunk in self._rest:
                yield chunk


class _Watched(_Wrapped):
    """A body whose interruption is reported. A caller that stops reading does not interrupt it."""

    def __init__(self, stream: Any, broken: Callable[[], None]) -> None:
        self._stream = stream
        self._broken = broken
        self._rest = None

    def __iter__(self) -> Self:
        self._rest = iter(self._stream)
        return self

    def __next__(self) -> bytes:
        try:
            part: bytes = next(self._rest)
        except StopIteration:
            raise
        except BaseException:
            self._broken()
            raise
        return part


def _decoded(response: Any, chunks: list[bytes]) -> bytes | None:
    try:
        body = Body(response.headers.get("content-encoding", ""), limit=BODY_MAX_BYTES)
        for chunk in chunks:
            body.feed(chunk)
        return body.finish()
    except BodyError:
        return None
