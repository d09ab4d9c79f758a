"""Fixtures of the tests on a real validator."""

from collections.abc import AsyncIterator

import pytest
import rpc_world
from rpc_world import RpcWorld
from surfpool import Surfpool


@pytest.fixture
async def world(surfpool: Surfpool) -> AsyncIterator[RpcWorld]:
    """Accounts of the test's own, on the module's validator."""
    async with rpc_world.world(surfpool) as running:
        yield running
