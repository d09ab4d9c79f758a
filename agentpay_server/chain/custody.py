"""Who signs: one seed, a key for each account and role, and the protocol that a KMS could serve instead.

Keys follow BIP-44 for Solana, `m/44'/501'/{account}'/{change}'`, every level hardened. A role whose key
exists already, such as a fee payer that holds SOL, keeps that key. Nothing here stores or encrypts a secret,
and no method returns one.
"""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn, Protocol

from solders.keypair import Keypair

_SEED_BYTES: Final = 64
_MAX_INDEX: Final = 2**31 - 1
_NO_KEY: Final = (
    "a key is 64 bytes, a secret and the public half that belongs to it, as solana-keygen writes them"
)
_CACHED_KEYS: Final = 1024  # Deriving a key takes as long as two signatures.


class KeyPath(NamedTuple):
    """Which key: the two free levels of its derivation path.

    Attributes:
        account: 0 for the service's own roles, else the account's index, never used again for another one.
        change: which of that account's keys.
    """

    account: int
    change: int


TREASURY: Final = KeyPath(0, 0)
"""Pays every fee and rent."""

POLICY_AUTHORITY: Final = KeyPath(0, 1)
"""Writes every policy record, so that no spending key can."""

TEST_MINT_AUTHORITY: Final = KeyPath(0, 2)
"""Mints and freezes test USDC, on chains where that is worthless."""


def spending_key(account_index: int) -> KeyPath:
    """Return the key that owns an account's token account. `account_index` starts at 1."""
    return KeyPath(_account(account_index), 0)


def record_key(account_index: int) -> KeyPath:
    """Return the key whose address is an account's policy record. `account_index` starts at 1."""
    return KeyPath(_account(account_index), 1)


def escrow_authority(account_index: int) -> KeyPath:
    """Return the key that owns the escrows of an account's sessions. `account_index` starts at 1.

    It is not the spending key: whoever may move an account's balance cannot touch what it has promised.
    """
    return KeyPath(_account(account_index), 2)


def outside_address(seed: bytes) -> str:
    """Return the address of the key that 32 bytes make; the key itself is not kept."""
    return str(Keypair.from_seed(seed).pubkey())


def read_key(text: str) -> bytes:
    """Return the key in the text of a file of `solana-keygen`: 64 numbers, a secret and its public half.

    Raises:
        ValueError: it is none; nothing of it is told.
    """
    try:
        return bytes(Keypair.from_bytes(bytes(list(json.loads(text)))))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(_NO_KEY) from None


class Signer(Protocol):
    """Whatever holds the keys. Both calls are synchronous: signing happens inside a unit of work."""

    def address(self, key: KeyPath) -> str:
        """Return the public key in base58."""
        ...

    def sign(self, key: KeyPath, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of a serialized transaction message."""
        ...


class Custody:
    """A `Signer` over keys derived from one seed (SLIP-10). It cannot be pickled; its `repr` says nothing.

    Args:
        seed: 64 secret bytes.
        given: keys that take the place of derived ones: 64 bytes each, secret and public half, as in the
            files of `solana-keygen`.

    Raises:
        ValueError: a seed or a key of another length, or a key whose halves do not belong together.
    """

    __slots__ = ("_derive",)

    def __init__(self, seed: bytes, *, given: Mapping[KeyPath, bytes] | None = None) -> None:
        if len(seed) != _SEED_BYTES:
            raise ValueError(f"a custody seed has {_SEED_BYTES} bytes, not {len(seed)}")
        keypairs = {path: _keypair(secret) for path, secret in (given or {}).items()}

        @lru_cache(maxsize=_CACHED_KEYS)
        def derive(key: KeyPath) -> tuple[Keypair, str]:
            path = f"m/44'/501'/{_index(key.account)}'/{_index(key.change)}'"
            keypair = keypairs.get(key) or Keypair.from_seed_and_derivation_path(seed, path)
            # The address is kept beside its key: a Keypair computes it anew each time, half a signature long.
            return keypair, str(keypair.pubkey())

        self._derive: Callable[[KeyPath], tuple[Keypair, str]] = derive

    def address(self, key: KeyPath) -> str:
        """Return the public key in base58."""
        return self._derive(key)[1]

    def sign(self, key: KeyPath, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of a serialized transaction message."""
        return bytes(self._derive(key)[0].sign_message(message))

    def __repr__(self) -> str:
        return "<Custody>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Custody holds secret keys and cannot be pickled or copied")


def _keypair(secret: bytes) -> Keypair:
    try:
        return Keypair.from_bytes(secret)
    except ValueError:
        # Without the cause: nothing that was made of a secret belongs into a traceback.
        raise ValueError(_NO_KEY) from None


def _account(account_index: int) -> int:
    if account_index < 1:
        raise ValueError(f"account indexes start at 1, not {account_index}: 0 holds the service's own keys")
    return _index(account_index)


def _index(value: int) -> int:
    # A path that does not parse panics in the derivation: it must never get there.
    if not 0 <= value <= _MAX_INDEX:
        raise ValueError(f"a derivation index is between 0 and {_MAX_INDEX}, not {value}")
    return value
