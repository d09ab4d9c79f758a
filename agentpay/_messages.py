"""Requests and responses of a caller's own httpx or httpx2 client: partial reading, and an added header.

Classes are created for the library in use, so that neither library imports the other.
"""

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, KeysView
from functools import cache
from types import ModuleType
from typing import Any

from agentpay._challenges import BODY_MAX_BYTES
from agentpay._given import LIBRARIES
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


def _of_library(message: object, name: str) -> Any:
    return getattr(_library_of(type(message)), name)  # type: ignore[arg-type]  # mypy/issues/11470


@cache
def _library_of(kind: type) -> ModuleType:
    homes = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return sys.modules[next(home for home in homes if home in LIBRARIES)]


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


class _Replayed:
    """A body whose beginning has already been read."""

    def __init__(self, stream: Any, chunks: list[bytes], rest: Any) -> None:
        self._stream = stream
        self._chunks = chunks
        self._rest = rest
        self._is_cut = False

    @property
    def elapsed(self) -> Any:
        """Used by httpx2."""
        return getattr(self._stream, "elapsed", None)

    def cut(self) -> bool:
        """Leave the rest unread; return whether a rest exists."""
        if self._rest is None:
            return False
        self._chunks, self._is_cut = [], True
        return True

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        if self._rest is not None and not self._is_cut:
            yield from self._rest

    def close(self) -> None:
        self._stream.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._rest is not None and not self._is_cut:
            async for chunk in self._rest:
                yield chunk

    async def aclose(self) -> None:
        if hasattr(self._rest, "aclose"):
            await self._rest.aclose()
        await self._stream.aclose()


def peek(response: Any) -> bytes | None:
    """Return the body and leave the response as if unread; None if the body is too large or unreadable.

    Reads at most `BODY_MAX_BYTES` and one chunk.
    """
    if response.is_stream_consumed:
        return _read_before(response)
    stream, chunks, size = response.stream, [], 0
    rest: Any = iter(stream)
    for chunk in rest:
        chunks.append(chunk)
        size += len(chunk)
        if size > BODY_MAX_BYTES:
            break
    else:
        rest = None
        stream.close()
    response.stream = _mixed(_Replayed, _of_library(response, "SyncByteStream"))(stream, chunks, rest)
    return _decoded(response, chunks) if rest is None else None


async def apeek(response: Any) -> bytes | None:
    if response.is_stream_consumed:
        return _read_before(response)
    stream, chunks, size = response.stream, [], 0
    rest: Any = aiter(stream)
    async for chunk in rest:
        chunks.append(chunk)
        size += len(chunk)
        if size > BODY_MAX_BYTES:
            break
    else:
        rest = None
        await stream.aclose()
    response.stream = _mixed(_Replayed, _of_library(response, "AsyncByteStream"))(stream, chunks, rest)
    return _decoded(response, chunks) if rest is None else None


def drop(response: Any) -> None:
    """Leave the rest of a peeked body unread. Libraries otherwise read it when they keep the response."""
    if isinstance(response.stream, _Replayed) and response.stream.cut():
        # A truncated compressed body cannot be decompressed.
        with contextlib.suppress(KeyError):
            del response.headers["content-encoding"]


def _read_before(response: Any) -> bytes | None:
    content: bytes = response.content
    return content if len(content) <= BODY_MAX_BYTES else None


def _decoded(response: Any, chunks: list[bytes]) -> bytes | None:
    try:
        body = Body(response.headers.get("content-encoding", ""), limit=BODY_MAX_BYTES)
        for chunk in chunks:
            body.feed(chunk)
        return body.finish()
    except BodyError:
        return None
