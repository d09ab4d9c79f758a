"""Something happens between the check of a request's key and its work."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentpay_server.operators.keys import Keys


def after_each(patch: pytest.MonkeyPatch, act: Callable[[str], Awaitable[None] | None]) -> None:
    """Act, on the server's loop, after each check of a key, which `act` gets."""
    check = Keys.authenticate

    async def checked(self: Keys, key: str, request_id: str) -> Any:
        found = await check(self, key, request_id)
        waiting = act(key)
        if waiting is not None:
            await waiting
        return found

    patch.setattr(Keys, "authenticate", checked)
