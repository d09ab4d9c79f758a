"""Servers on one database and one chain, each with a database connection of its own."""

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


def accept_any_chain(patch: Any) -> None:
    """Let a database be used with another embedded chain: the second server gets the chain of the first."""

    async def accepted(*_: object) -> None:
        """Accept it."""

    patch.setattr(identity, "check_genesis", accepted)


def postgres(url: str) -> PostgresDatabase:
    """Return a database on separate connections."""
    return PostgresDatabase(url)
