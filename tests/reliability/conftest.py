"""What the reliability tests share: a world each, on an event loop whose time takes no time."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import worlds
from virtual_time import VirtualTimeLoop
from worlds import World


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server of the test's own, on a chain that can fail."""
    async with worlds.world() as running:
        yield running
