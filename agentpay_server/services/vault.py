"""Secrets at rest: AES-256-GCM, bound to the record that they belong to.

The identifier of the record is authenticated with the ciphertext, so that one moved to another row does not
open. The key comes from the settings and is never stored.
"""

from typing import Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agentpay_server.randomness import Randomness, SystemRandomness

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class VaultError(Exception):
    """A stored secret does not open: another key, another record, or damage."""


class Vault:
    """Seals and opens secrets. Its `repr` says nothing, and it cannot be pickled.

    Args:
        key: 32 bytes.
        entropy: source of nonces; the operating system's if None.
    """

    def __init__(self, key: bytes, entropy: Randomness | None = None) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"an encryption key has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)
        self._entropy = entropy or SystemRandomness()

    def seal(self, secret: str, record_id: str) -> bytes:
        """Return `secret`, to be stored with the record `record_id` and opened with it alone."""
        # Not from a seed that repeats all else: a nonce that comes twice opens the cipher.
        nonce = self._entropy.randbytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret.encode("utf-8"), record_id.encode("utf-8"))

    def open(self, sealed: bytes, record_id: str) -> str:
        """Return what was sealed for the record `record_id`.

        Raises:
            VaultError: it was not sealed for that record, or not with this key.
        """
        nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, ciphertext, record_id.encode("utf-8")).decode("utf-8")
        except (InvalidTag, ValueError):
            raise VaultError(f"the secret of {record_id} does not open with this server's key") from None

    def __repr__(self) -> str:
        return "<Vault>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Vault holds a secret key and cannot be pickled or copied")
