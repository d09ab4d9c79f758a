"""Servers that run one after the other on one database, which may be restored in between."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import cluster_worlds
import pytest
import rpc_world
from cluster_worlds import ClusterWorld
from clusters import Cluster
from worlds import InterruptedDatabase, Party, World

from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import Storage
from agentpay_server.assembly.server import start_server
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.platform.clock import SystemClock
from agentpay_server.platform.settings import Settings
from agentpay_server.plugins.cluster.settings import RpcSettings

FINALITY_SECONDS = 15.0


class Disk(MemoryDatabase):
    """A database that outlives its servers."""

    async def close(self) -> None:
        """Stay."""


class Lives:
    """One server after the other on one database, and one chain: a cluster, or one within the process."""

    def __init__(self, cluster: Cluster | None) -> None:
        self.cluster = cluster
        self.disk, self.ledger = Disk(), Disk()
        self._operator_key: str | None = None
        self._running: World | None = None

    async def start(self) -> World:
        rpc = None
        if self.cluster is not None:
            rpc = RpcSettings(
                url="http://cluster.invalid",
                fee_payer_key=rpc_world.GIVEN[TREASURY],
                mint_authority_key=rpc_world.GIVEN[TEST_MINT_AUTHORITY],
            )
        runtime = await start_server(
            ServerConfig(clock=SystemClock(), operator_key=self._operator_key, rpc=rpc),
            Storage(
                database=InterruptedDatabase(self.disk, None),
                ledger=None if self.cluster is not None else InterruptedDatabase(self.ledger, None),
                settings=Settings(encryption_key=bytes(range(32)), settlement_wait_seconds=20),
            ),
        )
        self._operator_key = runtime.operator.key
        cluster = self.cluster
        self._running = Embedded(runtime) if cluster is None else ClusterWorld(runtime, cluster)
        return self._running

    async def kill(self) -> None:
        assert self._running is not None
        await self._running.kill()
        self._running = None

    async def end(self) -> None:
        if self._running is not None:
            await self._running.stop()
        for disk in (self.disk, self.ledger):
            await MemoryDatabase.close(disk)


class Embedded(World):
    """A server with the chain in its process."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime, runtime.chain)

    def balance(self, party: Party) -> int:
        account = self.runtime.chain._token_account(party.token_account)
        assert account is not None
        return int(account.amount_micro)


@asynccontextmanager
async def lives_on(kind: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lives]:
    """Return servers on a chain of a kind: `cluster` or `embedded`."""
    cluster = cluster_worlds.new_cluster() if kind == "cluster" else None
    if cluster is not None:
        cluster_worlds.patched(monkeypatch, cluster)
    made = Lives(cluster)
    yield made
    await made.end()


async def suspended(world: World) -> int:
    """Return how many accounts are suspended; the server must be ready all the same."""
    assert (await world.http.get("/readyz")).json() == {"status": "ready"}
    summary = await world.request("GET", "/ext/v1/console/summary")
    return int(summary.body["suspended_accounts"])
