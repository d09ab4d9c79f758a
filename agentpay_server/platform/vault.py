"""Sealing stored secrets with AES-256-GCM, bound to the place where they are stored.

Table, column and row are authenticated with the ciphertext, so a moved one does not open. The key comes from
the settings or the key file, never from the database.
"""

from typing import Final, NoReturn

from attrs import frozen
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agentpay_server.platform.randomness import Randomness, SystemRandomness

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class VaultError(Exception):
    """Another key, another place, or damage."""


@frozen(kw_only=True)
class Place:
    """Where a ciphertext is stored. Table and column names contain no NUL."""

    table: str
    column: str
    row: str

    @property
    def associated_data(self) -> bytes:
        return f"{self.table}\0{self.column}\0{self.row}".encode()


class Vault:
    """The key has 32 bytes. `repr` shows nothing, and it cannot be pickled."""

    def __init__(self, key: bytes, entropy: Randomness | None = None) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"an encryption key has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)
        self._entropy = entropy or SystemRandomness()

    def seal(self, secret: str, place: Place) -> bytes:
        # Never from a seeded source, because a repeated nonce breaks the cipher.
        nonce = self._entropy.randbytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret.encode("utf-8"), place.associated_data)

    def open(self, sealed: bytes, place: Place) -> str:
        nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, ciphertext, place.associated_data).decode("utf-8")
        except (InvalidTag, ValueError):
            raise VaultError(
                f"the {place.column} of {place.row} does not open with this server's key"
            ) from None

    def __repr__(self) -> str:
        return "<Vault>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Vault holds a secret key and cannot be pickled or copied")
