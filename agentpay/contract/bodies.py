"""The body of a response as it arrives, bounded in what arrives and in what it unfolds to.

A response of one kilobyte can unfold to more than a gigabyte, and a coding applied twice does so before the
first piece can be counted. So the limit is applied inside the decompressor, and only one coding is taken.
"""

import zlib
from typing import Final

_GZIP_BITS: Final = 31
"""A window of 32 KiB, and the header and checksum of gzip."""


class BodyError(Exception):
    """The body is refused; the message continues a sentence that begins with the response."""


class Body:
    """The body of one response.

    Args:
        coding: value of `Content-Encoding`; empty for none.
        limit: bytes that may arrive, and bytes that they may unfold to.

    Raises:
        BodyError: the body is not plain, nor gzip once.
    """

    def __init__(self, coding: str, *, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._received = 0
        self._size = 0
        self._decompressor = zlib.decompressobj(_GZIP_BITS) if coding and _is_gzip(coding) else None

    def feed(self, chunk: bytes) -> None:
        """Keep what arrived.

        Raises:
            BodyError: the body is too large, or is not the gzip that it claims to be.
        """
        self._received += len(chunk)
        if self._received > self._limit:
            raise self._too_large()
        if self._decompressor is not None:
            try:
                # One byte more than may come tells a body that is too large from one that just fits.
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
            BodyError: its gzip was cut short.
        """
        if self._decompressor is not None and self._received and not self._decompressor.eof:
            raise BodyError("cannot be decompressed: it was cut short")
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
        raise BodyError(f"is compressed with {codings[0][:32]!r}, which was not asked for")
    return bool(codings)
