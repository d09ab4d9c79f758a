"""The form of webhook secrets (interface W2): `whsec_` and 43 base62 characters."""

from typing import Final

from agentpay_server.domain.api_keys import base62

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the mark of a secret, not one


def new_secret(random_bytes: bytes) -> str:
    """Return the secret that 32 random bytes make."""
    return SECRET_PREFIX + base62(int.from_bytes(random_bytes, "big"), 43)
