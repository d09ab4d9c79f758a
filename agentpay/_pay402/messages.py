"""Requests and responses of a caller's own httpx or httpx2 client: partial reading, and an added header.

Classes are created for the library in use, so that neither library imports the other.
"""

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, KeysView
from functools import cache
from types import ModuleType
from typing import Any, Final, NamedTuple, Self

from agentpay._http.passed import LIBRARIES
from agentpay._pay402.challenges import BODY_MAX_BYTES
from agentpay.contract.bodies import Body, BodyError

# Messages are of either library, so they have no static type.
# ruff: noqa: ANN401


def auth_class(kind: type) -> type:
    """Derive a class from every loaded HTTP library's `Auth`."""
    loaded = (sys.modules[name].Auth for name in LIBRARIES if name in sys.modules)
    return _mixed(kind, *dict.fromkeys(base for base in loaded if not issubclass(kind, base)))


@cache
def _mixed(kind: type, *bases: type) -> type:
    return type(kind.__name__, (kind, *bases), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def http_module_of(message: object) -> ModuleType:
    """Return the HTTP library of a request or a response."""
    return _library_of(type(message))  # type: ignore[arg-type]  # mypy/issues/11470


def _of_library(message: object, name: str) -> Any:
    return getattr(_library_of(type(message)), name)  # type: ignore[arg-type]  # mypy/issues/11470


@cache
def _library_of(kind: type) -> ModuleType:
    homes = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return sys.modules[next(home for home in homes if home in LIBRARIES)]


monotonic: Final = time.monotonic

# --- Headers


def presenting(headers: Any, name: str, value: str) -> Any:
    """Return headers with a field that copies lack, because libraries build redirects from a copy."""
    base = _of_library(headers, "Headers")
    made = _mixed(_Presenting, base)(headers)
    made.presented = (name, value)
    return made


class _Presenting:
    presented: tuple[str, str]

    def _whole(self) -> Any:
        base: Any = type(self).__mro__[2]
        return base([*base.multi_items(self), self.presented])

    def __repr__(self) -> str:
        """Hide the payment, as the library does with `Authorization`: anyone can present it."""
        base: Any = type(self).__mro__[2]
        return repr(base([*base.multi_items(self), (self.presented[0], "[secure]")]))

    def __getitem__(self, key: str) -> str:
        name, value = self.presented
        return value if key.lower() == name.lower() else super().__getitem__(key)  # type: ignore[misc]

    def __contains__(self, key: str) -> bool:
        return key.lower() == self.presented[0].lower() or super().__contains__(key)  # type: ignore[misc]

    def keys(self) -> KeysView[str]:
        names = dict.fromkeys(super().keys())  # type: ignore[misc]
        return {**names, self.presented[0].lower(): None}.keys()

    @property
    def raw(self) -> list[tuple[bytes, bytes]]:
        name, value = self.presented
        plain: list[tuple[bytes, bytes]] = super().raw  # type: ignore[misc]
        return [*plain, (name.encode("ascii"), value.encode("ascii"))]


def _reader(name: str) -> Any:
    return lambda self, *args, **kwargs: getattr(self._whole(), name)(*args, **kwargs)


for _name in ("values", "items", "multi_items", "get_list"):
    setattr(_Presenting, _name, _reader(_name))
for _name in ("__len__", "__eq__"):
    setattr(_Presenting, _name, _reader(_name))


# --- Bodies


class Peeked(NamedTuple):
    """A body as far as it was read.

    Attributes:
        content: the whole body; None if it is too large, unreadable, or did not arrive in time.
        beginning: at most the first `BODY_MAX_BYTES`, as far as they arrived.
    """

    content: bytes | None
    beginning: bytes


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

    async def aclose(self) -> None:
        if hasattr(self._rest, "aclose"):
            await self._rest.aclose()
        await self._stream.aclose()


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
        yield from self._chunks
        if self._is_cut:
            return
        if self._failure is not None:
            raise self._failure
        if self._rest is not None:
            yield from self._rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._is_cut:
            return
        if self._failure is not None:
            raise self._failure
        if self._rest is not None:
            async for chunk in self._rest:
                yield chunk


class _Peek:
    """Reads the beginning of a response's body, and leaves the response as if unread.

    Reads at most `BODY_MAX_BYTES` and one chunk, and no longer than `seconds` and one chunk.
    """

    def __init__(self, response: Any, seconds: float) -> None:
        self._response = response
        self._stream = response.stream
        self._ends_at = monotonic() + seconds
        self._chunks: list[bytes] = []
        self._size = 0
        self._failure: Exception | None = None
        self._is_whole = False
        self._steps: dict[str, Any] | None = None
        self._hasten(seconds)

    def feed(self, chunk: bytes) -> bool:
        """Add received data; return whether to read on."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        return self._size <= BODY_MAX_BYTES and monotonic() < self._ends_at

    def end(self) -> None:
        """Note that the body is complete."""
        self._is_whole = True

    def fail(self, error: Exception) -> None:
        """Note an error, which reading the response to its end raises again."""
        self._failure = error
        with contextlib.suppress(AttributeError, RuntimeError):
            error.request = self._response.request  # type: ignore[attr-defined]

    def done(self, base: str, rest: Any) -> Peeked:
        replayed = _mixed(_Replayed, _of_library(self._response, base))
        rest = None if self._is_whole or self._failure is not None else rest
        self._response.stream = replayed(self._stream, self._chunks, rest, self._failure)
        content = _decoded(self._response, self._chunks) if self._is_whole else None
        # A part of a compressed body cannot be read.
        is_plain = not self._response.headers.get("content-encoding")
        beginning = content or (b"".join(self._chunks) if is_plain else b"")
        return Peeked(content, beginning[:BODY_MAX_BYTES])

    def _hasten(self, seconds: float) -> None:
        """Lower the read timeout of the body, which the library reads from the request as it begins."""
        with contextlib.suppress(RuntimeError):  # a response without a request
            extensions = self._response.request.extensions
            steps = extensions.get("timeout")
            if isinstance(steps, dict):
                read = steps.get("read")
                extensions["timeout"] = {**steps, "read": seconds if read is None else min(read, seconds)}
                self._steps = steps

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Undo the change to the request."""
        if self._steps is not None:
            self._response.request.extensions["timeout"] = self._steps


def peek(response: Any, seconds: float) -> Peeked:
    """Return the body and leave the response as if unread. An error of the library is noted, not raised."""
    if response.is_stream_consumed:
        return _read_before(response)
    with _Peek(response, seconds) as reading:
        rest: Any = iter(response.stream)
        try:
            for chunk in rest:
                if not reading.feed(chunk):
                    break
            else:
                reading.end()
                response.stream.close()
        except Exception as error:  # noqa: BLE001 - of either library
            reading.fail(error)
        return reading.done("SyncByteStream", rest)


async def apeek(response: Any, seconds: float) -> Peeked:
    """Return the body and leave the response as if unread. An error of the library is noted, not raised."""
    if response.is_stream_consumed:
        return _read_before(response)
    with _Peek(response, seconds) as reading:
        rest: Any = aiter(response.stream)
        try:
            async for chunk in rest:
                if not reading.feed(chunk):
                    break
            else:
                reading.end()
                await response.stream.aclose()
        except Exception as error:  # noqa: BLE001 - of either library
            reading.fail(error)
        return reading.done("AsyncByteStream", rest)


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

    def __aiter__(self) -> Self:
        self._rest = aiter(self._stream)
        return self

    async def __anext__(self) -> bytes:
        try:
            part: bytes = await anext(self._rest)
        except StopAsyncIteration:
            raise
        except BaseException:
            self._broken()
            raise
        return part


def watch(response: Any, broken: Callable[[], None]) -> None:
    """Call `broken` if reading the body of a response ends in an error."""
    bases = (_of_library(response, name) for name in ("SyncByteStream", "AsyncByteStream"))
    response.stream = _mixed(_Watched, *bases)(response.stream, broken)


def is_stream(request: Any) -> bool:
    """Return whether a body that was not read yet can be sent only once. A form with files is no stream."""
    kinds = (_of_library(request, name) for name in ("SyncByteStream", "AsyncByteStream"))
    return not all(isinstance(request.stream, kind) for kind in kinds)


def drop(response: Any) -> None:
    """Leave the rest of a peeked body unread. Libraries otherwise read it when they keep the response."""
    if isinstance(response.stream, _Replayed) and response.stream.cut():
        # A truncated compressed body cannot be decompressed.
        with contextlib.suppress(KeyError):
            del response.headers["content-encoding"]


def _read_before(response: Any) -> Peeked:
    content: bytes = response.content
    return Peeked(content if len(content) <= BODY_MAX_BYTES else None, content[:BODY_MAX_BYTES])


def _decoded(response: Any, chunks: list[bytes]) -> bytes | None:
    try:
        body = Body(response.headers.get("content-encoding", ""), limit=BODY_MAX_BYTES)
        for chunk in chunks:
            body.feed(chunk)
        return body.finish()
    except BodyError:
        return None
