"""Fixtures of the reliability tests: a server per test, on an event loop with virtual time."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import rpc_proxy
import rpc_service
import worlds
from rpc_proxy import RpcProxy
from rpc_service import Service
from rpc_trouble import TIMEOUT_SECONDS
from surfpool import Surfpool
from virtual_time import VirtualTimeLoop
from worlds import World

from agentpay_server.plugins.postgres import database as postgres


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@pytest.fixture(autouse=True)
def _no_deadlocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a deadlock on PostgreSQL fail the test: all units lock in one order, so none can happen."""
    monkeypatch.setattr(postgres, "_ABORTED", postgres._ABORTED - {"40P01"})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server of the test's own, on a chain that can fail."""
    async with worlds.world() as running:
        yield running


@pytest.fixture
async def proxy(surfpool: Surfpool) -> AsyncIterator[RpcProxy]:
    """A faulty network in front of the validator; it works until a fault is set."""
    async with rpc_proxy.in_front_of(surfpool.url) as running:
        yield running


@pytest.fixture
async def service(surfpool: Surfpool, proxy: RpcProxy) -> AsyncIterator[Service]:
    """The service behind that network, which is asked for everything each time."""
    async with rpc_service.serving(
        # Nothing is remembered: every call is made each time. No websocket goes past the proxy.
        surfpool,
        url=proxy.url,
        websocket_url=None,
        timeout_seconds=TIMEOUT_SECONDS,
        blockhash_seconds=0,
    ) as running:
        yield running
