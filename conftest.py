"""Runs every Python block of the README and the documentation as a test."""

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
).pytest()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take where the servers of the tests keep what they know (tests/stores.py)."""
    parser.addoption(
        "--store",
        choices=["memory", "file", "postgres"],
        default="memory",
        help="where the servers that the tests start keep what they know",
    )


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, which the server is written for."""
    return "asyncio"
