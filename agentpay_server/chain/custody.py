"""Who signs: one seed, a key for each account and role, and the protocol that a KMS could serve instead.

Keys follow BIP-44 for Solana, `m/44'/501'/{account}'/{change}'`, every level hardened. Nothing here stores or
encrypts the seed, and no method returns a secret.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn, Protocol

from solders.keypair import Keypair

_SEED_BYTES: Final = 64
_MAX_INDEX: Final = 2**31 - 1
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


class Signer(Protocol):
    """Whatever holds the keys. Both calls are synchronous: signing happens inside a unit of work."""

    def address(self, key: KeyPath) -> str:
        """Return the public key in base58."""
        ...

    def sign(self, key: KeyPath, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of a serialized transaction message."""
        ...


class Custody:
    """A `Signer` over keys derived from one seed (SLIP-10). It cannot be pickled; its `repr` says nothing."""

    __slots__ = ("_derive",)

    def __init__(self, seed: bytes) -> None:
        if len(seed) != _SEED_BYTES:
            raise ValueError(f"a custody seed has {_SEED_BYTES} bytes, not {len(seed)}")

        @lru_cache(maxsize=_CACHED_KEYS)
        def derive(key: KeyPath) -> tuple[Keypair, str]:
            path = f"m/44'/501'/{_index(key.account)}'/{_index(key.change)}'"
            keypair = Keypair.from_seed_and_derivation_path(seed, path)
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


def _account(account_index: int) -> int:
    if account_index < 1:
        raise ValueError(f"account indexes start at 1, not {account_index}: 0 holds the service's own keys")
    return _index(account_index)


def _index(value: int) -> int:
    # A path that does not parse panics in the derivation: it must never get there.
    if not 0 <= value <= _MAX_INDEX:
        raise ValueError(f"a derivation index is between 0 and {_MAX_INDEX}, not {value}")
    return value
