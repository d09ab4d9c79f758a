import pytest
from chain_world import World


@pytest.fixture
def world() -> World:
    return World()
