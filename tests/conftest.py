"""How Hypothesis runs, and where the servers of the tests keep what they know."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import postgres_server
import pytest
import stores
from hypothesis import settings

settings.register_profile("agentpay", deadline=None, print_blob=True)
settings.load_profile("agentpay")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist where the PostgreSQL of the whole run lives."""
    node.workerinput["postgres"] = str(stores.run.postgres)


def pytest_configure(config: pytest.Config) -> None:
    stores.run.kind = config.getoption("--store")
    told = getattr(config, "workerinput", None)
    if told is None:
        directory = postgres_server.directory()
        stores.run.postgres = directory.__enter__()
        config.add_cleanup(lambda: directory.__exit__(None, None, None))
    else:
        stores.run.postgres = Path(told["postgres"])


@pytest.fixture(scope="session", autouse=True)
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let servers that would keep everything in memory keep it where the run was told to."""
    stores.run.scratch = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentpay_server.embedded.server.open_storage", stores.open_anywhere)
        yield
