"""Key custody: a key per account and role, derived from one seed.

Derivation paths follow BIP-44 for Solana, `m/44'/501'/{account}'/{change}'`, hardened at every level. An
existing key can be given for a role, such as a fee payer that holds SOL. Nothing here stores, encrypts or
returns a secret, so that a KMS could implement `Signer` instead.
"""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn, Protocol

from solders.keypair import Keypair

from agentpay_server.chain.channels.codecs import Voucher

_SEED_BYTES: Final = 64
_VOUCHERS: Final = 3
_MAX_INDEX: Final = 2**31 - 1
_NO_KEY: Final = "a key is 64 bytes, a secret and its matching public half, as solana-keygen writes them"
_CACHED_KEYS: Final = 1024  # Deriving a key takes as long as two signatures.


class KeyPath(NamedTuple):
    """Identifies a key by the two variable levels of its derivation path.

    `account` is 0 for the service's own roles, otherwise the account's index, which is never reused.
    """

    account: int
    change: int


TREASURY: Final = KeyPath(0, 0)
"""Pays every fee and rent."""

POLICY_AUTHORITY: Final = KeyPath(0, 1)
"""Writes every policy record, so that spending keys cannot."""

TEST_MINT_AUTHORITY: Final = KeyPath(0, 2)
"""Mints and freezes test USDC on chains where money has no value."""


def spending_key(account_index: int) -> KeyPath:
    """Return the key that owns an account's token account. `account_index` starts at 1."""
    return KeyPath(_account(account_index), 0)


def record_key(account_index: int) -> KeyPath:
    """Return the key whose address is an account's policy record. `account_index` starts at 1."""
    return KeyPath(_account(account_index), 1)


def escrow_authority(account_index: int) -> KeyPath:
    """Return the key that owns the escrows of an account's sessions. `account_index` starts at 1.

    Separate from the spending key, which therefore cannot spend escrows.
    """
    return KeyPath(_account(account_index), 2)


def voucher_key(account_index: int) -> KeyPath:
    """Return the key that signs vouchers of an account's channels, and nothing else.

    `account_index` starts at 1.
    """
    return KeyPath(_account(account_index), _VOUCHERS)


def outside_address(seed: bytes) -> str:
    """Return the address of the key derived from 32 bytes, and discard the key."""
    return str(Keypair.from_seed(seed).pubkey())


def read_key(text: str) -> bytes:
    """Parse the text of a `solana-keygen` file: 64 numbers, a secret and its public half.

    Raises:
        ValueError: the text is not such a key. The message quotes nothing of it.
    """
    try:
        return bytes(Keypair.from_bytes(bytes(list(json.loads(text)))))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(_NO_KEY) from None


class Signer(Protocol):
    """Holds the keys. Synchronous, because signing happens inside a unit of work."""

    def address(self, key: KeyPath) -> str:
        """Return the public key in base58."""
        ...

    def sign(self, key: KeyPath, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of a serialized transaction message.

        Raises:
            ValueError: the key signs vouchers only.
        """
        ...

    def sign_voucher(self, key: KeyPath, voucher: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of a voucher: always the same for the same bytes.

        Raises:
            ValueError: the key is not one of `voucher_key`, or the bytes are not a voucher.
        """
        ...


class Custody:
    """A `Signer` over keys derived from one seed (SLIP-10). It cannot be pickled; its `repr` shows nothing.

    Args:
        seed: 64 secret bytes.
        given: keys to use instead of derived ones, each of 64 bytes as in `solana-keygen` files: the secret
            and the public half.

    Raises:
        ValueError: a seed or key has a wrong length, or the halves of a key do not match.
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
            # Cached too, because a Keypair computes its address on each access, in half the time of a
            # signature.
            return keypair, str(keypair.pubkey())

        self._derive: Callable[[KeyPath], tuple[Keypair, str]] = derive

    def address(self, key: KeyPath) -> str:
        return self._derive(key)[1]

    def sign(self, key: KeyPath, message: bytes) -> bytes:
        if key.change == _VOUCHERS:
            raise ValueError("this key signs vouchers, and no transaction")
        return bytes(self._derive(key)[0].sign_message(message))

    def sign_voucher(self, key: KeyPath, voucher: bytes) -> bytes:
        if key.change != _VOUCHERS:
            raise ValueError("this key signs no vouchers")
        Voucher.of(voucher)
        return bytes(self._derive(key)[0].sign_message(voucher))

    def __repr__(self) -> str:
        return "<Custody>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Custody holds secret keys and cannot be pickled or copied")


def _keypair(secret: bytes) -> Keypair:
    try:
        return Keypair.from_bytes(secret)
    except ValueError:
        # Suppress the cause: a traceback must contain nothing derived from a secret.
        raise ValueError(_NO_KEY) from None


def _account(account_index: int) -> int:
    if account_index < 1:
        raise ValueError(f"account indexes start at 1, not {account_index}: 0 holds the service's own keys")
    return _index(account_index)


def _index(value: int) -> int:
    # Checked here, because the derivation panics on an invalid path.
    if not 0 <= value <= _MAX_INDEX:
        raise ValueError(f"a derivation index is between 0 and {_MAX_INDEX}, not {value}")
    return value
