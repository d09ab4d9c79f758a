# Generated from _async by scripts/unasync.py. Edit that one.
"""Bodies of responses to a caller's own httpx or httpx2 client: read in part, or watched."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Self

from attrs import define

from agentpay._pay402 import messages
from agentpay._pay402.challenges import BODY_MAX_BYTES
from agentpay.contract.bodies import Body, BodyError

# Messages are of either library, so they have no static type.
# ruff: noqa: ANN401


def peek(response: Any, seconds: float) -> tuple[bytes | None, bytes]:
    """Read a body and leave the response as if unread. An error of the library is noted, not raised.

    Reads at most `BODY_MAX_BYTES` and one chunk, and no longer than `seconds` and one chunk.

    Returns:
        The whole body, None if it is too large, unreadable, or did not arrive in time; and at most its first
        `BODY_MAX_BYTES`, as far as they arrived.
    """
    if response.is_stream_consumed:
        read: bytes = response.content
        return read if len(read) <= BODY_MAX_BYTES else None, read[:BODY_MAX_BYTES]
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
    replayed = messages.stream_of(_Body, response)
    response.stream = replayed(stream, rest, iter(chunks), failure)
    content = _decoded(response, chunks) if is_whole else None
    # A part of a compressed body cannot be read.
    is_plain = not response.headers.get("content-encoding")
    return content, (content or (b"".join(chunks) if is_plain else b""))[:BODY_MAX_BYTES]


def drop(response: Any) -> None:
    """Leave the rest of a peeked body unread. Libraries otherwise read it when they keep the response."""
    body = response.stream
    if isinstance(body, _Body) and (body.rest is not None or body.failure is not None):
        body.read, body.failure, body.is_cut = iter(()), None, True
        # A truncated compressed body cannot be decompressed.
        with contextlib.suppress(KeyError):
            del response.headers["content-encoding"]


def skip(response: Any) -> None:
    """Read the beginning of a body and leave its rest unread: a seller's may have no end."""
    peek(response, messages.REFUSAL_SECONDS)
    drop(response)


def watch(
    response: Any,
    broken: Callable[[], None],
    whole: Callable[[], None] | None = None,
) -> None:
    """Call `broken` if reading the body of a response ends in an error, else `whole` at its end.

    One that is closed before is whole, too, unless its reader is cancelled or cannot decode it. If `whole` is
    cancelled, the caller does not get the body.
    """
    watched = messages.stream_of(_Body, response)
    response.stream = watched(
        response.stream,
        iter(response.stream),
        iter(()),
        broken=broken,
        whole=whole,
        undecodable=messages.http_module_of(response).DecodingError,
    )


@define(eq=False, slots=False)
class _Body:
    """A body: what was read of it before, then its rest, or the error that ended the reading."""

    _stream: Any
    rest: Any
    read: Iterator[bytes]
    failure: Exception | None = None
    _broken: Callable[[], None] | None = None
    _whole: Callable[[], None] | None = None
    _undecodable: type[Exception] | tuple[()] = ()
    is_cut: bool = False
    _is_closed: bool = False

    @property
    def elapsed(self) -> Any:
        """Used by httpx2."""
        return getattr(self._stream, "elapsed", None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        for chunk in self.read:
            return chunk
        if self.failure is not None:
            raise self.failure
        if self.rest is None or self.is_cut:
            raise StopIteration
        try:
            part: bytes | None = next(self.rest, None)
            if part is None:
                self._end()
        except BaseException:
            self._break()
            raise
        if part is None:
            raise StopIteration
        return part

    def close(self) -> None:
        error = sys.exc_info()[1]
        is_ended = error is not None and not isinstance(error, (Exception, GeneratorExit))
        if self._whole is not None and (is_ended or isinstance(error, self._undecodable)):
            self._break()
        self._end()

    def _end(self) -> None:
        # The connection is free before anything else is sent.
        if not self._is_closed:
            self._is_closed = True
            self._stream.close()
        whole, self._whole = self._whole, None
        if whole is not None:
            whole()

    def _break(self) -> None:
        self._whole = None
        broken, self._broken = self._broken, None
        if broken is not None:
            broken()


def _decoded(response: Any, chunks: list[bytes]) -> bytes | None:
    try:
        body = Body(response.headers.get("content-encoding", ""), limit=BODY_MAX_BYTES)
        for chunk in chunks:
            body.feed(chunk)
        return body.finish()
    except BodyError:
        return None
