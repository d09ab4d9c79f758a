"""Runs every Python block of the README and the documentation as a test; says where coverage is measured."""

import asyncio
import os
from collections.abc import Callable, Generator, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from coverage import Coverage

# Announced by the installed package too, unless that was installed before it had them.
pytest_plugins = ["agentpay_server.pytest_plugin", "pytester"]

_ON_POSTGRES = "docs/how-to/postgresql.md"
_IN_FRAMEWORKS = "docs/how-to/frameworks.md"
_FRAMEWORKS = ("agents", "claude_agent_sdk", "langchain", "pydantic_ai")
_LACKS_FRAMEWORKS = None in map(find_spec, _FRAMEWORKS)
"""Whether the page of the frameworks cannot be run here; `nox -s frameworks` installs them."""


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the Python blocks of a document, where Sybil is installed: tests run without it."""
    return _documents()(file_path, parent) if file_path.suffix == ".md" and find_spec("sybil") else None


@cache
def _documents() -> Callable[[Path, pytest.Collector], pytest.Collector | None]:
    from sybil import Sybil  # noqa: PLC0415
    from sybil.parsers.markdown import PythonCodeBlockParser  # noqa: PLC0415
    from sybil.sybil import SybilCollection  # noqa: PLC0415

    return SybilCollection(
        [
            Sybil(
                parsers=[PythonCodeBlockParser()],
                patterns=["README.md", "docs/*.md", "docs/*/*.md", "docs/*/*/*.md"],
                excludes=[_ON_POSTGRES, *([_IN_FRAMEWORKS] if _LACKS_FRAMEWORKS else [])],
            ),
            Sybil(
                parsers=[PythonCodeBlockParser()], patterns=[_ON_POSTGRES], fixtures=["documented_database"]
            ),
        ]
    ).pytest()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take which tests run, where their servers keep what they know, and on which chain they work."""
    parser.addoption(
        "--ring",
        choices=["gate", "rest"],
        help="run what every change must pass, or what that leaves out (by default both)",
    )
    parser.addoption(
        "--store",
        choices=["memory", "file", "postgres"],
        help="where the servers that the tests start keep what they know (by default on SQLite files in the "
        "behaviour tests, and in memory in all others)",
    )
    parser.addoption(
        "--chain",
        choices=["embedded", "embedded-rpc", "surfpool"],
        default="embedded",
        help="on which chain the servers that the tests start work",
    )


_TESTS = Path(__file__).parent / "tests"
_UNMEASURED = tuple(_TESTS / folder for folder in ("browser", "contract", "integration/rpc", "peers"))


def _is_measured(item: pytest.Item) -> bool:
    """Neither documents and examples, nor the tests of an unmeasured folder, module or function."""
    return (
        item.path.is_relative_to(_TESTS)
        and not any(item.path.is_relative_to(folder) for folder in _UNMEASURED)
        and item.get_closest_marker("unmeasured") is None
    )


class _Measurement:
    """Stops measuring coverage for the tests that are unmeasured."""

    def __init__(self, coverage: "Coverage") -> None:
        self._coverage = coverage
        self._is_on = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.switch(is_on=_is_measured(item))
        return (yield)

    def switch(self, *, is_on: bool) -> None:
        if is_on != self._is_on:
            switch = self._coverage.start if is_on else self._coverage.stop
            switch()
            self._is_on = is_on


def pytest_collection(session: pytest.Session) -> None:
    """Measure coverage if this run does (`--cov`), except of what is unmeasured."""
    if not session.config.pluginmanager.hasplugin("_cov"):
        return
    from coverage import Coverage  # noqa: PLC0415 - a run without it does not need the package

    if (coverage := Coverage.current()) is not None:
        # In a worker process pytest-cov starts two, and the first continues while the second is stopped.
        while (running := Coverage.current()) is not None:
            running.stop()
        measurement = _Measurement(coverage)
        # Every worker imports the same: that the first one measures it is enough.
        measurement.switch(is_on=os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0")
        session.config.pluginmanager.register(measurement)


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, which the server is written for."""
    return "asyncio"


@pytest.fixture
def documented_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Name an empty PostgreSQL database in the environment, as the reader of that page has one."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "tests")
    import asyncpg  # noqa: PLC0415 - one page needs them
    import postgres_server  # noqa: PLC0415
    from sqlalchemy import make_url  # noqa: PLC0415

    async def make(server: str, name: str) -> None:
        connection = await asyncpg.connect(server)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    with postgres_server.directory() as directory:
        server = postgres_server.url_of(directory)
        name = f"{postgres_server.prefix_of(directory)}docs"
        asyncio.run(make(server, name))
        url = make_url(server).set(database=name).render_as_string(hide_password=False)
        monkeypatch.setenv("AGENTPAY_SERVER_DATABASE_URL", url)
        yield
