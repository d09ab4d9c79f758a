"""The format of API keys and of webhook secrets (interface K6, W2).

An API key is `ap_operator_` or `ap_agent_`, 43 base62 characters, and a 6-character checksum; a secret is
`whsec_` and 43 base62 characters. Both are 256 random bits. The checksum allows refusing mistyped or invented
keys before any look-up, and recognising leaked keys in text. Only the SHA-256 digest of a key is stored.
"""

import hashlib
import re
import zlib
from typing import Final

from agentpay.contract.identity import KeyKind

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KEY: Final = re.compile(r"(ap_(?:operator|agent)_[0-9A-Za-z]{43})([0-9A-Za-z]{6})", re.ASCII)

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the mark of a secret, not one


LENT: Final = "lent"
"""The stored kind of an operator key that is valid for one run of a server."""


def new_key(kind: KeyKind, random_bytes: bytes) -> str:
    """Return the key for 32 random bytes."""
    if len(random_bytes) != 32:
        raise ValueError("a key is made of exactly 32 random bytes")
    body = f"ap_{kind}_{_base62(int.from_bytes(random_bytes, 'big'), 43)}"
    return body + _checksum(body)


def digest_of(key: str) -> str | None:
    """Return the digest under which a key is stored; None for malformed text."""
    match = _KEY.fullmatch(key)
    if match is None or _checksum(match[1]) != match[2]:
        return None
    return hashlib.sha256(key.encode("ascii")).hexdigest()


def new_secret(random_bytes: bytes) -> str:
    """Return the webhook secret for 32 random bytes."""
    return SECRET_PREFIX + _base62(int.from_bytes(random_bytes, "big"), 43)


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode("ascii")), 6)


def _base62(number: int, width: int) -> str:
    """Return `number` in base 62 with `width` digits; figures before letters."""
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
