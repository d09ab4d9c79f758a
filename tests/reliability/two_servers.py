"""Servers on one database and one chain, each with a database connection of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

import stores
from chains import FaultyChain
from worlds import World

from agentpay_server import Settings
from agentpay_server.assembly import identity
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import Storage
from agentpay_server.assembly.server import start_server
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.platform.clock import SystemClock, manual_clock
from agentpay_server.plugins.postgres.database import PostgresDatabase


async def started(url: str, chain: FaultyChain | None, key: str | None, **settings: Any) -> World:
    """Serve on a PostgreSQL database, and on a chain that another server may use too."""
    database = PostgresDatabase(url)
    return await started_on(
        database,
        chain=chain,
        # As long as it takes: a busy machine is no outage.
        settings=Settings(encryption_key=stores.KEY, settlement_wait_seconds=100, **settings),
        now_us=database.now_us,
        operator_key=key,
    )


async def started_on(
    database: Any,
    *,
    chain: FaultyChain | None = None,
    settings: Settings,
    start: datetime | None = None,
    is_alone: bool = False,
    has_ledger: bool = True,
    now_us: Any = None,
    **config: Any,
) -> World:
    """Serve on a database, which also has the chain's ledger, unless `has_ledger` is False.

    The clock is paused at `start`, or runs.
    """
    used: list[FaultyChain] = []

    def wrap(inner: Any) -> FaultyChain:
        used.append(FaultyChain(inner) if chain is None else chain)
        return used[0]

    clock = SystemClock() if start is None else manual_clock(start)
    ledger = database if has_ledger else None
    known: Any = {} if now_us is None else {"now_us": now_us}
    storage = Storage(database=database, ledger=ledger, settings=settings, is_alone=is_alone, **known)
    runtime = await start_server(ServerConfig(clock=clock, wrap_chain=wrap, **config), storage)
    return World(runtime, used[0])


@asynccontextmanager
async def both(url: str | None = None, **settings: Any) -> AsyncIterator[tuple[World, World]]:
    """Serve twice on one PostgreSQL and one chain; on a database of its own, unless one is given."""
    made = await stores.fresh_url() if url is None else url
    first = await started(made, None, None, **settings)
    second = await started(made, first.chain, first.runtime.operator.key, **settings)
    # The second has created an unused chain from the ledger: the first continues from there.
    with suppress(ChainUnreachableError):
        await first.chain.latest_blockhash()
    yield first, second
    await second.stop()
    await first.stop()
    if url is None:
        stores.run.free.append(made)


def accept_any_chain(patch: Any) -> None:
    """Let a database be used with another embedded chain: the second server gets the chain of the first."""

    async def accepted(*_: object) -> None:
        """Accept it."""

    patch.setattr(identity, "check_genesis", accepted)


def postgres(url: str) -> PostgresDatabase:
    """Return a database on separate connections."""
    return PostgresDatabase(url)
