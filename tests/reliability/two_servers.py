"""A server on a PostgreSQL database and a chain that another server may use too."""

from typing import Any

import stores
from chains import FaultyChain
from worlds import World

from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.server import start_server
from agentpay_server.assembly.storage import Storage
from agentpay_server.database.postgres import PostgresDatabase
from agentpay_server.platform.clock import SystemClock
from agentpay_server.platform.settings import Settings


async def started(url: str, chain: FaultyChain | None, key: str | None, **settings: Any) -> World:
    made: list[FaultyChain] = []

    def wrap(inner: Any) -> FaultyChain:
        made.append(FaultyChain(inner) if chain is None else chain)
        return made[0]

    database = PostgresDatabase(url)
    runtime = await start_server(
        ServerConfig(clock=SystemClock(), operator_key=key, wrap_chain=wrap),
        Storage(
            database=database,
            ledger=database,
            # As long as it takes: a busy machine is no outage.
            settings=Settings(encryption_key=stores.KEY, settlement_wait_seconds=100, **settings),
            is_alone=False,
            now_us=database.now_us,
        ),
    )
    return World(runtime, made[0])
