"""A world for each test, and asyncio for async tests."""

from collections.abc import Iterator

import pytest
import scripted
from scripted import World


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def world() -> Iterator[World]:
    made = scripted.world()
    yield made
    made.server.close()
