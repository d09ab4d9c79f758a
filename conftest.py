"""Runs every Python block of the README and the documentation as a test."""

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
).pytest()


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, which the server is written for."""
    return "asyncio"
