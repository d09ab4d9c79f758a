"""Who asks, from the `Authorization` header (interface K1, E7)."""

from collections.abc import Mapping
from typing import Final

from agentpay_server.domain.principals import Principal
from agentpay_server.http.problems import unauthorized
from agentpay_server.services.keys import Keys

_MAX_KEY_CHARACTERS: Final = 128


async def authenticated(headers: Mapping[str, str], keys: Keys, request_id: str) -> Principal:
    """Return who holds the key of a request.

    Raises:
        Problem: `unauthorized`: no key, a malformed, unknown or revoked one.
    """
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or len(key) > _MAX_KEY_CHARACTERS:
        raise unauthorized()
    principal = await keys.authenticate(key.strip(" "), request_id)
    if principal is None:
        raise unauthorized()
    return principal
