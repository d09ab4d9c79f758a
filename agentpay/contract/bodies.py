"""Reading the body of a response, with a limit on its size before and after decompression.

A response of one kilobyte can decompress to more than a gigabyte, and doubly compressed data does so before
the first chunk can be counted. So the decompressor itself enforces the limit, and only one level is accepted.
"""

import zlib
from typing import Final

_GZIP_BITS: Final = 31
"""A window of 32 KiB, and the header and checksum of gzip."""


class BodyError(Exception):
    """The body is refused. The message continues a sentence that begins with "the response"."""


class Body:
    """The body of one response.

    Args:
        coding: value of `Content-Encoding`; empty for none.
        limit: maximum size in bytes, before and after decompression.

    Raises:
        BodyError: the encoding is neither plain nor a single gzip.
    """

    def __init__(self, coding: str, *, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._received = 0
        self._size = 0
        self._decompressor = zlib.decompressobj(_GZIP_BITS) if coding and _is_gzip(coding) else None

    def feed(self, chunk: bytes) -> None:
        """Add received data.

        Raises:
            BodyError: the body is too large, or is not valid gzip.
        """
        self._received += len(chunk)
        if self._received > self._limit:
            raise self._too_large()
        if self._decompressor is not None:
            try:
                # One byte more than the limit distinguishes a body that is too large from one that just fits.
                chunk = self._decompressor.decompress(chunk, self._limit - self._size + 1)
            except zlib.error:
                raise BodyError("cannot be decompressed") from None
        self._size += len(chunk)
        if self._size > self._limit:
            raise self._too_large()
        self._chunks.append(chunk)

    def finish(self) -> bytes:
        """Return the whole body.

        Raises:
            BodyError: its gzip data is truncated.
        """
        if self._decompressor is not None and self._received and not self._decompressor.eof:
            raise BodyError("cannot be decompressed: it is truncated")
        return b"".join(self._chunks)

    def _too_large(self) -> BodyError:
        self._chunks.clear()
        return BodyError(f"is larger than {self._limit} bytes")


def _is_gzip(coding: str) -> bool:
    codings = [name.strip().lower() for name in coding.split(",")]
    codings = [name for name in codings if name not in ("", "identity")]
    if len(codings) > 1:
        raise BodyError(f"is compressed {len(codings)} times over")
    if codings and codings[0] not in ("gzip", "x-gzip"):
        raise BodyError(f"is compressed with {codings[0][:32]!r}, which was not requested")
    return bool(codings)
