"""The format of API keys, sign-in codes and webhook secrets (interface K6, W2).

An API key is `ap_operator_`, `ap_agent_` or `ap_console_`, 43 base62 characters of 256 random bits, and a
6-character checksum. A sign-in code is the same after `ap_code_`; a secret is `whsec_` and 43 base62
characters. The checksum refuses mistyped and made-up keys before any lookup, and identifies leaked keys in
text. Only the SHA-256 digest of a key or code is ever stored.
"""

import hashlib
import re
import zlib
from typing import Final

from agentpay.contract.identity import KeyKind
from agentpay.contract.operator_keys import OperatorKeyKind

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FORM: Final = re.compile(r"(ap_(operator|agent|console|code)_[0-9A-Za-z]{43})([0-9A-Za-z]{6})", re.ASCII)

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - not a secret itself


LENT: Final = "lent"
"""The stored kind of an operator key that is valid for one run of a server."""

_CODE: Final = "code"


def new_key(kind: KeyKind | OperatorKeyKind, random_bytes: bytes) -> str:
    """`random_bytes` are 32."""
    return _credential(kind, random_bytes)


def new_code(random_bytes: bytes) -> str:
    return _credential(_CODE, random_bytes)


def _credential(kind: str, random_bytes: bytes) -> str:
    if len(random_bytes) != 32:
        raise ValueError("a key is made of exactly 32 random bytes")
    body = f"ap_{kind}_{_base62(int.from_bytes(random_bytes, 'big'), 43)}"
    return body + _checksum(body)


def digest_of(key: str) -> str | None:
    """Return the digest under which a key is stored; None if it is malformed."""
    return _digest(key, is_code=False)


def digest_of_code(code: str) -> str | None:
    """Return the digest under which a code is stored; None if it is malformed."""
    return _digest(code, is_code=True)


def _digest(text: str, *, is_code: bool) -> str | None:
    match = _FORM.fullmatch(text)
    if match is None or (match[2] == _CODE) is not is_code or _checksum(match[1]) != match[3]:
        return None
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def new_secret(random_bytes: bytes) -> str:
    return SECRET_PREFIX + _base62(int.from_bytes(random_bytes, "big"), 43)


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode("ascii")), 6)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
