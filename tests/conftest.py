"""How Hypothesis runs: a slow machine is no failure, and every failure prints how to repeat it.

And the validator that tests of the RPC chain share, one for each module.
"""

from collections.abc import Iterator

import pytest
import surfpool as validators
from hypothesis import settings
from surfpool import Surfpool

settings.register_profile("agentpay", deadline=None, print_blob=True)
settings.load_profile("agentpay")


@pytest.fixture(scope="module")
def surfpool() -> Iterator[Surfpool]:
    """A real validator; the test is skipped where there can be none."""
    with validators.running() as node:
        yield node
