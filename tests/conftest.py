"""How Hypothesis runs, where the servers of the tests keep what they know, and validators for modules."""

import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import postgres_server
import pytest
import rings
import stores
import surfpool as surfpools
import validators
from hypothesis import settings
from surfpool import Surfpool

_BEHAVIOUR = Path(__file__).parent / "integration" / "behaviour"
"""The tests that must pass on every store and chain; without `--store` they run on SQLite files."""

settings.register_profile("agentpay", deadline=None, print_blob=True)
settings.register_profile("quick", settings.get_profile("agentpay"), max_examples=25)
settings.load_profile("agentpay")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist where the PostgreSQL of the whole run lives."""
    node.workerinput["postgres"] = str(stores.run.postgres)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in the background would hand it on to every command that the tests interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    validators.run.kind = config.getoption("--chain")
    told = getattr(config, "workerinput", None)
    if told is None:
        directory = postgres_server.directory()
        stores.run.postgres = directory.__enter__()
        config.add_cleanup(lambda: directory.__exit__(None, None, None))
    else:
        stores.run.postgres = Path(told["postgres"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rings.deselect(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Choose the store of a test before its fixtures start servers, those of its module included."""
    told = item.config.getoption("--store")
    is_behaviour = item.path.parent == _BEHAVIOUR
    stores.run.kind = told or ("file" if is_behaviour and not _needs_memory(item) else "memory")
    try:
        return (yield)
    finally:
        stores.run.kind = told or "memory"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if stores.run.kind != "memory" and (reason := _needs_memory(item)):
        pytest.skip(f"needs a server in memory: {reason}")
    if marker := item.get_closest_marker("embedded_chain"):
        validators.embedded_only(*marker.args)


def _needs_memory(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("in_memory")
    return marker and str(marker.args[0])


@pytest.fixture(scope="session", autouse=True)
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let servers that would keep everything in memory keep it where the run was told to."""
    stores.run.scratch = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentpay_server.testkit.embedded.server.start_server", stores.start_anywhere)
        yield


@pytest.fixture(scope="module", autouse=True)
def _validator() -> Iterator[None]:
    """End the validator that the servers of a module have worked on, if one was started."""
    yield
    validators.run.stop()


@pytest.fixture(scope="module")
def surfpool() -> Iterator[Surfpool]:
    """A real validator; the test is skipped where there can be none."""
    with surfpools.running() as node:
        yield node
