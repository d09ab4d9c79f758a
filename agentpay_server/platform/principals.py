"""Principals, the operators and accounts behind keys, and the format of keys (interface K2, K5, K6, W2).

An API key is `ap_operator_`, `ap_agent_` or `ap_console_`, 43 base62 characters of 256 random bits, and a
6-character checksum. A sign-in code is the same after `ap_code_`; a secret of a webhook is `whsec_` and 43
base62 characters. The checksum refuses mistyped and made-up keys before any lookup, and identifies leaked
keys in text. Only the SHA-256 digest of a key or code is ever stored.
"""

import hashlib
import re
import zlib
from typing import Final

from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.identity import KeyKind
from agentpay.contract.ext.operator_keys import OperatorKeyKind
from agentpay_server.platform.errors import Problem


@frozen(kw_only=True)
class Principal:
    """The holder of a key, for one request.

    Attributes:
        account_id: the account that an agent key is bound to; None for an operator key.
        max_total_micro: the most that the key may spend in its lifetime, in micro-USDC; None without a limit.
        is_console: an operator key that cannot manage operator keys.
        expires_us: when the key expires; None for one that does not.
    """

    operator_id: str
    key_id: str
    account_id: str | None = None
    request_id: str | None = None
    is_console: bool = False
    max_total_micro: int | None = None
    expires_us: int | None = None

    @classmethod
    def without_key(cls, address: str, request_id: str) -> "Principal":
        """A request without a key is identified by its address."""
        return cls(operator_id="", key_id=f"address {address}", request_id=request_id)

    @property
    def is_known(self) -> bool:
        return bool(self.operator_id)

    @property
    def is_agent(self) -> bool:
        return self.account_id is not None

    def require_operator(self, operation: str) -> None:
        if self.is_agent:
            raise forbidden(operation, "an operator key")

    def require_operator_key(self, operation: str, subject_id: str | None = None) -> None:
        """Refuse an agent key, and a console key that acts on anything but itself (interface CO19)."""
        self.require_operator(operation)
        if self.is_console and subject_id != self.key_id:
            raise Problem(
                ErrorCode.FORBIDDEN,
                f"{operation} is not allowed with a console key; it requires an operator key.",
            )

    def require_account(self, account_id: str, operation: str) -> None:
        """Refuse an agent key of another account, whether or not `account_id` exists."""
        if self.is_agent and self.account_id != account_id:
            raise forbidden(operation, "an operator key, or an agent key of that account")


def forbidden(operation: str, needed: str) -> Problem:
    """Name the operation and the required scope (interface E9)."""
    return Problem(
        ErrorCode.FORBIDDEN,
        f"{operation} is not allowed with this agent key; it requires {needed}.",
    )


# --- The format of keys, codes and secrets

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
