"""The database or the chain of an embedded server goes away for a while."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentpay_server import AgentPayServer, DatabaseUnavailableError


@contextmanager
def database_away(
    server: AgentPayServer, message: str = "away", *, is_read: bool = False
) -> Iterator[threading.Event]:
    """Let every unit of work fail, with `is_read` only those that write; the event says that one did."""
    has_failed = threading.Event()

    async def refused(*_: Any, **__: Any) -> None:
        has_failed.set()
        raise DatabaseUnavailableError(message)

    with _database_calls(server, refused, *(("run",) if is_read else ("run", "read"))):
        yield has_failed


@contextmanager
def database_silent(server: AgentPayServer) -> Iterator[None]:
    """Let no unit of work get a response."""

    async def silent(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    with _database_calls(server, silent, "run", "read"):
        yield


@contextmanager
def chain_silent(server: AgentPayServer) -> Iterator[None]:
    """Let no question about the height get a response."""

    async def silent() -> None:
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server._running.server.context.chain, "block_height", silent)
        yield


@contextmanager
def _database_calls(
    server: AgentPayServer, call: Callable[..., Awaitable[None]], *names: str
) -> Iterator[None]:
    database = server._running.server.context.database
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(database, name, call)
        yield
