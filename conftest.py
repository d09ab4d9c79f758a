"""Runs every Python block of the README and the documentation as a test."""

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

# Announced by the installed package too, unless that was installed before it had them.
pytest_plugins = ["agentpay_server.pytest_plugin", "pytester"]

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
).pytest()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take where the servers of the tests keep what they know, and on which chain they work."""
    parser.addoption(
        "--store",
        choices=["memory", "file", "postgres"],
        default="memory",
        help="where the servers that the tests start keep what they know",
    )
    parser.addoption(
        "--chain",
        choices=["embedded", "surfpool"],
        default="embedded",
        help="on which chain the servers that the tests start work",
    )


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, which the server is written for."""
    return "asyncio"
