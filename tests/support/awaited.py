"""Async tools as if they were sync ones, so that the same test runs with both."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentpay.tools import AsyncAgentTools

sync_and_async = pytest.mark.parametrize("tools", ["sync", "async"], indirect=True)
"""For a test whose fixture `tools` is `Awaited` if its parameter is "async"."""


class Awaited:
    """Each method runs the async one in a new event loop, and returns its result."""

    def __init__(self, tools: AsyncAgentTools) -> None:
        self._tools = tools

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._tools, name)
        return lambda **arguments: asyncio.run(method(**arguments))
